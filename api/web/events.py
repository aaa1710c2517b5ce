"""A job's events as lines of text."""

from __future__ import annotations

from collections.abc import Iterable

from lab.api.core.core import Core
from lab.api.events.eventlog import topic
from lab.api.http.auth import Caller
from lab.state.jobs import OPEN
from lab.state.records import EventRecord
from lab.state.service import JobRecord
from lab.values import dataclass

_MOST = 500
"""Events of a job from which lines are made."""


@dataclass
class Line:
    """A step. ``state``: running, done, failed, interrupted or note; ``seconds``: once it ended.

    A step is interrupted if its job began again, or ended, without its end: the service was killed.
    """

    step: str
    text: str
    state: str
    seconds: float | None = None


_ENDS = {"end": "done", "fail": "failed"}


def lines(events: Iterable[EventRecord], *, ended: bool = False) -> list[Line]:
    """A line for each step in order of its begin, without the events of the job itself.

    ``ended``: the job has. ``events`` may lack the first ones: an end without a begin is no line.
    """
    found: list[Line] = []
    for event in events:
        if event.step == "job":
            _interrupt(found)
            continue
        if event.state in _ENDS:
            begun = [one for one in found if one.step == event.step and one.state == "running"]
            if begun:
                begun[-1].state, begun[-1].seconds = _ENDS[event.state], event.seconds
        else:
            state = "running" if event.state == "begin" else "note"
            found.append(Line(event.step, event.text, state))
    if ended:
        _interrupt(found)
    return found


def _interrupt(found: Iterable[Line]) -> None:
    for one in found:
        one.state = "interrupted" if one.state == "running" else one.state


def shown(core: Core, caller: Caller, job: JobRecord) -> list[Line]:
    """The steps of a job that the caller may see: the last ones, if there are many."""
    caller.job(core, job.id)
    records = core.store.events.latest(topic(job.id), limit=_MOST + 1)
    found = lines(records[-_MOST:], ended=job.state not in OPEN)
    if len(records) > _MOST:
        text = f"before these: left out here, GET /v1/jobs/{job.id}/events has all"
        found.insert(0, Line("earlier steps", text, "note"))
    return found

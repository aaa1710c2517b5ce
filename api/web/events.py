"""A job's events as lines of text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lab.api.core.core import Core
from lab.api.http.auth import Caller
from lab.api.http.models import Event
from lab.api.routes import events

_MOST = 500


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


def lines(events: Iterable[Event]) -> list[Line]:
    """A line for each step in order of its begin, without the events of the job itself."""
    found: list[Line] = []
    for event in events:
        if event.step == "job":
            for one in found:
                one.state = "interrupted" if one.state == "running" else one.state
            continue
        if event.state in _ENDS:
            begun = [one for one in found if one.step == event.step and one.state == "running"]
            if begun:
                begun[-1].state, begun[-1].seconds = _ENDS[event.state], event.seconds
        else:
            state = "running" if event.state == "begin" else "note"
            found.append(Line(event.step, event.text, state))
    return found


def shown(core: Core, caller: Caller, job: str) -> list[Line]:
    """The steps of a job that the caller may see."""
    return lines(events.listed(core, caller, 0, _MOST, job).items)

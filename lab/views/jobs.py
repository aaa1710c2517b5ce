"""Jobs of a service and their steps, as they are shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from lab.marks import Public, Time, public
from lab.state.service import JobKind, JobState
from lab.values import dataclass


@dataclass(frozen=True)
class JobView:
    """A job. ``lab``: the name of its lab, once known; ``error``: a problem."""

    id: Public[str]
    kind: Annotated[str, public(values=JobKind)]
    state: Annotated[str, public(values=JobState)]
    lab: Public[str]
    about: Annotated[
        str, public("image:KEY", "template:KEY", "snapshot:LABEL", "snapshots:A,B", "labs:A,B")
    ]
    """The image, template, snapshots or branches that it concerns, once known."""
    project: Public[str]
    created_at: Public[Time]
    started_at: Public[Time | None]
    ended_at: Public[Time | None]
    error: Public[Mapping[str, Any] | None]
    host_name: Public[str] = ""
    """The host of the fleet that has it; empty: none has begun it, or there is no fleet."""

    @property
    def labs(self) -> list[str]:
        """The labs that it created, once it has succeeded: branches, or its lab."""
        kind, _, names = self.about.partition(":")
        return names.split(",") if kind == "labs" else [self.lab]

    @property
    def over(self) -> bool:
        """Whether it has ended, one way or another."""
        return self.state not in ("queued", "running")


@dataclass(frozen=True)
class EventView:
    """A step of a job. A job's last event has the step `job`, and the job's state as its text."""

    id: Public[int]
    at: Public[Time]
    job: Public[str]
    step: Annotated[str, public("clone")]
    state: Annotated[str, public("end")]
    """begin, end, fail or note"""
    text: Public[str]
    seconds: Public[float]
    host_name: Public[str] = ""
    """The host of the fleet that did it, and that ``id`` is of; empty: it belongs to none."""

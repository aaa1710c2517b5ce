"""Progress: what is being done, as events; who shows them is decided elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import field

from lab.texts import harmless
from lab.units import format_duration, format_size
from lab.values import dataclass

_REPORT_EVERY = 1.0
"""Seconds between two reports of bytes."""
_TEXT_LIMIT = 4096
"""Characters of a text: events of jobs are kept."""


@dataclass(frozen=True)
class Event:
    """A step of the lifecycle."""

    step: str
    """Its name, which is stable: ``clone``, ``restore``, ``ready`` ..."""
    state: str
    """``begin``, ``end``, ``fail``, ``note`` or ``update``."""
    text: str = ""
    """For people; of an ``update``: how far the step is."""
    seconds: float = 0.0
    """How long it took; set on ``end`` and ``fail``."""

    def __post_init__(self) -> None:
        """Names in it are those of guests, servers and dumps: they reach terminals and logs."""
        object.__setattr__(self, "text", harmless(self.text[:_TEXT_LIMIT]))


Listener = Callable[[Event], None]


def ignore(_: Event) -> None:
    """A listener that hears nothing."""


def never_halt() -> None:
    """A halt that never comes."""


@dataclass
class Step:
    """What was done, how many seconds it took, and what of that its own steps took."""

    step: str
    seconds: float = 0.0
    steps: list[Step] = field(default_factory=list)


@dataclass
class Progress:
    """Tells a listener about steps, and keeps how long they took.

    Steps nest as their blocks do; one thread begins and ends them. ``halt`` is called, by any
    thread, while something is waited for: it raises if nobody wants that any more.
    """

    listener: Listener = ignore
    halt: Callable[[], None] = never_halt
    steps: list[Step] = field(default_factory=list)
    failed: str = ""
    """The last step that failed, the innermost if nested; empty once another begins."""
    _open: list[Step] = field(default_factory=list)

    def note(self, step: str, text: str) -> None:
        """Something a person should see, such as which engine is used and why."""
        self.listener(Event(step, "note", text))

    def update(self, step: str, text: str) -> None:
        """How far a step is that takes long, about once a second."""
        self.listener(Event(step, "update", text))

    @contextmanager
    def step(self, step: str, text: str = "") -> Iterator[None]:
        """Time the block as ``step``; equal steps in the same place are one, and add up."""
        began = time.perf_counter()
        self.listener(Event(step, "begin", text))
        self._open.append(self._place(step))
        self.failed = ""
        state = "fail"
        try:
            yield
            state = "end"
        finally:
            took = time.perf_counter() - began
            self._open.pop().seconds += took
            if state == "fail" and not self.failed:
                self.failed = step
            self.listener(Event(step, state, text, took))

    @property
    def under_way(self) -> str:
        """The innermost step that has begun and not ended; empty for none."""
        return self._open[-1].step if self._open else ""

    def spent(self, *steps: str) -> float:
        """Seconds that these steps have taken, where they are not parts of others."""
        return sum(found.seconds for found in self.steps if found.step in steps)

    def _place(self, step: str) -> Step:
        beside = self._open[-1].steps if self._open else self.steps
        for found in beside:
            if found.step == step:
                return found
        beside.append(Step(step))
        return beside[-1]


@dataclass
class ByteProgress:
    """Reports bytes of ``step``, of ``total`` (0: not known), as updates of its text."""

    progress: Progress
    step: str
    total: int = 0
    _began: float = field(default_factory=time.monotonic)
    _next: float = 0.0

    def __call__(self, done: int) -> None:
        """So many bytes are done."""
        now = time.monotonic()
        self.progress.halt()
        if now < self._next:
            return
        self._next = now + _REPORT_EVERY
        self.progress.update(self.step, self.text(done, now - self._began))

    def text(self, done: int, seconds: float) -> str:
        """``120M of 1G, 24M/s, 38s left``."""
        rate = done / seconds if seconds > 0 else 0.0
        parts = [format_size(done)]
        if self.total:
            parts[0] += f" of {format_size(self.total)}"
        if seconds >= 1:
            parts.append(f"{format_size(int(rate))}/s")
            if self.total and rate:
                parts.append(f"{format_duration((self.total - done) / rate)} left")
        return ", ".join(parts)

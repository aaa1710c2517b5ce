"""Progress: what is being done, as events; who shows them is decided elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Event:
    """A step of the lifecycle.

    ``step`` is stable (``clone``, ``restore``, ``ready`` ...), ``text`` is for people,
    ``state`` is ``begin``, ``end``, ``fail`` or ``note``; ``seconds`` is set on end and fail.
    """

    step: str
    state: str
    text: str = ""
    seconds: float = 0.0


Listener = Callable[[Event], None]


def ignore(_: Event) -> None:
    """A listener that hears nothing."""


@dataclass
class Progress:
    """Tells a listener about steps and keeps their durations, in seconds by step."""

    listener: Listener = ignore
    seconds: dict[str, float] = field(default_factory=dict)

    def note(self, step: str, text: str) -> None:
        """Something a person should see, such as which engine is used and why."""
        self.listener(Event(step, "note", text))

    @contextmanager
    def step(self, step: str, text: str = "") -> Iterator[None]:
        """Time the block as ``step``; durations of equal steps add up."""
        began = time.perf_counter()
        self.listener(Event(step, "begin", text))
        state = "fail"
        try:
            yield
            state = "end"
        finally:
            took = time.perf_counter() - began
            self.seconds[step] = self.seconds.get(step, 0.0) + took
            self.listener(Event(step, state, text, took))

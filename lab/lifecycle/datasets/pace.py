"""How far something is: bytes, rate and the time that is left."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from lab.progress import Progress
from lab.units import format_duration, format_size

_EVERY = 1.0
"""Seconds between two reports."""


@dataclass
class Pace:
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
        self._next = now + _EVERY
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

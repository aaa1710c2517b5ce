"""Labs that were reset, until the job for their next standby is submitted."""

from __future__ import annotations

import threading

from lab.values import dataclass


@dataclass(frozen=True)
class Wanted:
    """A standby that a job asked for. ``created_at``: of the lab; ``token``: the job's."""

    lab: str
    created_at: float | None
    token: str


class Standbys:
    """The standbys that are wanted. They are lost with the process: a reset takes longer then."""

    def __init__(self) -> None:
        self.wake = threading.Event()
        """Set when there is a new one, or a request lacks room."""
        self._lock = threading.Lock()
        self._wanted: dict[str, Wanted] = {}

    def want(self, wanted: Wanted) -> None:
        """A lab is to get a standby."""
        with self._lock:
            self._wanted[wanted.lab] = wanted
        self.wake.set()

    def take(self) -> list[Wanted]:
        """All of them, which are forgotten."""
        with self._lock:
            found, self._wanted = list(self._wanted.values()), {}
        return found

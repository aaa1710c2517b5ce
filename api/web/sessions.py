"""Sessions: what the cookies of browsers stand for."""

from __future__ import annotations

import hashlib
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

LASTS = 12 * 3600.0
"""Seconds."""
_MOST = 10_000
_EACH = 100


@dataclass(frozen=True)
class _Session:
    token: str
    ends_at: float


class Sessions:
    """Sessions by their place and the text of their cookie, in memory: they end with the service.

    So nothing that opens the service is kept anywhere but in the browser: both are numbers of
    chance that mean nothing elsewhere, and only their hash is here. What a session may do is asked
    of its token each time. A token has so many; one more ends its oldest.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._guard = threading.Lock()
        self._open: dict[str, _Session] = {}

    def begin(self, token: str, place: str) -> str:
        """A new session for the token of that id: its cookie."""
        text, now = secrets.token_urlsafe(32), self._clock()
        with self._guard:
            self._open = {k: one for k, one in self._open.items() if one.ends_at > now}
            same = [k for k, one in self._open.items() if one.token == token]
            if len(same) >= _EACH:
                del self._open[same[0]]  # the oldest
            elif len(self._open) >= _MOST:
                del self._open[next(iter(self._open))]
            self._open[_hash(place, text)] = _Session(token, now + LASTS)
        return text

    def token_of(self, place: str, text: str) -> str | None:
        """The id of a session's token; None if there is no such session (any more)."""
        with self._guard:
            found = self._open.get(_hash(place, text))
        return found.token if found is not None and found.ends_at > self._clock() else None

    def end(self, place: str, text: str) -> None:
        """End a session; fine if there is none."""
        with self._guard:
            self._open.pop(_hash(place, text), None)


def _hash(place: str, text: str) -> str:
    # Looking up a hash takes a time that tells nothing about the text.
    return hashlib.sha256(f"{place} {text}".encode(errors="replace")).hexdigest()

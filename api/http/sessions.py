"""Sessions of browsers, which cookies identify."""

from __future__ import annotations

import hashlib
import secrets
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from starlette.requests import HTTPConnection

from lab.api.http.auth import Caller
from lab.api.http.dependencies import core_of
from lab.api.http.peers import SESSION_TOKEN, is_peer
from lab.api.http.session_path import session_path_of
from lab.errors import HostUnfit
from lab.lifecycle.service.token import valid
from lab.values import dataclass

COOKIE = "lab_session"
LASTS = 12 * 3600.0
"""Seconds."""
_MOST = 10_000
_EACH = 100


@dataclass(frozen=True)
class _Session:
    token: str
    ends_at: float


class Sessions:
    """Sessions by their path and the text of their cookie, in memory: they end with the service.

    So only the browser has what opens the service: both are random, and only their hash is kept
    here. The permissions of a session are read from its token each time. The sessions of a token
    are limited; one more ends its oldest.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._open: dict[str, _Session] = {}

    def begin(self, token: str, path: str) -> str:
        """Begin a session for the token with the id ``token``; the text of its cookie."""
        text, now = secrets.token_urlsafe(32), self._clock()
        with self._lock:
            self._open = {k: one for k, one in self._open.items() if one.ends_at > now}
            same = [k for k, one in self._open.items() if one.token == token]
            if len(same) >= _EACH:
                del self._open[same[0]]  # the oldest
            elif len(self._open) >= _MOST:
                del self._open[next(iter(self._open))]
            self._open[_hash(path, text)] = _Session(token, now + LASTS)
        return text

    def token_of(self, path: str, text: str) -> str | None:
        """The id of a session's token; None if there is no such session, or it has expired."""
        with self._lock:
            found = self._open.get(_hash(path, text))
        return found.token if found is not None and found.ends_at > self._clock() else None

    def end(self, path: str, text: str) -> None:
        """End a session, if there is one."""
        with self._lock:
            self._open.pop(_hash(path, text), None)


def _hash(path: str, text: str) -> str:
    # The time of a look-up by hash reveals nothing about the text.
    return hashlib.sha256(f"{path} {text}".encode(errors="replace")).hexdigest()


def cookies(request: HTTPConnection) -> list[str]:
    """All session cookies of a request: a lab's port can set one too, for all ports of a host."""
    parts = [p for line in request.headers.getlist("cookie") for p in line.split(";")]
    pairs = [part.strip().partition("=") for part in parts]
    return [value for name, _, value in pairs if name == COOKIE]


def _token_of(request: HTTPConnection) -> str | None:
    sessions, path = request.app.state.sessions, session_path_of(request)
    found = (sessions.token_of(path, text) for text in cookies(request))
    return next(filter(None, found), None)


def session_caller(request: HTTPConnection) -> Caller | None:
    """The holder of a request's session, while its token is valid; else None.

    The session is one of this host, or of that which has passed the request on.
    """
    core, passed = core_of(request), is_peer(request.scope)
    token = request.scope["state"].get(SESSION_TOKEN) if passed else _token_of(request)
    record = core.store.tokens.find(token) if token else None
    if record is None and token and passed and core.fleet is not None:  # it may be new
        with suppress(HostUnfit):
            core.fleet.share_tokens(core.store)
        record = core.store.tokens.find(token)
    if record is None or not valid(record):
        return None
    core.known.used(record.id)
    return Caller(record)

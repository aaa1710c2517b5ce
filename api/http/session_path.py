"""The path of a session: a prefix that only the addresses of its pages have.

Browsers send a cookie to every port of a host, and root in a node controls what answers at its
port. So the cookie of a session has a path that nobody can guess (RFC 6265, 5.1.4): another port
gets it only with a request below that path, which no page elsewhere knows: ours send other origins
no Referer.
"""

from __future__ import annotations

import re
import secrets
from urllib.parse import quote

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

SESSION_PATH = "session_path"
"""In a request's state: the path of its session, which the path of the request is without."""
_WITH_PATH = re.compile(
    r"(/~[A-Za-z0-9_-]{22})(?!/(?:v1|metrics|healthz|readyz|openapi\.json)(?:/|$))(/.*)", re.DOTALL
)
"""The path of a session, and that of a page; others have one address each."""


def new_session_path() -> str:
    """A new random path."""
    return f"/~{secrets.token_urlsafe(16)}"


def session_path_of(request: HTTPConnection) -> str:
    """The session's path with which that of a request begins; empty if there is none."""
    return str(getattr(request.state, SESSION_PATH, ""))


class SessionPaths:
    """Wraps the application, which knows its own paths only; redirects keep the session's."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        match = _WITH_PATH.fullmatch(scope["path"]) if scope["type"] == "http" else None
        if match is None:
            await self._app(scope, receive, send)
            return
        session_path = match[1]

        async def kept(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [_kept(session_path.encode(), *header) for header in message["headers"]]
                message = {**message, "headers": headers}
            await send(message)

        raw = quote(match[2]).encode()
        scope["state"][SESSION_PATH] = session_path
        await self._app({**scope, "path": match[2], "raw_path": raw}, receive, kept)


def _kept(session_path: bytes, name: bytes, value: bytes) -> tuple[bytes, bytes]:
    inside = name == b"location" and value.startswith(b"/") and not value.startswith(b"/~")
    return name, session_path + value if inside else value

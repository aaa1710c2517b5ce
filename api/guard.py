"""Before and after every request: ids, sizes, deadlines, headers, the log, the audit trail."""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api import problems
from api.logs import REQUEST, log
from lab.errors import LabError

if TYPE_CHECKING:
    from api.service import Service

_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"referrer-policy", b"no-referrer"),
)
"""What answers say unless a route says otherwise."""
_NOT_TRACED = ("/healthz", "/readyz", "/metrics")
_READS = ("GET", "HEAD", "OPTIONS")


class TooLarge(LabError):
    """The body of a request is larger than the service takes."""

    http_status = 413


class TooSlow(LabError):
    """The body of a request did not arrive in time."""

    http_status = 408


class Guard:
    """Wraps the application."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope.setdefault("state", {})
        given = _header(scope, b"x-request-id")
        request = given if _ID.fullmatch(given) else uuid.uuid4().hex
        token = REQUEST.set(request)
        began = time.monotonic()
        answer = _Answer(send, request, partial(self._note, scope, request))
        try:
            await self._traced(scope, receive, answer, request)
        finally:
            extra = {"method": scope["method"], "path": scope["path"]}
            took = round(time.monotonic() - began, 4)
            log.info("request", extra={**_told(scope, answer.status), **extra, "seconds": took})
            REQUEST.reset(token)

    async def _traced(self, scope: Scope, receive: Receive, answer: _Answer, request: str) -> None:
        trace = self._service.trace
        if trace is None or scope["path"] in _NOT_TRACED:
            await self._answer(scope, receive, answer)
            return
        parent = _header(scope, b"traceparent")
        with trace.request(scope["method"], scope["path"], request, parent) as told:
            try:
                await self._answer(scope, receive, answer)
            finally:
                told(getattr(scope.get("route"), "path_format", ""), answer.status)

    async def _answer(self, scope: Scope, receive: Receive, answer: _Answer) -> None:
        try:
            body = await self._body(scope, receive)
        except (TooLarge, TooSlow) as error:
            response = problems.respond(problems.problem(error), {"Connection": "close"})
            await response(scope, receive, answer)
            return
        await self._app(scope, _Replay(body, receive), answer)

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        """The body, read within limits of size and time; raises TooLarge, TooSlow."""
        serve = self._service.settings.serve
        too_large = TooLarge(f"a request has at most {serve.body_limit} bytes here")
        length = _header(scope, b"content-length")
        if length.isdecimal() and int(length) > serve.body_limit:
            raise too_large
        parts, size, deadline = [], 0, time.monotonic() + serve.request_timeout
        while True:
            try:
                left = max(0.001, deadline - time.monotonic())
                message = await asyncio.wait_for(receive(), left)
            except asyncio.TimeoutError:
                raise TooSlow(f"the request took more than {serve.request_timeout:g} s") from None
            part = message.get("body", b"")
            size += len(part)
            if size > serve.body_limit:
                raise too_large
            parts.append(part)
            if not message.get("more_body"):
                return b"".join(parts)

    async def _note(self, scope: Scope, request: str, status: int) -> None:
        """Note in the audit trail what was to change something, before it is answered."""
        caller = scope["state"].get("caller")
        if scope["method"] in _READS or caller is None:
            return
        try:
            await run_in_threadpool(
                self._service.store.audit.add,
                target=scope["path"][:200],
                project=caller.token.project,
                request=request,
                **_told(scope, status),
            )
        except LabError as error:
            log.error("the audit trail cannot be written", extra={"error": error.what})


class _Answer:
    """Sends an answer on, with our headers; ``before`` is told its status first."""

    def __init__(self, send: Send, request: str, before: Callable[[int], Awaitable[None]]) -> None:
        self._send = send
        self._before = before
        self._request = request.encode()
        self.status = 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            await self._before(self.status)
            headers = list(message.get("headers", ()))
            said = {name.lower() for name, _ in headers}
            headers += [header for header in _HEADERS if header[0] not in said]
            headers.append((b"x-request-id", self._request))
            message = {**message, "headers": headers}
        await self._send(message)


class _Replay:
    """Gives a body that was read already; what the client does after that comes from it."""

    def __init__(self, body: bytes, receive: Receive) -> None:
        self._body: bytes | None = body
        self._receive = receive

    async def __call__(self) -> Message:
        if self._body is None:
            return await self._receive()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}


def _told(scope: Scope, status: int) -> dict[str, Any]:
    """Who did what from where, and how it ended."""
    caller = scope["state"].get("caller")
    return {
        "token": caller.token.id if caller else "",
        "action": getattr(scope.get("route"), "operation_id", None) or "",
        "status": status,
        "address": (scope.get("client") or ("",))[0],
    }


def _header(scope: Scope, name: bytes) -> str:
    return next((v.decode("latin-1") for k, v in scope["headers"] if k == name), "")

"""Before and after every request: ids, sizes, deadlines, headers, the log, the audit trail."""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lab.api.http import problems
from lab.api.http.auth import Caller, bearer, identified, note
from lab.api.telemetry.logs import REQUEST, log
from lab.api.web.place import place_of
from lab.api.web.request import visitor
from lab.errors import ROOM_RETRY, HostUnfit, LabError

if TYPE_CHECKING:
    from lab.api.service import Service

_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"referrer-policy", b"no-referrer"),
)
"""What answers say unless a route says otherwise."""
_TLS = ((b"strict-transport-security", b"max-age=2592000"),)
"""What answers say where they are encrypted, if the settings say that the host's ports all are."""
_FOR_TOKENS = ("/v1/", "/openapi.json")
"""The paths of which nothing is read or answered without a valid token."""
_FORM = 16 << 10
"""Bytes that a request has at most which came without a token: the forms of the page."""
_MOST = 1000
"""Requests that are answered at a time, /healthz apart."""
_SECRET = ("getSsh", "getLab", "listLabs", "labPage")
"""The operations that read keys or passwords."""
_AGAIN = 3600.0
"""Seconds after which a token that reads the same again is noted again."""
_NOTED = 10_000
_NOT_TRACED = ("/healthz", "/readyz", "/metrics")
_READS = ("GET", "HEAD", "OPTIONS")


class TooLarge(LabError):
    """The body of a request is larger than the service takes."""

    http_status = 413


class TooSlow(LabError):
    """The body of a request did not arrive in time."""

    http_status = 408


class Overloaded(HostUnfit):
    """The service answers as many requests as it can."""


class Guard:
    """Wraps the application."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service
        self._answering = 0
        self._noted: dict[tuple[str, str], float] = {}

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
        more = _TLS if scope["scheme"] == "https" and self._service.settings.serve.hsts else ()
        answer = _Answer(send, request, partial(self._note, scope), more)
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
        with ExitStack() as held:
            try:
                caller = await _caller(scope)
                if caller is not None:
                    held.enter_context(self._service.requests.seat(caller.token.id))
                body = await self._body(scope, receive)
                if self._answering >= _MOST and scope["path"] != "/healthz":
                    raise Overloaded(
                        "too many requests are being answered",
                        hint="try again later",
                        retry_after=ROOM_RETRY,
                    )
            except LabError as error:
                headers = problems.headers_of(error) | (
                    {"Connection": "close"} if _has_body(scope) else {}
                )
                await problems.respond(problems.problem(error), headers)(scope, receive, answer)
                return
            self._answering += 1
            try:
                await self._app(scope, _Replay(body, receive), answer)
            finally:
                self._answering -= 1

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        """The body, read within limits of size and time; raises TooLarge, TooSlow."""
        serve = self._service.settings.serve
        most = serve.body_limit if "caller" in scope["state"] else min(_FORM, serve.body_limit)
        too_large = TooLarge(f"a request has at most {most} bytes here")
        length = _header(scope, b"content-length")
        if length.isdecimal() and int(length) > most:
            raise too_large
        parts, size, deadline = [], 0, time.monotonic() + serve.request_timeout
        while True:
            try:
                left = max(0.001, deadline - time.monotonic())
                message = await asyncio.wait_for(receive(), left)
            except asyncio.TimeoutError:
                raise TooSlow(f"the request took more than {serve.request_timeout:g} s") from None
            if message["type"] == "http.disconnect":
                raise TooSlow("the connection was closed before the request was complete")
            part = message.get("body", b"")
            size += len(part)
            if size > most:
                raise too_large
            parts.append(part)
            if not message.get("more_body"):
                return b"".join(parts)

    async def _note(self, scope: Scope, status: int) -> None:
        """Note in the audit trail, before it is answered, what changes something or has secrets."""
        caller = scope["state"].get("caller")
        if caller is None:
            return
        told = _told(scope, status)
        target, project = scope["path"][:200], caller.token.project
        if scope["method"] in _READS and not self._tells(told, target, caller):
            return
        await run_in_threadpool(note, self._service.store, target=target, project=project, **told)

    def _tells(self, told: Mapping[str, Any], target: str, caller: Caller) -> bool:
        """Whether an answer has keys or passwords, which that token did not read lately."""
        if told["action"] not in _SECRET or told["status"] >= 400 or not caller.may("use"):
            return False
        key, now = (caller.token.id, target), time.monotonic()
        if len(self._noted) >= _NOTED:
            self._noted.clear()
        if self._noted.get(key, -_AGAIN) + _AGAIN > now:
            return False
        self._noted[key] = now
        return True


async def _caller(scope: Scope) -> Caller | None:
    """Whose seat a request takes: its token's, or its session's; None if it needs neither.

    Raises as ``identified``.
    """
    request = HTTPConnection(scope)
    if scope["path"].startswith(_FOR_TOKENS):
        return await run_in_threadpool(lambda: identified(request, bearer(request)))
    # Not the caller yet: a form may come from elsewhere, which the page's routes check.
    return await run_in_threadpool(visitor, request) if place_of(request) else None


def _has_body(scope: Scope) -> bool:
    length = _header(scope, b"content-length") or "0"
    return length != "0" or _header(scope, b"transfer-encoding") != ""


class _Answer:
    """Sends an answer on, with our headers; ``before`` is told its status first."""

    def __init__(
        self,
        send: Send,
        request: str,
        before: Callable[[int], Awaitable[None]],
        more: Iterable[tuple[bytes, bytes]],
    ) -> None:
        self._send = send
        self._before = before
        self._more = [(b"x-request-id", request.encode()), *more]
        self.status = 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            await self._before(self.status)
            headers = list(message.get("headers", ()))
            said = {name.lower() for name, _ in headers}
            headers += [header for header in _HEADERS if header[0] not in said]
            message = {**message, "headers": headers + self._more}
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

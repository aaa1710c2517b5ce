"""Before and after every request: ids, sizes, deadlines, headers, the log, the audit trail."""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lab.api.core.core import Core
from lab.api.core.problem import problem
from lab.api.core.threads import TOKEN, in_thread
from lab.api.http import problems
from lab.api.http.auth import Caller, bearer, identified, known, note
from lab.api.http.dependencies import core_of
from lab.api.http.forward import Forward
from lab.api.http.listing import LabSelection, listed_at_once
from lab.api.http.peers import is_peer, via
from lab.api.http.session_path import session_path_of
from lab.api.http.sessions import session_caller
from lab.api.telemetry.current import REQUEST
from lab.api.telemetry.logs import log
from lab.errors import ROOM_RETRY, HostUnfit, LabError, Unauthorized
from lab.values import dataclass

_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"referrer-policy", b"no-referrer"),
)
"""Headers of answers, unless a route sets them."""
_TLS = ((b"strict-transport-security", b"max-age=2592000"),)
"""Headers of answers over TLS, if the setting hsts says that all ports of the host have TLS."""
_FOR_TOKENS = ("/v1/", "/openapi.json")
"""The paths that need a valid token: without one, no body is read."""
_FORM = 16 << 10
"""The largest body without a token, in bytes: forms of the page."""
_MOST = 1000
"""Requests that are answered at the same time, /healthz apart."""
_SECRET = ("getSsh", "getLab", "listLabs", "labPage")
"""The operations that read keys or passwords."""
_AGAIN = 3600.0
"""Seconds after which the same read by a token is audited again."""
_NOTED = 10_000
_NOT_TRACED = ("/healthz", "/readyz", "/metrics")
_READS = ("GET", "HEAD", "OPTIONS")


@dataclass(frozen=True)
class _Route:
    """A route, as the log, the trace and the audit trail name it."""

    operation_id: str
    path_format: str


_LISTED = _Route("listLabs", "/v1/labs")


class TooLarge(LabError):
    """The body of a request is larger than the service takes."""

    http_status = 413


class TooSlow(LabError):
    """The body of a request did not arrive in time."""

    http_status = 408


class Overloaded(HostUnfit):
    """The limit of requests that are answered at the same time is reached."""


class RequestMiddleware:
    """Wraps the application: identifies, limits, logs and audits requests."""

    def __init__(self, app: ASGIApp, core: Core, forward: Forward) -> None:
        self._app = app
        self._core = core
        self._answering = 0
        self._forward = forward
        self._noted: dict[tuple[str, str], float] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            if scope["type"] != "websocket" or not await self._forward.socket(scope, receive, send):
                await self._app(scope, receive, send)
            return
        scope.setdefault("state", {})
        given = _header(scope, b"x-request-id")
        request = given if _ID.fullmatch(given) else uuid.uuid4().hex
        token = REQUEST.set(request)
        began = time.monotonic()
        more = _TLS if scope["scheme"] == "https" and self._core.settings.serve.hsts else ()
        answer = _Answer(send, request, partial(self._note, scope), more)
        try:
            await self._traced(scope, receive, answer, request)
        finally:
            extra = {"method": scope["method"], "path": scope["path"]}
            took = round(time.monotonic() - began, 4)
            log.info("request", extra={**_facts(scope, answer.status), **extra, "seconds": took})
            REQUEST.reset(token)

    async def _traced(self, scope: Scope, receive: Receive, answer: _Answer, request: str) -> None:
        trace = self._core.trace
        if trace is None or scope["path"] in _NOT_TRACED:
            await self._answer(scope, receive, answer)
            return
        parent = _header(scope, b"traceparent")
        with trace.request(scope["method"], scope["path"], request, parent) as answered:
            try:
                await self._answer(scope, receive, answer)
            finally:
                answered(getattr(scope.get("route"), "path_format", ""), answer.status)

    async def _answer(self, scope: Scope, receive: Receive, answer: _Answer) -> None:
        with ExitStack() as held:
            try:
                caller = await _caller(scope)
                if caller is not None:
                    TOKEN.set(caller.token.id)
                    held.enter_context(self._core.limits.requests.slot(caller.token.id))
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
                await problems.respond(problem(error), headers)(scope, receive, answer)
                return
            self._answering += 1
            try:
                app = await self._application(scope, caller, body)
                await app(scope, _Replay(body, receive), answer)
            except LabError as error:  # of another host; routes answer theirs themselves
                if answer.status:
                    raise
                headers = problems.headers_of(error)
                await problems.respond(problem(error), headers)(scope, receive, answer)
            finally:
                self._answering -= 1

    async def _application(self, scope: Scope, caller: Caller | None, body: bytes) -> ASGIApp:
        """What answers a request; raises as ``Forward.to``."""
        if caller is None:
            return self._app
        if (listed := self._listed(scope, caller)) is not None:
            return listed
        host = await self._forward.to(scope)
        return self._app if host is None else self._forward.http(host, body)

    def _listed(self, scope: Scope, caller: Caller) -> Response | None:
        """The first page of all labs, which programs poll; None if the request is another.

        None as well where something is to be read first. Routing and the parameters of the route
        take half of the processor time of an answer that is known.
        """
        asked = scope["method"], scope["path"], scope["query_string"]
        if asked != ("GET", _LISTED.path_format, b"") or not caller.may("read"):
            return None
        body = listed_at_once(self._core, caller, LabSelection())
        if body is None:
            return None
        scope["route"] = _LISTED
        return Response(body, media_type="application/json")

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        """The body, read within limits of size and time; raises TooLarge, TooSlow."""
        serve = self._core.settings.serve
        if not _has_body(scope):
            return b""  # to wait for none would take a task
        most = serve.body_limit if "caller" in scope["state"] else min(_FORM, serve.body_limit)
        too_large = TooLarge(f"the body of the request exceeds {most} bytes")
        length = _header(scope, b"content-length")
        if length.isdecimal() and int(length) > most:
            raise too_large
        parts, size, deadline = [], 0, time.monotonic() + serve.request_timeout
        while True:
            try:
                left = max(0.001, deadline - time.monotonic())
                message = await asyncio.wait_for(receive(), left)
            except asyncio.TimeoutError:
                raise TooSlow(
                    f"the request did not arrive within {serve.request_timeout:g} s"
                ) from None
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
        """Audit a request that changes something or reads secrets, before it is answered."""
        caller = scope["state"].get("caller")
        if caller is None:
            return
        facts = _facts(scope, status)
        target, project = scope["path"][:200], caller.token.project
        if scope["method"] in _READS and not self._reveals(facts, target, caller):
            return
        more = {"target": target, "project": project, "via": via(scope)}
        await in_thread(note, self._core.store, **more, **facts)

    def _reveals(self, facts: Mapping[str, Any], target: str, caller: Caller) -> bool:
        """Whether an answer has keys or passwords that the token has not read recently."""
        if facts["action"] not in _SECRET or facts["status"] >= 400 or not caller.may("use"):
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
        text = bearer(request)
        return known(request, text) or await in_thread(_identified, request, text)
    # Not the caller yet: a form may come from elsewhere, which the page's routes check.
    return await in_thread(session_caller, request) if session_path_of(request) else None


def _identified(request: HTTPConnection, text: str | None) -> Caller:
    """As ``identified``; a token that another host of the fleet has sent may be new to this one."""
    core = core_of(request)
    if core.fleet is not None and is_peer(request.scope) and text:
        try:
            core.known.check(core.store, text)
        except Unauthorized:
            with suppress(HostUnfit):
                core.fleet.share_tokens(core.store)
    return identified(request, text)


def _has_body(scope: Scope) -> bool:
    length = _header(scope, b"content-length") or "0"
    return length != "0" or _header(scope, b"transfer-encoding") != ""


class _Answer:
    """Sends an answer, with our headers; ``before`` is called with its status first."""

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
            names = {name.lower() for name, _ in headers}
            headers += [header for header in _HEADERS if header[0] not in names]
            message = {**message, "headers": headers + self._more}
        await self._send(message)


class _Replay:
    """Receives a body that was read already, then what the client sends after it."""

    def __init__(self, body: bytes, receive: Receive) -> None:
        self._body: bytes | None = body
        self._receive = receive

    async def __call__(self) -> Message:
        if self._body is None:
            return await self._receive()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}


def _facts(scope: Scope, status: int) -> dict[str, Any]:
    """Token, operation, status and address of a request."""
    caller = scope["state"].get("caller")
    return {
        "token": caller.token.id if caller else "",
        "action": getattr(scope.get("route"), "operation_id", None) or "",
        "status": status,
        "address": (scope.get("client") or ("",))[0],
    }


def _header(scope: Scope, name: bytes) -> str:
    return next((v.decode("latin-1") for k, v in scope["headers"] if k == name), "")

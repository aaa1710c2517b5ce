"""Requests about labs and jobs of other hosts of a fleet: they are answered by those hosts.

Any host answers for all: it passes a request on as it came, token included, over the fleet's TLS,
and the answer back as it arrives. A host's own labs need neither the fleet's database nor this.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any
from urllib.parse import parse_qsl, quote

import httpx
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

from lab.api.core.core import Core
from lab.api.core.fleet import Fleet
from lab.api.core.problem import problem
from lab.api.core.threads import in_thread
from lab.api.http.auth import bearer, identified
from lab.api.http.peers import HEADERS, is_peer, said
from lab.api.http.session_path import SESSION_PATH
from lab.api.telemetry.current import REQUEST
from lab.errors import ROOM_RETRY, HostUnfit, LabError, NotFound, Unauthorized
from lab.fleet import ids, known, placements
from lab.fleet.hosts import Host
from lab.names import FLEET_HOST, LAB_NAME_LIMIT

_PATHS = re.compile(
    rf"/v1/(?:labs/([a-z][a-z0-9-]{{0,{LAB_NAME_LIMIT - 1}}}(?:@[a-z0-9-]{{1,63}})?)"
    r"|jobs/([0-9a-f-]{1,64}))(?:/.*)?"
)
_LISTS = ("/v1/jobs", "/v1/events", "/v1/audit")
"""Lists that each host has of its own: ``?host=`` names the one that is meant."""
_PAGES = re.compile(
    rf"/(?:labs/([a-z][a-z0-9-]{{0,{LAB_NAME_LIMIT - 1}}})|jobs/([0-9a-f-]{{1,64}}))(?:/.*)?"
)
"""Foreign labs, whose names have their host, have no page: its links would lead to another lab."""
_LIST_PAGE = "/jobs"
_BETWEEN_HOSTS = ("/v1/labs/", "/v1/jobs/", "/v1/fleet/")
"""What one host passes on to another, as well as lists and pages."""
_SAFE = "/:@!$&'()*+,;=-._~"
"""What a path has as it is (RFC 3986, 3.3)."""
_HOP = frozenset(
    (b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization",
     b"te", b"trailer", b"transfer-encoding", b"upgrade", b"host", b"content-length",
     b"x-request-id", b"cookie", *HEADERS)
)  # fmt: skip
"""Headers of one connection (RFC 9110, 7.6.1), of one host, and those that httpx and we set."""
_ID = b"x-request-id"
"""The log of each host has a request by one id."""
_CONNECT = 3.0
_PAGE = 20.0
"""Seconds of silence of a page, which waits for nothing."""
_LONGEST = 660.0
"""Seconds of silence: more than a request may wait for its job."""


class Broken(HostUnfit):
    """An answer that was passed on ended before its end."""


class Forward:
    """Passes requests on; for use in the service's loop."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._client: httpx.AsyncClient | None = None

    async def to(self, scope: Scope) -> Host | None:
        """The host that a request is to be answered by; None: this one.

        Raises NotFound, HostUnfit if that host is lost or not known, Unreachable.
        """
        fleet = self._core.fleet
        if fleet is None:
            return None
        path: str = scope["path"]
        parts = path.split("/")
        peer = is_peer(scope)
        between = path in _LISTS or path.startswith(_BETWEEN_HOSTS) or _is_page(scope)
        if peer and (not between or "." in parts or ".." in parts):
            raise NotFound("there is no such resource")
        if path in _LISTS:
            at = "" if peer else _host_in(scope["query_string"])
            return await self._host(fleet, at)
        match = _PATHS.fullmatch(path)
        if match is None or "." in parts or ".." in parts:
            return None
        lab, job = match[1] or "", match[2] or ""
        own = f"@{fleet.name}"
        if lab.endswith(own):  # a lab of ours, whatever holds its name
            scope["path"] = path.replace(lab, lab.removesuffix(own), 1)
            return None
        if peer:
            return None
        return await self._host(fleet, await in_thread(self._at, fleet, lab, job))

    async def page_to(self, scope: Scope) -> Host | None:
        """As ``to``, of a page for a browser that is signed in here."""
        fleet, path = self._core.fleet, scope["path"]
        if fleet is None or is_peer(scope) or not _is_page(scope):
            return None
        match = _PAGES.fullmatch(path)
        if match is None:
            return await self._host(fleet, _host_in(scope["query_string"]))
        at = await in_thread(self._at, fleet, match[1] or "", match[2] or "")
        return await self._host(fleet, at)

    async def _host(self, fleet: Fleet, name: str) -> Host | None:
        """The host of a name; None for none, and for this one. Raises NotFound, HostUnfit."""
        return None if name in ("", fleet.name) else await in_thread(self._reached, fleet, name)

    def _at(self, fleet: Fleet, lab: str, job: str) -> str:
        """The name of the host that has a lab or a job; empty for none, and for this one."""
        store = self._core.store
        if job:
            if store.jobs.find(job) is not None:
                return ""
            at = ids.host_of(job, fleet.names)
            if at is not None:
                return at
            placed = placements.find(fleet.database, job)
            began = placed is not None and placed.state in ("placed", "claimed", "ended")
            return placed.host if placed and began else ""
        name, _, at = lab.partition("@")
        if at:
            return at
        foreign = fleet.is_foreign(name)
        if not foreign and store.labs.find(name) is not None:
            return ""
        holder = known.holder(fleet.database, name)
        if foreign and holder is None:
            raise NotFound(
                f"the lab {name} of this host is foreign: nobody holds its name",
                hint=f"`lab host adopt {name}@{fleet.name}`, or name it {name}@{fleet.name}",
            )
        return holder.host if holder else ""

    def _reached(self, fleet: Fleet, name: str) -> Host:
        host = fleet.host(name)
        if host is not None and host.state == "lost":  # as of some seconds ago
            fleet.refresh()
            host = fleet.host(name)
        if host is None:
            raise NotFound(f"the fleet has no host {name}", hint="`lab host ls` shows them")
        if host.state == "lost":
            raise HostUnfit(
                f"the host {name} is lost: what it has cannot be reached",
                hint="it is listed again when its service is started",
                retry_after=ROOM_RETRY,
            )
        return host

    def http(self, host: Host, body: bytes) -> ASGIApp:
        """An application that has ``host`` answer a request whose body was read."""

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            await _while_wanted(self._http(host, body, scope, send), receive)

        return app

    async def page(self, host: Host, body: bytes, scope: Scope, token: str) -> Response:
        """The page that ``host`` answers with; ``token``: the id of the session's token.

        A session and its cookie are one host's own; tokens are the fleet's. Raises HostUnfit.
        """
        return _Given(await self.answer(host, body, scope, token))

    async def answer(
        self, host: Host, body: bytes, scope: Scope, token: str = ""
    ) -> httpx.Response:
        """The head of a host's answer; its body is still to be read. Raises HostUnfit."""
        try:
            return await self._sent(host, body, scope, token)
        except httpx.ConnectError:  # nothing was sent: it may be elsewhere since its last start
            host = await in_thread(self._again, host)
        try:
            return await self._sent(host, body, scope, token)
        except httpx.ConnectError as error:
            raise _unreachable(host, str(error)) from error

    async def _http(self, host: Host, body: bytes, scope: Scope, send: Send) -> None:
        answer = await self.answer(host, body, scope)
        try:
            await _pass(answer, send)
        finally:
            await answer.aclose()

    def _again(self, host: Host) -> Host:
        """The host as it is now; raises HostUnfit if that is where it was, Unreachable."""
        assert self._core.fleet is not None  # noqa: S101  # for the type checker
        self._core.fleet.refresh()
        now = self._core.fleet.host(host.name)
        if now is None or now.url == host.url:
            raise _unreachable(host, "it cannot be connected to")
        return now

    async def _sent(self, host: Host, body: bytes, scope: Scope, token: str) -> httpx.Response:
        """The head of a host's answer; raises ConnectError, HostUnfit."""
        request = self._open().build_request(
            scope["method"],
            httpx.URL(host.url).copy_with(raw_path=_raw_path(scope)),
            headers=[*self._headers(scope, token), (_ID, REQUEST.get().encode())],
            content=body or None,
            extensions={"sni_hostname": host.name},
            timeout=httpx.Timeout(_PAGE if token else _LONGEST, connect=_CONNECT),
        )
        try:
            return await self._open().send(request, stream=True)
        except httpx.ConnectError:
            raise
        except httpx.HTTPError as error:
            raise _unreachable(host, type(error).__name__) from error

    def _headers(self, scope: Scope, token: str = "") -> list[tuple[bytes, bytes]]:
        return _kept(scope["headers"]) + said(scope, token)

    async def socket(self, scope: Scope, receive: Receive, send: Send) -> bool:
        """Connect a WebSocket with one of the same path at its host, until either ends.

        False if it is of this host: nothing was done.
        """
        if self._core.fleet is None:
            return False
        if is_peer(scope):
            try:
                await self.to(scope)  # names may have its host
            except LabError as error:
                await _refuse(problem(error), receive, send)
                return True
            return False
        connection = HTTPConnection(scope)
        try:
            await in_thread(identified, connection, bearer(connection))
            host = await self.to(scope)
        except Unauthorized:
            return False  # its route refuses it
        except LabError as error:
            await _refuse(problem(error), receive, send)
            return True
        if host is not None:
            await self._socket(self._core.fleet, host, scope, receive, send)
        return host is not None

    async def _socket(
        self, fleet: Fleet, host: Host, scope: Scope, receive: Receive, send: Send
    ) -> None:
        url = httpx.URL(host.url).copy_with(scheme="wss", raw_path=_raw_path(scope))
        given = [
            (name.decode("latin-1"), value.decode("latin-1"))
            for name, value in self._headers(scope)
            if not name.lower().startswith(b"sec-websocket")
        ]
        try:
            peer = await connect(
                str(url),
                ssl=fleet.context(),
                server_hostname=host.name,
                additional_headers=given,
                compression=None,
                max_size=None,
                open_timeout=_CONNECT,
                proxy=None,
            )
        except InvalidStatus as error:
            said: Any = None
            with contextlib.suppress(ValueError, RecursionError):
                said = json.loads(error.response.body or b"")
            found = said if isinstance(said, dict) else {}
            await _refuse({"status": error.response.status_code, **found}, receive, send)
            return
        except (OSError, WebSocketException, asyncio.TimeoutError) as error:
            await _refuse(problem(_unreachable(host, type(error).__name__)), receive, send)
            return
        await receive()  # websocket.connect
        async with peer:
            await send({"type": "websocket.accept"})
            ways = [asyncio.ensure_future(way) for way in (_up(receive, peer), _down(peer, send))]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
        with contextlib.suppress(RuntimeError):  # closed already
            code, why = peer.close_code or 1000, peer.close_reason or ""
            await send({"type": "websocket.close", "code": code, "reason": why})

    def _open(self) -> httpx.AsyncClient:
        if self._client is None:
            assert self._core.fleet is not None  # noqa: S101  # for the type checker
            self._client = httpx.AsyncClient(
                verify=self._core.fleet.context(),
                timeout=httpx.Timeout(_LONGEST, connect=_CONNECT),
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
                trust_env=False,
            )
        return self._client


class _Given(Response):
    """What another host has answered, as it arrives."""

    def __init__(self, answer: httpx.Response) -> None:
        super().__init__()
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer."""
        del scope
        try:
            await _while_wanted(_pass(self._answer, send), receive)
        finally:
            await self._answer.aclose()


class Passed(Response):
    """What another host answers to a request of ours; ``otherwise``: if it does not."""

    def __init__(self, host: Host, path: str, otherwise: Response) -> None:
        super().__init__()
        self._host, self._path, self._otherwise = host, path, otherwise

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer."""
        forward: Forward = scope["app"].state.forward
        try:
            answer = await forward.answer(self._host, b"", _post(scope, self._path))
        except LabError:
            await self._otherwise(scope, receive, send)
            return
        try:
            # Each answer to a job has its place; others say nothing about a job that is placed.
            if "location" in answer.headers:
                await _pass(answer, send)
            else:
                await self._otherwise(scope, receive, send)
        finally:
            await answer.aclose()


def _host_in(query: bytes) -> str:
    """The host that a query names; empty for none, and for what its route refuses."""
    found = dict(parse_qsl(query.decode("latin-1"))).get("host", "")
    return found if re.fullmatch(FLEET_HOST, found) else ""


def _post(scope: Scope, path: str) -> Scope:
    return {**scope, "method": "POST", "path": path}


async def _while_wanted(work: Coroutine[Any, Any, None], receive: Receive) -> None:
    """Answer until the client leaves: who sends does not hear of that, and a stream has no end."""
    passing, gone = asyncio.ensure_future(work), asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait((passing, gone), return_when=asyncio.FIRST_COMPLETED)
    finally:
        gone.cancel()
        over = passing.done()
        if not over:
            passing.cancel()
        await asyncio.gather(passing, gone, return_exceptions=True)
    if over:
        passing.result()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _pass(answer: httpx.Response, send: Send) -> None:
    """Send what another host answers, as it arrives."""
    headers = _kept([(name.lower(), value) for name, value in answer.headers.raw])
    if length := answer.headers.get("content-length"):
        headers.append((b"content-length", length.encode()))
    status = answer.status_code
    await send({"type": "http.response.start", "status": status, "headers": headers})
    try:
        async for piece in answer.aiter_raw():
            await send({"type": "http.response.body", "body": piece, "more_body": True})
    except httpx.HTTPError as error:  # the connection is closed, so that nobody takes it for whole
        raise Broken(f"the answer of another host broke: {type(error).__name__}") from error
    await send({"type": "http.response.body", "body": b""})


async def _up(receive: Receive, peer: Any) -> None:
    """What the client sends, to the other host."""
    with contextlib.suppress(ConnectionClosed):
        while (message := await receive())["type"] != "websocket.disconnect":
            data = message.get("bytes")
            await peer.send(message.get("text", "") if data is None else data)


async def _down(peer: Any, send: Send) -> None:
    """What the other host sends, to the client."""
    with contextlib.suppress(ConnectionClosed):
        async for data in peer:
            kind = "text" if isinstance(data, str) else "bytes"
            await send({"type": "websocket.send", kind: data})


async def _refuse(found: Mapping[str, Any], receive: Receive, send: Send) -> None:
    """Answer a WebSocket's request with a problem, as routes do (ASGI, "Denial Response")."""
    await receive()  # websocket.connect
    body, media = json.dumps(dict(found)).encode(), b"application/problem+json"
    headers = [(b"content-type", media), (b"content-length", str(len(body)).encode())]
    kind = "websocket.http.response"
    await send({"type": f"{kind}.start", "status": int(found["status"]), "headers": headers})
    await send({"type": f"{kind}.body", "body": body})


def _kept(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    return [(name, value) for name, value in headers if name.lower() not in _HOP]


def _is_page(scope: Scope) -> bool:
    """Whether a path is of a session's page that may be another host's."""
    path: str = scope["path"]
    plain = not {".", ".."} & set(path.split("/"))
    found = path == _LIST_PAGE or _PAGES.fullmatch(path) is not None
    return plain and found and bool(scope.get("state", {}).get(SESSION_PATH))


def _raw_path(scope: Scope) -> bytes:
    whole = scope.get("state", {}).get(SESSION_PATH, "") + scope["path"]
    path = quote(whole, safe=_SAFE).encode()
    query: bytes = scope.get("query_string", b"")
    return path + (b"?" + query if query else b"")


def _unreachable(host: Host, why: str) -> HostUnfit:
    return HostUnfit(
        f"the host {host.name} does not answer: {why}",
        hint="`lab host ls` shows when it was heard of; its labs run on meanwhile",
        retry_after=ROOM_RETRY,
    )

"""The process: a service behind uvicorn, from start to shutdown.

uvicorn runs in a thread of its own, where it handles no signals; they are handled here.
"""

from __future__ import annotations

import asyncio
import gc
import resource
import signal
import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from types import FrameType

import uvicorn
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from lab.api.app import create_app
from lab.api.core.fleet import CERTIFIED, Fleet
from lab.api.core.threads import in_thread
from lab.api.http.peers import received
from lab.api.service import Service
from lab.api.telemetry.logs import configure, log
from lab.api.wire.connections import AT_ONCE, Connections, Listening, protocol
from lab.config.servefile import Serve
from lab.config.settings import Settings
from lab.errors import HostUnfit, InvalidSpec
from lab.fleet.database import Unreachable
from lab.lifecycle.nodes import home_ca
from lab.lifecycle.nodes.connection import warning
from lab.lifecycle.nodes.ports import check_published
from lab.lifecycle.service import token as tokens
from lab.lifecycle.service.token import NewToken

HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_KEEP_ALIVE = 30
_GRACE = 5
_FILES = 4096
"""Limit of open files that we set, if the host allows it: a connection is one."""
_COLLECTED_EVERY = 50_000
"""Objects between two looks for garbage: a look at these is a pause of 10 ms."""
_MESSAGE = 1 << 20
"""The largest message of a WebSocket, in bytes."""


def serve(
    settings: Settings,
    *,
    first: Callable[[NewToken], None],
    started: Callable[[str], None],
    quiet: bool = False,
) -> None:
    """Serve until SIGTERM, SIGINT or SIGHUP.

    ``first`` gets the token that the first start creates, ``started`` the service's URL. Raises
    HostUnfit if the host cannot run labs, or the address is in use.
    """
    configure(quiet=quiet)
    _raise_file_limit()
    check_published(settings.publish)
    with closing(listen(settings.serve)) as listening, closing(Service(settings)) as service:
        service.open()
        created = tokens.first(service.core.store, settings.home)
        if created is not None:
            first(created)
        warn(settings)
        app = create_app(service.core, service.jobs)
        serve = settings.serve
        with ExitStack() as peers, ThreadPoolExecutor(1, "lab-http") as thread:
            main = uvicorn.Server(config(app, serve, listening.connections))
            servers: list[tuple[uvicorn.Server, socket.socket]] = [(main, listening)]
            if service.core.fleet is not None:
                servers.append(_for_peers(service, service.core.fleet, app, peers))
            with _signals(service, [server for server, _ in servers]):
                gc.freeze()  # what exists now stays: collecting then takes milliseconds
                gc.set_threshold(_COLLECTED_EVERY, 20, 50)
                started(_url(serve, listening))
                thread.submit(asyncio.run, _run(servers)).result()


async def _run(servers: Sequence[tuple[uvicorn.Server, socket.socket]]) -> None:
    """Serve at each socket until a signal."""
    await asyncio.gather(*(server.serve(sockets=[one]) for server, one in servers))


def _for_peers(
    service: Service, fleet: Fleet, app: ASGIApp, held: ExitStack
) -> tuple[uvicorn.Server, socket.socket]:
    """Join the fleet; a server for its other hosts. Raises HostUnfit, Conflict.

    The same application, at an address of its own, for those who show a certificate of the fleet.
    """

    async def from_peer(scope: Scope, receive: Receive, send: Send) -> None:
        name, digest = scope["state"].get(CERTIFIED, ("", ""))
        if await in_thread(_is_member, fleet, name, digest):
            await app(received(scope, name), receive, send)
        elif scope["type"] == "websocket":
            await receive()  # websocket.connect
            await send({"type": "websocket.close"})  # answered with 403
        else:
            await PlainTextResponse(f"{name} is no host of the fleet", 403)(scope, receive, send)

    serve = service.core.settings.serve
    if not serve.fleet_url and (serve.fleet_address or serve.address) in ("0.0.0.0", "::"):  # noqa: S104  compared only
        raise InvalidSpec(
            "[serve]: other hosts of the fleet need an address of this one",
            hint="set fleet_url, such as https://h1.example:7443, or fleet_address",
        )
    key, certificate, authority = fleet.files
    ours = replace(
        serve, address=serve.fleet_address or serve.address, port=serve.fleet_port, proxy="",
        tls_cert=str(certificate), tls_key=str(key),
    )  # fmt: skip
    listening = held.enter_context(closing(listen(ours)))
    found = config(from_peer, ours, listening.connections, clients=str(authority))
    ca = home_ca.certificate(service.core.settings.home).read_text(encoding="ascii")
    fleet.announce(serve.fleet_url or _url(ours, listening), ca)
    service.joined(fleet)
    return uvicorn.Server(found), listening


def _is_member(fleet: Fleet, name: str, digest: str) -> bool:
    try:
        return fleet.is_member(name, digest)
    except Unreachable:  # it was not known before
        return False


@contextmanager
def _signals(service: Service, servers: Sequence[uvicorn.Server]) -> Iterator[None]:
    """Let a signal stop the service and uvicorn for the block; a second one closes connections.

    Requests that wait for events are ended first, so that uvicorn does not wait for them.
    """

    def handle(number: int, _: FrameType | None) -> None:
        service.stop()
        for server in servers:
            if server.should_exit and number == signal.SIGINT:
                server.force_exit = True
            server.should_exit = True

    before = {one: signal.signal(one, handle) for one in HANDLED}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def config(
    app: ASGIApp, serve: Serve, connections: Connections, *, clients: str = ""
) -> uvicorn.Config:
    """The configuration of uvicorn for an application; ``connections``: of its socket.

    ``clients``: a file with the authority whose certificate each client must show; empty: none.
    Raises HostUnfit if a certificate or key cannot be used.
    """
    found = uvicorn.Config(
        app,
        loop="asyncio",  # another might not accept connections by our socket's method
        http=protocol(serve.request_timeout, connections),
        backlog=AT_ONCE,
        ws="websockets-sansio",
        ws_max_size=_MESSAGE,
        ws_per_message_deflate=False,  # SSH is encrypted, and consoles say little
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="off",
        proxy_headers=bool(serve.proxy),
        forwarded_allow_ips=serve.proxy or None,
        timeout_keep_alive=_KEEP_ALIVE,
        timeout_graceful_shutdown=_GRACE,
        ssl_certfile=serve.tls_cert or None,
        ssl_keyfile=serve.tls_key or None,
        ssl_ca_certs=clients or None,
        ssl_cert_reqs=ssl.CERT_REQUIRED if clients else ssl.CERT_NONE,
    )
    try:
        found.load()
    except OSError as error:
        raise HostUnfit(
            f"TLS cannot be set up: {error}", hint="check tls_cert and tls_key in [serve]"
        ) from error
    if found.ssl is not None:
        # Tickets come after the handshake. Where one thread of a client reads them while another
        # sends its request, as in `websockets.sync`, that may be lost: OpenSSL allows one thread
        # at a time (openssl-threads(7)). `lab` has SerializedSocket, others may not.
        found.ssl.num_tickets = 0
    return found


def listen(serve: Serve) -> Listening:
    """A socket at the service's address; raises HostUnfit."""
    family = socket.AF_INET6 if ":" in serve.address else socket.AF_INET
    # The protocol is named: asyncio sends small packets at once on such sockets only, and the
    # second part of an answer would wait 40 ms for the first to be acknowledged.
    listening = Listening(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.connections = Connections()
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((serve.address, serve.port))
        listening.listen()  # so that clients can connect as soon as the address is printed
    except OSError as error:
        listening.close()
        raise HostUnfit(
            f"the service cannot listen at {serve.address}:{serve.port}: {error.strerror}",
            hint="choose another --port, or another address in [serve]",
        ) from error
    return listening


def _raise_file_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _url(serve: Serve, listening: socket.socket) -> str:
    host = f"[{serve.address}]" if ":" in serve.address else serve.address
    return f"http{'s' if serve.tls_cert else ''}://{host}:{listening.getsockname()[1]}"


def warn(settings: Settings) -> None:
    """Warn the operator if others can reach labs, or read secrets on their way."""
    serve = settings.serve
    if text := warning(settings.publish):
        log.warning(text)
    if not serve.loopback and not serve.tls_cert:
        log.warning(
            "tokens and passwords cross the network unencrypted: set tls_cert and tls_key, or"
            " listen at 127.0.0.1 behind a proxy that does TLS"
        )

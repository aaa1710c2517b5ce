"""The process: a service behind uvicorn, from start to shutdown.

uvicorn runs in a thread of its own, where it handles no signals; they are handled here.
"""

from __future__ import annotations

import gc
import resource
import signal
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from types import FrameType

import uvicorn

from lab.api.app import create_app
from lab.api.core.core import Core
from lab.api.jobs.jobs import Jobs
from lab.api.service import Service
from lab.api.telemetry.logs import configure, log
from lab.api.wire.connections import AT_ONCE, Connections, Listening, protocol
from lab.config.servefile import Serve
from lab.config.settings import Settings
from lab.errors import HostUnfit
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
        server = uvicorn.Server(config(service.core, service.jobs, listening.connections))
        with _signals(service, server), ThreadPoolExecutor(1, "lab-http") as thread:
            gc.freeze()  # what exists now stays: collecting then takes milliseconds
            gc.set_threshold(_COLLECTED_EVERY, 20, 50)
            started(_url(settings.serve, listening))
            thread.submit(server.run, sockets=[listening]).result()


@contextmanager
def _signals(service: Service, server: uvicorn.Server) -> Iterator[None]:
    """Let a signal stop the service and uvicorn for the block; a second one closes connections.

    Requests that wait for events are ended first, so that uvicorn does not wait for them.
    """

    def handle(number: int, _: FrameType | None) -> None:
        service.stop()
        if server.should_exit and number == signal.SIGINT:
            server.force_exit = True
        server.should_exit = True

    before = {one: signal.signal(one, handle) for one in HANDLED}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def config(core: Core, jobs: Jobs, connections: Connections) -> uvicorn.Config:
    """The configuration of uvicorn for a service that is open; ``connections``: of its socket.

    Raises HostUnfit if its certificate or key cannot be used.
    """
    serve = core.settings.serve
    found = uvicorn.Config(
        create_app(core, jobs),
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

"""The process: a service behind uvicorn, from start to shutdown."""

from __future__ import annotations

import resource
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import uvicorn

from lab.api.http.app import create_app
from lab.api.http.connections import AT_ONCE, Connections, Listening, protocol
from lab.api.service import Service
from lab.api.telemetry.logs import log, set_up
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
"""Open files that we allow ourselves, if the host does: a connection is one."""
_MESSAGE = 1 << 20
"""The largest message of a WebSocket, in bytes."""


class _Server(uvicorn.Server):
    """Lets those go who wait for events, before it waits for connections to end."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle what ends us for the block; having been asked to end is no failure."""
        before = {one: signal.signal(one, self.handle_exit) for one in HANDLED}
        try:
            yield
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """SIGTERM or SIGINT came."""
        self._service.stop()
        super().handle_exit(sig, frame)


def serve(
    settings: Settings,
    *,
    first: Callable[[NewToken], None],
    started: Callable[[str], None],
    quiet: bool = False,
) -> None:
    """Serve until SIGTERM or SIGINT.

    ``first`` is told the token that the first start makes, ``started`` the service's URL. Raises
    HostUnfit if the host cannot run labs, or the address is taken.
    """
    set_up(quiet=quiet)
    _allow_files()
    check_published(settings.publish)
    listening = listen(settings.serve)
    service = Service(settings)
    try:
        service.open()
        made = tokens.first(service.store, settings.home)
        if made is not None:
            first(made)
        warn(settings)
        server = _loaded(service, listening.connections)
        started(_url(settings.serve, listening))
        server.run(sockets=[listening])
    finally:
        service.close()
        listening.close()


def config(service: Service, connections: Connections) -> uvicorn.Config:
    """How uvicorn serves a service that is open; ``connections``: those of its socket."""
    serve = service.settings.serve
    return uvicorn.Config(
        create_app(service),
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


def _loaded(service: Service, connections: Connections) -> _Server:
    found = config(service, connections)
    try:
        found.load()
    except OSError as error:
        raise HostUnfit(f"TLS does not work: {error}", hint="look at tls_cert, tls_key") from error
    return _Server(found, service)


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
        listening.listen()  # so that clients get an answer as soon as the address is known
    except OSError as error:
        listening.close()
        raise HostUnfit(
            f"the service cannot listen at {serve.address}:{serve.port}: {error.strerror}",
            hint="another --port, or another address in [serve]",
        ) from error
    return listening


def _allow_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _url(serve: Serve, listening: socket.socket) -> str:
    host = f"[{serve.address}]" if ":" in serve.address else serve.address
    return f"http{'s' if serve.tls_cert else ''}://{host}:{listening.getsockname()[1]}"


def warn(settings: Settings) -> None:
    """Tell the operator what others can reach, and if what they send can be read on the way."""
    serve = settings.serve
    if told := warning(settings.publish):
        log.warning(told)
    if not serve.loopback and not serve.tls_cert:
        log.warning(
            "tokens and passwords cross the network unencrypted: set tls_cert and tls_key, or"
            " listen at 127.0.0.1 behind a proxy that does TLS"
        )

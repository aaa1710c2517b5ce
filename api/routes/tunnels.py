"""SSH and consoles of nodes through WebSockets, and the keys for SSH."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from fastapi import APIRouter, WebSocket

from lab.api.core.core import Core
from lab.api.core.threads import Route
from lab.api.http.answers import Answer, answer, model
from lab.api.http.auth import Caller, User
from lab.api.http.dependencies import CoreOf, core_of
from lab.api.routes.labs import Name
from lab.api.routes.power import NodeName, check_execute
from lab.api.wire.tunnel import Tunnel
from lab.api.wire.websockets import Reach, serve_websocket
from lab.errors import NotReady
from lab.lifecycle.labs import node_access
from lab.lifecycle.nodes.ssh import SshLogin
from lab.run import on_terminal

router = APIRouter(prefix="/v1/labs/{name}/nodes/{node}", tags=["nodes"], route_class=Route)

IDLE = 3600.0
"""Seconds without a byte after which a tunnel is closed."""
_CONNECT = 5.0


@router.get("/ssh", operation_id="getSsh", response_model=model(SshLogin))
def ssh_login(core: CoreOf, caller: User, name: Name, node: NodeName) -> Answer:
    """The keys for SSH to a node. A WebSocket at the same path is connected to its SSH server."""
    _check(core, caller, name)
    with core.contexts.use() as ctx:
        return answer(node_access.ssh_login(ctx, name, node))


@router.websocket("/ssh")
async def ssh(websocket: WebSocket, name: str, node: str) -> None:
    """Bytes to and from the SSH server of a node."""
    await _serve(websocket, "openSsh", partial(_ssh, name, node))


@router.websocket("/console")
async def console(websocket: WebSocket, name: str, node: str) -> None:
    """Bytes to and from the console of a node."""
    await _serve(websocket, "openConsole", partial(_console, name, node))


async def _serve(websocket: WebSocket, action: str, reach: Reach[int]) -> None:
    async def run(core: Core, caller: Caller, file: int) -> tuple[str, int]:
        allowed = partial(caller.valid, core)
        tunnel = Tunnel(websocket, file, allowed, core.stopping.is_set, IDLE)
        return await tunnel.run(), tunnel.carried

    await serve_websocket(websocket, action, "use", core_of(websocket).limits.tunnels, reach, run)


@contextmanager
def _ssh(name: str, node: str, core: Core, caller: Caller) -> Iterator[int]:
    _check(core, caller, name)
    with core.contexts.use() as ctx:
        login = node_access.ssh_login(ctx, name, node)
    try:
        connection = socket.create_connection((login.host, login.port), _CONNECT)
    except OSError as error:
        raise NotReady(
            f"{node} of {name} does not answer SSH: {error.strerror or error}",
            hint=f"check the node's state with `lab status {name}`",
        ) from None
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield connection.fileno()


@contextmanager
def _console(name: str, node: str, core: Core, caller: Caller) -> Iterator[int]:
    _check(core, caller, name)
    with core.contexts.use() as ctx:
        argv = node_access.console_argv(ctx, name, node)
    with on_terminal(argv) as file:
        yield file


def _check(core: Core, caller: Caller, name: str) -> None:
    """Raise Forbidden if the settings do not allow it, NotFound for labs of other projects."""
    check_execute(core)
    caller.lab(core, name)

"""Into nodes: SSH and consoles through WebSockets, and what a client needs for SSH."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from fastapi import APIRouter, WebSocket
from pydantic import BaseModel, Field

from lab.api.http.auth import Caller, ServiceOf, User, service_of
from lab.api.http.tunnel import Tunnel
from lab.api.http.websockets import Reach, through
from lab.api.routes.labs import Name
from lab.api.routes.power import NodeName, check_execute
from lab.api.service import Service
from lab.errors import NotReady
from lab.lifecycle import node_access
from lab.run import on_terminal

router = APIRouter(prefix="/v1/labs/{name}/nodes/{node}", tags=["nodes"])

IDLE = 3600.0
"""Seconds without a byte after which a tunnel is closed."""
_CONNECT = 5.0


class SshLogin(BaseModel):
    """What SSH needs for a node: root's key, and the line of `known_hosts` that it is known by."""

    host: str = Field(description="as the service's host reaches it", examples=["127.0.0.1"])
    port: int
    private_key: str
    known_hosts: str = Field(examples=["[127.0.0.1]:23307 ssh-ed25519 AAAA..."])


@router.get("/ssh", operation_id="getSsh")
def ssh_login(service: ServiceOf, caller: User, name: Name, node: NodeName) -> SshLogin:
    """What SSH needs for a node. The same address as a WebSocket leads to the node's SSH server."""
    _check(service, caller, name)
    with service.contexts.use() as ctx:
        return SshLogin(**vars(node_access.ssh_login(ctx, name, node)))


@router.websocket("/ssh")
async def ssh(websocket: WebSocket, name: str, node: str) -> None:
    """Bytes to and from the SSH server of a node."""
    await _serve(websocket, "openSsh", partial(_ssh, name, node))


@router.websocket("/console")
async def console(websocket: WebSocket, name: str, node: str) -> None:
    """Bytes to and from the console of a node."""
    await _serve(websocket, "openConsole", partial(_console, name, node))


async def _serve(websocket: WebSocket, action: str, reach: Reach[int]) -> None:
    async def run(service: Service, caller: Caller, file: int) -> tuple[str, int]:
        allowed = partial(caller.valid, service)
        tunnel = Tunnel(websocket, file, allowed, service.stopping.is_set, IDLE)
        return await tunnel.run(), tunnel.carried

    await through(websocket, action, "use", service_of(websocket).tunnels, reach, run)


@contextmanager
def _ssh(name: str, node: str, service: Service, caller: Caller) -> Iterator[int]:
    _check(service, caller, name)
    with service.contexts.use() as ctx:
        login = node_access.ssh_login(ctx, name, node)
    try:
        connection = socket.create_connection((login.host, login.port), _CONNECT)
    except OSError as error:
        raise NotReady(
            f"{node} of {name} does not answer SSH: {error.strerror or error}",
            hint="does it run? `lab status` tells",
        ) from None
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield connection.fileno()


@contextmanager
def _console(name: str, node: str, service: Service, caller: Caller) -> Iterator[int]:
    _check(service, caller, name)
    with service.contexts.use() as ctx:
        argv = node_access.console_argv(ctx, name, node)
    with on_terminal(argv) as file:
        yield file


def _check(service: Service, caller: Caller, name: str) -> None:
    """Raise Forbidden if nobody may into nodes, NotFound for labs of others."""
    check_execute(service)
    caller.lab(service, name)

"""Into nodes: SSH and consoles through WebSockets, and what a client needs for SSH."""

from __future__ import annotations

import socket
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial

from fastapi import APIRouter, WebSocket
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool

from api import problems
from api.auth import Caller, ServiceOf, User, identified, service_of
from api.logs import REQUEST, log
from api.routes.labs import Name
from api.routes.power import NodeName, check_execute
from api.service import Service
from api.tunnel import Tunnel
from lab.errors import LabError, NotReady
from lab.lifecycle import inside
from lab.names import LOOPBACK
from lab.run import on_terminal

router = APIRouter(prefix="/v1/labs/{name}/nodes/{node}", tags=["nodes"])

IDLE = 3600.0
"""Seconds without a byte after which a tunnel is closed."""
_CONNECT = 5.0
_SWITCHED = 101

Reach = Callable[[Service, str, str], AbstractContextManager[int]]
"""A file that leads into a node, for a block; raises NotFound, NotReady."""


class SshLogin(BaseModel):
    """What SSH needs for a node: root's key, and the line of `known_hosts` that it is known by."""

    port: int
    private_key: str
    known_hosts: str = Field(examples=["[127.0.0.1]:23307 ssh-ed25519 AAAA..."])


@router.get("/ssh", operation_id="getSsh")
def ssh_login(service: ServiceOf, caller: User, name: Name, node: NodeName) -> SshLogin:
    """What SSH needs for a node. The same address as a WebSocket leads to the node's SSH server."""
    check_execute(service)
    caller.lab(service, name)
    with service.contexts.use() as ctx:
        return SshLogin(**vars(inside.ssh_login(ctx, name, node)))


@router.websocket("/ssh")
async def ssh(websocket: WebSocket, name: str, node: str) -> None:
    """Bytes to and from the SSH server of a node."""
    await _serve(websocket, name, node, "openSsh", _ssh)


@router.websocket("/console")
async def console(websocket: WebSocket, name: str, node: str) -> None:
    """Bytes to and from the console of a node."""
    await _serve(websocket, name, node, "openConsole", _console)


async def _serve(websocket: WebSocket, name: str, node: str, action: str, reach: Reach) -> None:
    service, request = service_of(websocket), uuid.uuid4().hex
    note = partial(_note, service, websocket, action, request)
    told, held = REQUEST.set(request), ExitStack()
    with ExitStack() as seat:
        try:
            caller = await run_in_threadpool(_admitted, service, websocket, name)
            seat.enter_context(service.tunnels.seat())
            file = await run_in_threadpool(held.enter_context, reach(service, name, node))
            await note(_SWITCHED)
            await websocket.accept()
            tunnel = Tunnel(
                websocket, file, partial(caller.valid, service), service.stopping.is_set, IDLE
            )
            began, why = time.monotonic(), await tunnel.run()
            took = round(time.monotonic() - began, 1)
            extra = {"action": action, "bytes": tunnel.carried, "seconds": took, "why": why}
            log.info("tunnel ended", extra=extra)
        except LabError as error:
            await note(error.http_status)
            found = problems.respond(problems.problem(error), problems.headers_of(error))
            await websocket.send_denial_response(found)
        finally:
            # In a thread: what ends a program waits for it.
            await run_in_threadpool(held.close)
            REQUEST.reset(told)


def _admitted(service: Service, websocket: WebSocket, name: str) -> Caller:
    """Who asks, if he may; raises as ``Needs``, and Forbidden, NotFound."""
    scheme, _, text = websocket.headers.get("authorization", "").partition(" ")
    caller = identified(websocket, text.strip() if scheme.lower() == "bearer" else None)
    caller.needs("use")
    check_execute(service)
    caller.lab(service, name)
    return caller


async def _note(
    service: Service, websocket: WebSocket, action: str, request: str, status: int
) -> None:
    """Note in log and audit trail who opened, or was refused, what."""
    caller = getattr(websocket.state, "caller", None)
    path, address = websocket.url.path, websocket.client.host if websocket.client else ""
    token = caller.token.id if caller else ""
    who = {"token": token, "action": action, "status": status, "address": address}
    log.info("tunnel", extra={**who, "path": path})
    if caller is None:
        return
    try:
        add = partial(service.store.audit.add, target=path[:200], request=request, **who)
        await run_in_threadpool(add, project=caller.token.project)
    except LabError as error:
        log.error("the audit trail cannot be written", extra={"error": error.what})


@contextmanager
def _ssh(service: Service, name: str, node: str) -> Iterator[int]:
    with service.contexts.use() as ctx:
        port = inside.ssh_login(ctx, name, node).port
    try:
        connection = socket.create_connection((LOOPBACK, port), _CONNECT)
    except OSError as error:
        raise NotReady(
            f"{node} of {name} does not answer SSH: {error.strerror or error}",
            hint="does it run? `lab status` tells",
        ) from None
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield connection.fileno()


@contextmanager
def _console(service: Service, name: str, node: str) -> Iterator[int]:
    with service.contexts.use() as ctx:
        argv = inside.console_argv(ctx, name, node)
    with on_terminal(argv) as file:
        yield file

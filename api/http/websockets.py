"""Before and after every WebSocket: who asks, a seat, the log, the audit trail; refusals."""

from __future__ import annotations

import time
import uuid
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import Any, TypeVar

from fastapi import WebSocket
from starlette.concurrency import run_in_threadpool

from lab.api.http import problems
from lab.api.http.auth import Caller, bearer, identified, service_of
from lab.api.http.auth import note as audit
from lab.api.http.limits import Seats
from lab.api.service import Service
from lab.api.telemetry.logs import REQUEST, log
from lab.errors import LabError
from lab.state.records import Scope

T = TypeVar("T")

_SWITCHED = 101

Reach = Callable[[Service, Caller], AbstractContextManager[T]]
"""What a WebSocket leads to, for a block, entered in a thread; raises what refuses it."""
Run = Callable[[Service, Caller, T], Awaitable[tuple[str, int]]]
"""Carries bytes: why it ended, empty if one side just went, and how many it were."""


async def through(
    websocket: WebSocket, action: str, scope: Scope, seats: Seats, reach: Reach[T], run: Run[T]
) -> None:
    """Let in who has a token of ``scope``, and ``run`` what was asked for; else refuse it."""
    service, request = service_of(websocket), uuid.uuid4().hex
    note = partial(_note, service, websocket, action)
    told, held = REQUEST.set(request), ExitStack()
    with ExitStack() as seat:
        try:
            caller = await run_in_threadpool(_caller, websocket, scope)
            seat.enter_context(seats.seat(caller.token.id))
            found = await run_in_threadpool(held.enter_context, reach(service, caller))
            await note(_SWITCHED)
            await websocket.accept()
            began = time.monotonic()
            why, carried = await run(service, caller, found)
            took = round(time.monotonic() - began, 1)
            extra = {"action": action, "bytes": carried, "seconds": took, "why": why}
            log.info("tunnel ended", extra=extra)
        except LabError as error:
            await note(error.http_status)
            refusal = problems.respond(problems.problem(error), problems.headers_of(error))
            await websocket.send_denial_response(refusal)
        finally:
            # In a thread: what ends a program waits for it.
            await run_in_threadpool(held.close)
            REQUEST.reset(told)


def _caller(websocket: WebSocket, scope: Scope) -> Caller:
    """Who asks; raises as ``Needs``."""
    caller = identified(websocket, bearer(websocket))
    caller.needs(scope)
    return caller


async def _note(service: Service, websocket: WebSocket, action: str, status: int) -> None:
    """Note in log and audit trail who opened, or was refused, what."""
    caller = getattr(websocket.state, "caller", None)
    path, address = websocket.url.path, websocket.client.host if websocket.client else ""
    token = caller.token.id if caller else ""
    who: dict[str, Any] = {"token": token, "action": action, "status": status, "address": address}
    log.info("tunnel", extra={**who, "path": path})
    if caller is not None:
        add = partial(audit, service.store, project=caller.token.project, target=path[:200], **who)
        await run_in_threadpool(add)

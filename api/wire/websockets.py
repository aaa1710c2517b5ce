"""Before and after every WebSocket: authentication, limits, the log, the audit trail; refusals."""

from __future__ import annotations

import time
import uuid
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import Any, TypeVar

from fastapi import WebSocket

from lab.api.core.core import Core
from lab.api.core.limits import Limit
from lab.api.core.problem import problem
from lab.api.core.threads import in_thread
from lab.api.http import problems
from lab.api.http.auth import Caller, bearer, identified
from lab.api.http.auth import note as audit
from lab.api.http.dependencies import core_of
from lab.api.http.peers import via
from lab.api.telemetry.current import REQUEST
from lab.api.telemetry.logs import log
from lab.errors import LabError
from lab.state.service import Scope

T = TypeVar("T")

_SWITCHED = 101

Reach = Callable[[Core, Caller], AbstractContextManager[T]]
"""What a WebSocket is connected to, for a block, entered in a thread; raises what refuses it."""
Run = Callable[[Core, Caller, T], Awaitable[tuple[str, int]]]
"""Transfers bytes; why it ended, empty if one side closed, and the number of bytes."""


async def serve_websocket(
    websocket: WebSocket, action: str, scope: Scope, limit: Limit, reach: Reach[T], run: Run[T]
) -> None:
    """Accept a WebSocket with a token of ``scope``, and ``run`` it; refuse others."""
    core, request = core_of(websocket), uuid.uuid4().hex
    note = partial(_note, core, websocket, action)
    context, held = REQUEST.set(request), ExitStack()
    with ExitStack() as slot:
        try:
            caller = await in_thread(_caller, websocket, scope)
            slot.enter_context(limit.slot(caller.token.id))
            found = await in_thread(held.enter_context, reach(core, caller))
            await note(_SWITCHED)
            await websocket.accept()
            began = time.monotonic()
            why, carried = await run(core, caller, found)
            took = round(time.monotonic() - began, 1)
            extra = {"action": action, "bytes": carried, "seconds": took, "why": why}
            log.info("tunnel ended", extra=extra)
        except LabError as error:
            await note(error.http_status)
            refusal = problems.respond(problem(error), problems.headers_of(error))
            await websocket.send_denial_response(refusal)
        finally:
            # In a thread: ending a program waits for it.
            await in_thread(held.close)
            REQUEST.reset(context)


def _caller(websocket: WebSocket, scope: Scope) -> Caller:
    """The caller; raises as ``Needs``."""
    caller = identified(websocket, bearer(websocket))
    caller.needs(scope)
    return caller


async def _note(core: Core, websocket: WebSocket, action: str, status: int) -> None:
    """Record in log and audit trail who opened, or was refused, a WebSocket."""
    caller = getattr(websocket.state, "caller", None)
    path, address = websocket.url.path, websocket.client.host if websocket.client else ""
    token = caller.token.id if caller else ""
    who: dict[str, Any] = {"token": token, "action": action, "status": status, "address": address}
    log.info("tunnel", extra={**who, "path": path})
    if caller is not None:
        where = {"project": caller.token.project, "target": path[:200], "via": via(websocket.scope)}
        await in_thread(partial(audit, core.store, **where, **who))

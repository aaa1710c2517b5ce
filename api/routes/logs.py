"""Logs of nodes: their last lines, or as they grow."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from itertools import islice
from typing import Annotated, Any, Literal

import anyio
from fastapi import APIRouter, Query
from fastapi.responses import Response

from lab.api.core.core import Core
from lab.api.core.problem import problem
from lab.api.core.threads import Route, in_thread
from lab.api.http.answers import Answer, answer, model
from lab.api.http.auth import Caller, User
from lab.api.http.dependencies import CoreOf
from lab.api.routes.events import Accept
from lab.api.routes.labs import Name
from lab.api.routes.power import NodeName
from lab.api.wire import sse
from lab.errors import LabError
from lab.lifecycle.labs import node_access
from lab.views.nodes import LogLines

router = APIRouter(prefix="/v1/labs/{name}", tags=["nodes"], route_class=Route)

_STREAM: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The last lines; with Accept: text/event-stream, new lines as well.",
        "content": {sse.MEDIA_TYPE: {"schema": {"type": "string"}}},
    }
}
Source = Literal["engine", "journal", "console"]
Lines = Annotated[int, Query(ge=1, le=5000)]
_IDLE = 0.5
"""Seconds without a line after which the client's connection is checked."""
_ALIVE_EVERY = 15.0
"""Seconds without a line after which an empty message is sent."""
_CHECK_EVERY = 5.0
"""Seconds between two checks of the client's token."""
_OVER = object()


@router.get(
    "/nodes/{node}/logs",
    operation_id="getLogs",
    response_model=model(LogLines),
    responses=_STREAM,
)
async def logs(
    core: CoreOf,
    caller: User,
    name: Name,
    node: NodeName,
    source: Source = "engine",
    lines: Lines = 100,
    accept: Accept = "",
) -> Answer | Response:
    """The last lines of a node's log; as a stream also new lines, until the node stops."""
    if sse.MEDIA_TYPE not in accept:
        read = partial(last_lines, core, caller, name, node, source, lines)
        return answer(await core.limits.programs.run(caller.token.id, read))
    await in_thread(caller.lab, core, name)
    core.limits.followers.acquire(caller.token.id)
    try:
        found = await in_thread(_follow, core, name, node, source, lines)
    except BaseException:
        core.limits.followers.release(caller.token.id)
        raise

    def over() -> None:
        # No thread runs the generator now: a cancelled request waits for its thread.
        found.close()  # type: ignore[attr-defined]
        core.limits.followers.release(caller.token.id)

    return sse.Streamed(_stream(core, found, partial(caller.valid, core)), over)


def last_lines(
    core: Core, caller: Caller, name: str, node: str, source: str, lines: int
) -> LogLines:
    """The last ``lines`` of a log; raises NotFound, NotReady, CommandFailed."""
    caller.lab(core, name)
    with core.contexts.use() as ctx:
        found = node_access.logs(ctx, name, node, source, lines=lines)
        return LogLines(tuple(islice(found, lines)))


def _follow(core: Core, name: str, node: str, source: str, lines: int) -> Iterator[str | None]:
    with core.contexts.use() as ctx:
        return node_access.follow(ctx, name, node, source, lines=lines, idle=_IDLE)


async def _stream(
    core: Core, found: Iterator[str | None], allowed: Callable[[], bool]
) -> AsyncIterator[str]:
    """The lines of ``found`` as events, until ``allowed`` returns false."""
    # A separate thread: the threads of requests must not wait for logs.
    threads = anyio.CapacityLimiter(1)
    checked = said = time.monotonic()
    try:
        yield ": alive\n\n"
        while not core.stopping.is_set():
            line = await anyio.to_thread.run_sync(next, found, _OVER, limiter=threads)
            now = time.monotonic()
            if now - checked >= _CHECK_EVERY:
                checked = now
                if not await in_thread(allowed):
                    return
            if line is _OVER:
                return
            if line is not None:
                yield _event({"line": line})
            elif now - said >= _ALIVE_EVERY:
                yield ": alive\n\n"
            else:
                continue
            said = now
    except LabError as error:
        yield _event({"problem": problem(error)})


def _event(data: dict[str, Any]) -> str:
    return f"data: {json.dumps(data)}\n\n"

"""What hosts of a fleet ask of each other: /v1/fleet. Nobody else is answered."""

from __future__ import annotations

from functools import partial

import msgspec
from fastapi import APIRouter, Request, WebSocket
from fastapi.responses import Response

from lab.api.core.core import Core
from lab.api.core.threads import Route, in_thread
from lab.api.http.auth import Caller, User
from lab.api.http.dependencies import CoreOf, JobsOf, core_of
from lab.api.http.job_answer import Wait, job_answer
from lab.api.http.peers import is_peer
from lab.api.jobs import placing
from lab.api.jobs.jobs import Jobs
from lab.api.routes.jobs import Id
from lab.api.routes.labs import created
from lab.api.wire.giving import SocketTalk, serve_archive
from lab.errors import InvalidSpec, NotFound
from lab.exchange.talk import Remote
from lab.lifecycle.archives.fetch import Fetch, give
from lab.state.jobs import OPEN
from lab.state.service import JobRecord
from lab.wait import Deadline, until

router = APIRouter(prefix="/v1/fleet", tags=["host"], route_class=Route)

_ASKED = 8 << 20
"""Bytes of a host's request: a lab's option files and SQL are in it."""
_CLAIMED = 2.0
"""Seconds in which a job that another thread has claimed is recorded."""


@router.post("/jobs/{job}", include_in_schema=False)
async def take(
    request: Request, core: CoreOf, jobs: JobsOf, caller: User, job: Id, wait: Wait
) -> Response:
    """Take up a job that was placed on this host, and answer as its request would be."""
    if not is_peer(request.scope):
        raise NotFound("there is no such resource")
    record = await in_thread(_taken, jobs, caller, job)
    return await job_answer(core, record, wait, partial(created, core, caller))


@router.websocket("/archives")
async def give_archive(websocket: WebSocket) -> None:
    """Give another host an image, a dataset or a template: its first message says which."""
    if not is_peer(websocket.scope):
        await websocket.send_denial_response(Response(status_code=404))
        return
    await serve_archive(websocket, partial(_given, core_of(websocket)))


def _given(core: Core, talk: SocketTalk) -> None:
    """Send what is asked for; raises InvalidSpec, NotFound."""
    text = b""
    while piece := talk.line(_ASKED):
        text += piece
        if len(text) > _ASKED:
            raise InvalidSpec("another host's request is too long")
    try:
        asked = msgspec.json.decode(text, type=Fetch)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise InvalidSpec(f"another host's request cannot be read: {error}") from None
    with core.contexts.use() as ctx:
        give(ctx, asked, Remote(talk, "the other host", ctx.progress))


def _taken(jobs: Jobs, caller: Caller, job: str) -> JobRecord:
    core = jobs.core
    assert core.fleet is not None  # noqa: S101  # for the type checker
    placing.take(jobs, core.fleet)

    def begun() -> bool:
        return core.store.jobs.find(job) is not None or caller.job(core, job).state not in OPEN

    until(begun, Deadline.after(_CLAIMED))
    return caller.job(core, job)

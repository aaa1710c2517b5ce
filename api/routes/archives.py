"""Export and import of images and templates through WebSockets; for admins."""

from __future__ import annotations

import os
from contextlib import nullcontext
from functools import partial
from io import FileIO

from fastapi import APIRouter, WebSocket

from lab.api.core.core import Core
from lab.api.core.threads import Route
from lab.api.http.auth import Caller
from lab.api.http.dependencies import core_of
from lab.api.http.transfer import Transfer, Work
from lab.api.http.websockets import serve_websocket
from lab.exchange.header import ByKey
from lab.lifecycle.archives.export import export
from lab.lifecycle.archives.import_archive import import_archive
from lab.progress import Listener
from lab.requests.archives import Destination, ImportOptions
from lab.views.archives import ExportView, ImportView

router = APIRouter(prefix="/v1", tags=["host"], route_class=Route)

IDLE = 600.0
"""Seconds without a byte or a step after which a transfer is cancelled."""
_BUFFER = 1 << 20


@router.websocket("/images/archive")
async def import_image(websocket: WebSocket, resume: bool = False) -> None:
    """Import an image."""
    work = partial(_receive, core_of(websocket), "image", resume=resume)
    await _serve(websocket, "importImage", work, incoming=True)


@router.websocket("/templates/archive")
async def import_template(
    websocket: WebSocket, resume: bool = False, warm_only: bool = False, ram: bool = True
) -> None:
    """Import a template; without ``ram`` its RAM is left out, and its labs boot."""
    work = partial(
        _receive, core_of(websocket), "template", resume=resume, warm_only=warm_only, ram=ram
    )
    await _serve(websocket, "importTemplate", work, incoming=True)


@router.websocket("/images/{key}/archive")
async def export_image(websocket: WebSocket, key: str, native: bool = False) -> None:
    """Export an image."""
    work = partial(_send, core_of(websocket), "image", key, native=native)
    await _serve(websocket, "exportImage", work, incoming=False)


@router.websocket("/templates/{key}/archive")
async def export_template(
    websocket: WebSocket, key: str, native: bool = False, image: bool = True, ram: bool = True
) -> None:
    """Export a template."""
    work = partial(_send, core_of(websocket), "template", key, native=native, image=image, ram=ram)
    await _serve(websocket, "exportTemplate", work, incoming=False)


async def _serve(websocket: WebSocket, action: str, work: Work, *, incoming: bool) -> None:
    async def run(core: Core, caller: Caller, _: None) -> tuple[str, int]:
        allowed = partial(caller.valid, core)
        transfer = Transfer(websocket, allowed, core.stopping.is_set, IDLE)
        why = await (transfer.receive(work) if incoming else transfer.send(work))
        return why, transfer.carried

    limit = core_of(websocket).limits.transfers
    await serve_websocket(websocket, action, "admin", limit, lambda *_: nullcontext(), run)


def _receive(
    core: Core,
    kind: ByKey,
    file: int,
    hear: Listener,
    *,
    resume: bool,
    warm_only: bool = False,
    ram: bool = True,
) -> ImportView:
    """Import the archive that is read from the file descriptor ``file``."""
    with os.fdopen(file, "rb", buffering=_BUFFER) as source, core.contexts.use(hear) as ctx:
        return import_archive(ctx, kind, source, ImportOptions(resume, warm_only, ram))


def _send(
    core: Core,
    kind: ByKey,
    which: str,
    file: int,
    hear: Listener,
    *,
    native: bool,
    image: bool = True,
    ram: bool = True,
) -> ExportView:
    """Export to the file descriptor ``file``."""
    with os.fdopen(file, "wb", buffering=0) as to, core.contexts.use(hear) as ctx:
        destination = Destination(native=native, sink=_Whole(to))
        return export(ctx, kind, which, destination, image=image, ram=ram)


class _Whole:
    """A pipe to which each ``write`` writes all bytes."""

    def __init__(self, pipe: FileIO) -> None:
        self._pipe = pipe

    def write(self, data: bytes, /) -> None:
        left = memoryview(data)
        while left:
            left = left[self._pipe.write(left) :]

    def flush(self) -> None:
        """The pipe has no buffer."""

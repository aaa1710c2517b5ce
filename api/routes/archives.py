"""Export and import of images and templates through WebSockets; for admins."""

from __future__ import annotations

import os
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from io import FileIO

from fastapi import APIRouter, WebSocket
from msgspec import structs

from lab.api.core.core import Core
from lab.api.core.threads import Route
from lab.api.http.auth import Caller
from lab.api.http.dependencies import core_of
from lab.api.wire.transfer import Transfer, Work
from lab.api.wire.websockets import serve_websocket
from lab.lifecycle.archives.export import export
from lab.lifecycle.archives.import_archive import import_archive
from lab.names import ByKey
from lab.progress import Listener
from lab.requests.archives import Destination, ExportArchive, ImportOptions
from lab.views.archives import ExportView, ImportView

router = APIRouter(prefix="/v1", tags=["host"], route_class=Route)

IDLE = 600.0
"""Seconds without a byte or a step after which a transfer is cancelled."""
_BUFFER = 1 << 20


@router.websocket("/images/archive")
async def import_image(websocket: WebSocket, resume: bool = False) -> None:
    """Import an image."""
    work = partial(_receive, core_of(websocket), "image", ImportOptions(resume))
    await _serve(websocket, "importImage", work, incoming=True)


@router.websocket("/templates/archive")
async def import_template(
    websocket: WebSocket, resume: bool = False, warm_only: bool = False, ram: bool = True
) -> None:
    """Import a template; without ``ram`` its RAM is left out, and its labs boot."""
    how = ImportOptions(resume, warm_only, ram)
    work = partial(_receive, core_of(websocket), "template", how)
    await _serve(websocket, "importTemplate", work, incoming=True)


@router.websocket("/images/{key}/archive")
async def export_image(websocket: WebSocket, key: str, native: bool = False) -> None:
    """Export an image."""
    asked = ExportArchive(kind="image", which=key, to=Destination(native=native))
    work = partial(_send, core_of(websocket), asked)
    await _serve(websocket, "exportImage", work, incoming=False)


@router.websocket("/templates/{key}/archive")
async def export_template(
    websocket: WebSocket, key: str, native: bool = False, image: bool = True, ram: bool = True
) -> None:
    """Export a template."""
    to = Destination(native=native)
    asked = ExportArchive(kind="template", which=key, to=to, image=image, ram=ram)
    work = partial(_send, core_of(websocket), asked)
    await _serve(websocket, "exportTemplate", work, incoming=False)


async def _serve(websocket: WebSocket, action: str, work: Work, *, incoming: bool) -> None:
    async def run(core: Core, caller: Caller, _: None) -> tuple[str, int]:
        allowed = partial(caller.valid, core)
        transfer = Transfer(websocket, allowed, core.stopping.is_set, IDLE)
        why = await (transfer.receive(work) if incoming else transfer.send(work))
        return why, transfer.carried

    limit = core_of(websocket).limits.transfers
    await serve_websocket(websocket, action, "admin", limit, lambda *_: nullcontext(), run)


def _receive(core: Core, kind: ByKey, how: ImportOptions, file: int, hear: Listener) -> ImportView:
    """Import the archive that is read from the file descriptor ``file``."""
    with os.fdopen(file, "rb", buffering=_BUFFER) as source, core.contexts.use(hear) as ctx:
        return import_archive(ctx, kind, source, how)


def _send(core: Core, asked: ExportArchive, file: int, hear: Listener) -> ExportView:
    """Export to the file descriptor ``file``."""
    with os.fdopen(file, "wb", buffering=0) as to, core.contexts.use(hear) as ctx:
        return export(ctx, structs.replace(asked, to=replace(asked.to, sink=_Whole(to))))


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

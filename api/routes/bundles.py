"""Bundles: what is known of a lab, for whoever looks for the cause of a failure."""

from __future__ import annotations

import io
from functools import partial
from typing import Any

from fastapi import APIRouter
from fastapi.responses import Response

from lab.api.core.core import Core
from lab.api.core.threads import Route
from lab.api.http.auth import Caller, User
from lab.api.http.dependencies import CoreOf
from lab.api.routes.jobs import Id
from lab.api.routes.labs import Name
from lab.errors import NotFound
from lab.lifecycle.labs import bundle
from lab.lifecycle.nodes import evidence

router = APIRouter(prefix="/v1", route_class=Route)

_MEDIA_TYPE = "application/zstd"
_FILE: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "A tar archive, compressed with zstd.",
        "content": {_MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}},
    }
}


@router.get(
    "/labs/{name}/bundle",
    operation_id="getBundle",
    tags=["nodes"],
    response_class=Response,
    responses=_FILE,
)
async def get_bundle(core: CoreOf, caller: User, name: Name) -> Response:
    """What is known of a lab, for whoever looks for the cause of a failure: logs, status, reports.

    Of all its nodes, in two rounds, which takes 10 s and more. Passwords, keys, tokens and the
    literals of statements are removed.
    """
    content = await core.limits.programs.run(caller.token.id, partial(_bundle, core, caller, name))
    return _file(content, name)


@router.get(
    "/jobs/{job}/bundle",
    operation_id="getJobBundle",
    tags=["jobs"],
    response_class=Response,
    responses=_FILE,
)
def get_job_bundle(core: CoreOf, caller: User, job: Id) -> Response:
    """What was known of the lab that a job could not make, before it was removed.

    It is there where nodes of the lab had been started; the latest 30 of a host stay.
    """
    record = caller.job(core, job)
    with core.contexts.use() as ctx:
        path = evidence.of_job(ctx, record.id)
    try:
        return _file(path.read_bytes(), f"job-{record.id}")
    except FileNotFoundError:
        raise NotFound(f"the job {record.id} has no bundle") from None


def _file(content: bytes, name: str) -> Response:
    disposition = {"Content-Disposition": f'attachment; filename="{name}.tar.zst"'}
    return Response(content, media_type=_MEDIA_TYPE, headers=disposition)


def _bundle(core: Core, caller: Caller, name: str) -> bytes:
    caller.lab(core, name)
    file = io.BytesIO()
    with core.contexts.use() as ctx:
        bundle.bundle(ctx, name, file)
    return file.getvalue()

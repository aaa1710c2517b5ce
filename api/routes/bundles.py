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
from lab.api.routes.labs import Name
from lab.lifecycle.labs import bundle

router = APIRouter(prefix="/v1/labs/{name}", tags=["nodes"], route_class=Route)

_MEDIA_TYPE = "application/zstd"
_FILE: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "A tar archive, compressed with zstd.",
        "content": {_MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}},
    }
}


@router.get("/bundle", operation_id="getBundle", response_class=Response, responses=_FILE)
async def get_bundle(core: CoreOf, caller: User, name: Name) -> Response:
    """What is known of a lab, for whoever looks for the cause of a failure: logs, status, reports.

    Of all its nodes, in two rounds, which takes 10 s and more. Passwords, keys, tokens and the
    literals of statements are removed.
    """
    content = await core.limits.programs.run(caller.token.id, partial(_bundle, core, caller, name))
    return Response(
        content,
        media_type=_MEDIA_TYPE,
        headers={"Content-Disposition": f'attachment; filename="{name}.tar.zst"'},
    )


def _bundle(core: Core, caller: Caller, name: str) -> bytes:
    caller.lab(core, name)
    file = io.BytesIO()
    with core.contexts.use() as ctx:
        bundle.bundle(ctx, name, file)
    return file.getvalue()

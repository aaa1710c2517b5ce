"""A dry run of creating a lab: /v1/preview."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from pydantic import BaseModel, Field

from lab.api.core.admission import need_of
from lab.api.core.threads import Route
from lab.api.http.auth import User
from lab.api.http.catalog import PlannedNode
from lab.api.http.dependencies import CoreOf
from lab.api.http.models import LabRequest
from lab.api.jobs.quota import check_quota
from lab.api.routes.labs import counted, requested
from lab.errors import ROOM_RETRY, HostUnfit
from lab.lifecycle.labs.preview import preview

router = APIRouter(prefix="/v1", tags=["labs"], route_class=Route)


class Preview(BaseModel):
    """The lab that would be created, with its image and template."""

    name: Annotated[str, Field(examples=["shop"])]
    blueprint: Annotated[str, Field(examples=["pxc"])]
    engine: str
    nodes: int
    memory: Annotated[int, Field(description="As requested for a node, in bytes.")]
    cpus: int
    disk: Annotated[int | None, Field(description="As requested, in bytes; null: the image's.")]
    profile: str
    image: str
    image_exists: Annotated[bool, Field(description="The image exists; else it is built first.")]
    template: Annotated[
        str | None, Field(description="Empty if it is built first; null if none is used.")
    ]
    start: Annotated[str, Field(description="warm or cold")]
    why_cold: str
    each: list[PlannedNode]
    displaces: Annotated[
        list[str], Field(description="Templates that would be removed for the one that it needs.")
    ]


@router.post("/preview", operation_id="previewLab")
def preview_lab(core: CoreOf, caller: User, asked: LabRequest) -> Preview:
    """What `POST /v1/labs` would create now; refused in the same cases. Ignores warm pools."""
    spec = requested(core, caller, asked).spec
    need = need_of(spec)
    core.admission.check(need)
    check_quota(core, caller.token, spec, counted(core, caller, spec))
    with core.contexts.use() as ctx:
        found = preview(ctx, spec, cold=asked.cold)
    if shortage := core.admission.short(need):
        raise HostUnfit(
            f"there is no room on the host now: {shortage}",
            hint=f"its job would wait for room, at most {core.settings.serve.queue_timeout:g} s",
            retry_after=ROOM_RETRY,
        )
    return Preview(
        name=found.name,
        blueprint=found.blueprint,
        engine=found.engine,
        nodes=found.nodes,
        memory=found.memory,
        cpus=found.cpus,
        disk=found.disk,
        profile=found.profile,
        image=found.image,
        image_exists=found.image_exists,
        template=found.template,
        start=found.start,
        why_cold=found.why_cold,
        each=[PlannedNode.of(node) for node in found.each],
        displaces=list(found.displaces),
    )

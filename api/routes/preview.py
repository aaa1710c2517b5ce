"""What a lab would be made of: /v1/preview. Nothing is made."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from pydantic import BaseModel, Field

from lab.api.http.auth import ServiceOf, User
from lab.api.http.models import LabRequest
from lab.api.http.quota import check_quota
from lab.api.jobs.admission import need_of
from lab.api.jobs.work import spec_of
from lab.api.routes.labs import counted, requested
from lab.errors import ROOM_RETRY, HostUnfit
from lab.lifecycle.preview import preview

router = APIRouter(prefix="/v1", tags=["labs"])


class Preview(BaseModel):
    """What a lab would be, and what it would be made of."""

    name: Annotated[str, Field(examples=["shop"])]
    blueprint: Annotated[str, Field(examples=["pxc"])]
    engine: str
    nodes: int
    memory: Annotated[int, Field(description="Of a node, in bytes.")]
    cpus: int
    disk: Annotated[int, Field(description="Of a node, in bytes; 0: the image's.")]
    profile: str
    image: str
    image_there: Annotated[bool, Field(description="It need not be built.")]
    template: Annotated[
        str | None, Field(description="Empty if one is made first; null if none is cloned.")
    ]
    start: Annotated[str, Field(description="warm or cold")]
    why_cold: str


@router.post("/preview", operation_id="previewLab")
def preview_lab(service: ServiceOf, caller: User, asked: LabRequest) -> Preview:
    """What `POST /v1/labs` would make now, refused as it would be; warm pools are left out."""
    spec = spec_of(requested(service, caller, asked))
    need = need_of(spec)
    service.admission.check(need)
    check_quota(service, caller, spec, counted(service, caller, spec))
    with service.contexts.use() as ctx:
        found = preview(ctx, spec, cold=asked.cold)
    if lacks := service.admission.short(need):
        raise HostUnfit(
            f"there is no room on the host now: {lacks}",
            hint=f"a lab would wait for it, {service.settings.serve.queue_timeout:g} s at most",
            retry_after=ROOM_RETRY,
        )
    return Preview(**vars(found))

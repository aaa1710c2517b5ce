"""A dry run of creating a lab: /v1/preview."""

from __future__ import annotations

from fastapi import APIRouter

from lab.api.core.admission import need_of
from lab.api.core.threads import Route
from lab.api.http.answers import Answer, answer, model
from lab.api.http.auth import User
from lab.api.http.bodies import FromBody
from lab.api.http.dependencies import CoreOf
from lab.api.jobs.quota import check_quota
from lab.api.routes.labs import counted, requested
from lab.errors import ROOM_RETRY, HostUnfit
from lab.lifecycle.labs.preview import preview
from lab.requests.labs import CreateLab
from lab.views.labs import Preview

router = APIRouter(prefix="/v1", tags=["labs"], route_class=Route)


@router.post("/preview", operation_id="previewLab", response_model=model(Preview))
def preview_lab(core: CoreOf, caller: User, asked: FromBody[CreateLab]) -> Answer:
    """What `POST /v1/labs` would create now; refused in the same cases. Ignores warm pools."""
    request = requested(core, caller, asked)
    need = need_of(request)
    core.admission.check(need)
    check_quota(core, caller.token, request, counted(core, caller, request))
    with core.contexts.use() as ctx:
        found = preview(ctx, request)
    if shortage := core.admission.short(need):
        raise HostUnfit(
            f"there is no room on the host now: {shortage}",
            hint=f"its job would wait for room, at most {core.settings.serve.queue_timeout:g} s",
            retry_after=ROOM_RETRY,
        )
    return answer(found)

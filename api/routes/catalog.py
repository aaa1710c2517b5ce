"""Images and templates: /v1/images, /v1/templates; the host's, and so for admins to make."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Path
from fastapi.responses import JSONResponse, Response
from starlette.concurrency import run_in_threadpool

from lab.api.http.answers import IfMatch, Key, Wait, check_tag, outcome, tag_of
from lab.api.http.auth import Admin, Caller, Reader, ServiceOf
from lab.api.http.catalog import Image, ImageRequest, Template, TemplateRequest
from lab.api.http.models import Job
from lab.api.jobs.admission import need_of
from lab.api.jobs.submit import new_job, submit
from lab.api.jobs.work import spec_of
from lab.api.service import Service
from lab.blueprints import planned
from lab.errors import Conflict
from lab.imagebuild.recipe import load
from lab.lifecycle import catalog
from lab.lifecycle.captures import template
from lab.lifecycle.core.views import ImageView, TemplateView
from lab.names import Owner
from lab.state.records import JobKind, JobRecord

router = APIRouter(prefix="/v1", tags=["host"])

Which = Annotated[str, Path(max_length=100, pattern=r"^[a-z0-9][a-z0-9.-]*$")]
_NO_LAB = {"name": "", "ttl": None, "snapshots": ""}


@router.get("/images", operation_id="listImages")
def images(service: ServiceOf, caller: Reader) -> list[Image]:
    """All images."""
    with service.contexts.use() as ctx:
        return [_image(view, caller) for view in catalog.images(ctx)]


@router.post(
    "/images",
    operation_id="buildImage",
    status_code=202,
    response_model=Job,
    responses={201: {"model": Image, "description": "The image is there."}},
)
async def build_image(
    service: ServiceOf, caller: Admin, asked: ImageRequest, wait: Wait, key: Key = None
) -> Response:
    """Build an image from a recipe, unless it is there."""
    job = await run_in_threadpool(submit_image, service, caller, asked, key)
    return await outcome(service, job, wait, partial(_image_made, service, caller))


@router.get("/images/{key}", operation_id="getImage")
def image(service: ServiceOf, caller: Reader, key: Which, response: Response) -> Image:
    """An image, by its key or its recipe."""
    with service.contexts.use() as ctx:
        view = catalog.image(ctx, key)
    response.headers["ETag"] = _tag(view)
    return _image(view, caller)


@router.delete(
    "/images/{key}",
    operation_id="deleteImage",
    status_code=202,
    response_model=Job,
    responses={204: {"description": "The image is gone."}},
)
async def delete_image(
    service: ServiceOf, caller: Admin, key: Which, wait: Wait, if_match: IfMatch = None
) -> Response:
    """Remove an image, by its key or its recipe, that no template or lab uses."""
    job = await run_in_threadpool(submit_delete_image, service, caller, key, if_match)
    return await outcome(service, job, wait, _gone)


@router.get("/templates", operation_id="listTemplates")
def templates(service: ServiceOf, _: Reader) -> list[Template]:
    """All templates."""
    with service.contexts.use() as ctx:
        return [Template(**vars(view)) for view in catalog.templates(ctx)]


@router.post(
    "/templates",
    operation_id="buildTemplate",
    status_code=202,
    response_model=Job,
    responses={201: {"model": Template, "description": "The template is there."}},
)
async def build_template(
    service: ServiceOf, caller: Admin, asked: TemplateRequest, wait: Wait, key: Key = None
) -> Response:
    """Form a cluster and capture it, unless that is there; its image is built first if need be."""
    job = await run_in_threadpool(_build_template, service, caller, asked, key)
    return await outcome(service, job, wait, partial(_template_made, service))


@router.get("/templates/{key}", operation_id="getTemplate")
def get_template(service: ServiceOf, _: Reader, key: Which, response: Response) -> Template:
    """A template, by its key or the start of it."""
    view = _template(service, key)
    response.headers["ETag"] = _tag(view)
    return Template(**vars(view))


@router.delete(
    "/templates/{key}",
    operation_id="deleteTemplate",
    status_code=202,
    response_model=Job,
    responses={204: {"description": "The template is gone."}},
)
async def delete_template(
    service: ServiceOf, caller: Admin, key: Which, wait: Wait, if_match: IfMatch = None
) -> Response:
    """Remove a template, by its key or the start of it, that no lab was cloned from."""
    job = await run_in_threadpool(submit_delete_template, service, caller, key, if_match)
    return await outcome(service, job, wait, _gone)


def submit_image(
    service: Service, caller: Caller, asked: ImageRequest, key: str | None
) -> JobRecord:
    """Have an image built; raises NotFound for an unknown recipe."""
    load(asked.recipe)
    return submit(service, new_job(caller, "build-image", asked.model_dump(), key=key))


def _image_made(service: Service, caller: Caller, job: JobRecord) -> Response:
    with service.contexts.use() as ctx:
        view = catalog.image(ctx, Owner.parse(job.about).name)
    headers = {"ETag": _tag(view), "Location": f"/v1/images/{view.key}"}
    return JSONResponse(
        _image(view, caller).model_dump(mode="json"), status_code=201, headers=headers
    )


def submit_delete_image(
    service: Service, caller: Caller, which: str, if_match: str | None
) -> JobRecord:
    """Have an image removed; raises NotFound, Changed, Conflict if it is used."""
    with service.contexts.use() as ctx:
        view = catalog.image(ctx, which)
    check_tag(f"the image {view.key}", _tag(view), if_match)
    return _delete(service, caller, "delete-image", Owner("image", view.key), view.used_by)


def _build_template(
    service: Service, caller: Caller, asked: TemplateRequest, key: str | None
) -> JobRecord:
    request = {k: "" if v is None else v for k, v in asked.model_dump().items()} | _NO_LAB
    spec = spec_of(request)
    planned(spec)
    service.settings.profile_of(spec.profile)
    job = new_job(caller, "build-template", request, key=key)
    return submit(service, job, lambda: service.admission.check(need_of(spec)))


def _template_made(service: Service, job: JobRecord) -> Response:
    view = _template(service, Owner.parse(job.about).name)
    headers = {"ETag": _tag(view), "Location": f"/v1/templates/{view.key}"}
    body = Template(**vars(view)).model_dump(mode="json")
    return JSONResponse(body, status_code=201, headers=headers)


def submit_delete_template(
    service: Service, caller: Caller, which: str, if_match: str | None
) -> JobRecord:
    """Have a template removed; raises NotFound, Changed, Conflict if it is used."""
    view = _template(service, which)
    check_tag(f"the template {view.key}", _tag(view), if_match)
    users = [lab.name for lab in service.store.labs.all() if lab.template == view.key]
    return _delete(service, caller, "delete-template", Owner("template", view.key), users)


def _delete(
    service: Service,
    caller: Caller,
    kind: JobKind,
    owner: Owner,
    users: Sequence[str],
) -> JobRecord:
    if users:
        raise Conflict(
            f"the {owner.kind} {owner.name} is used by {', '.join(users)}",
            hint="DELETE these first; labs of a warm pool go when the settings ask for none",
        )
    return submit(service, new_job(caller, kind, {}, about=str(owner)))


def _gone(_: JobRecord) -> Response:
    return Response(status_code=204)


def _template(service: Service, which: str) -> TemplateView:
    """A template; raises NotFound."""
    with service.contexts.use() as ctx:
        key = template.named(ctx, which).key
        return next(view for view in catalog.templates(ctx) if view.key == key)


def _tag(view: ImageView | TemplateView) -> str:
    return tag_of(view.key, view.created_at, view.state, view.size)


def _image(view: ImageView, caller: Caller) -> Image:
    known = {name: getattr(view, name) for name in Image.model_fields}
    known["used_by"] = list(view.used_by) if caller.project is None else []
    return Image(**known)

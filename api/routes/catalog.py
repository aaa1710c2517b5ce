"""/v1/engines, /v1/images, /v1/templates. They belong to the host: admins change them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Path
from fastapi.responses import JSONResponse, Response
from msgspec.structs import replace

from lab.api.core.admission import need_of, need_of_guest
from lab.api.core.core import Core
from lab.api.core.threads import Route, in_thread
from lab.api.http.answers import Answer, answer, many, model
from lab.api.http.auth import Admin, Caller, Reader
from lab.api.http.bodies import FromBody
from lab.api.http.conditional import IfMatch, check_tag, tag_of
from lab.api.http.dependencies import CoreOf, JobsOf
from lab.api.http.job_answer import Key, Wait, job_answer
from lab.api.jobs.data import check_fleet_data, check_image, hidden
from lab.api.jobs.jobs import Jobs
from lab.api.jobs.quota import check_guests
from lab.api.jobs.submit import new_job, submit
from lab.blueprints import planned
from lab.config.enginefile import image_recipe
from lab.errors import Conflict
from lab.imagebuild import added
from lab.imagebuild.in_guest.builder import SIZE as BUILDER
from lab.imagebuild.recipe import load
from lab.lifecycle.captures import template
from lab.lifecycle.host import catalog, engines
from lab.names import Owner
from lab.requests.images import BuildImage, BuildTemplate, DeleteImage, DeleteTemplate
from lab.state.service import JobRecord
from lab.views.catalog import EngineView, ImageView, TemplateView
from lab.views.jobs import JobView

router = APIRouter(prefix="/v1", tags=["host"], route_class=Route)

Which = Annotated[str, Path(max_length=100, pattern=r"^[a-z0-9][a-z0-9.-]*$")]


@router.get("/engines", operation_id="listEngines", response_model=many(EngineView))
def list_engines(core: CoreOf, caller: Reader) -> list[Answer]:
    """All engines, each with its series: what labs can run on, and what is built."""
    with core.contexts.use() as ctx:
        return [_answer(view, caller) for view in engines.engines(ctx)]


@router.get("/images", operation_id="listImages", response_model=many(ImageView))
def images(core: CoreOf, caller: Reader) -> list[Answer]:
    """All images, but those with data of other projects."""
    unseen = hidden(core.store, caller.project)
    with core.contexts.use() as ctx:
        found = [view for view in catalog.images(ctx) if view.key not in unseen]
    return [_answer(view, caller) for view in found]


@router.post(
    "/images",
    operation_id="buildImage",
    status_code=202,
    response_model=model(JobView),
    responses={201: {"model": model(ImageView), "description": "The image exists."}},
)
async def build_image(
    core: CoreOf,
    jobs: JobsOf,
    caller: Admin,
    asked: FromBody[BuildImage],
    wait: Wait,
    key: Key = None,
) -> Response:
    """Build an image from a recipe, unless it exists."""
    job = await in_thread(submit_image, jobs, caller, asked, key)
    return await job_answer(core, job, wait, partial(_image_made, core, caller))


@router.get("/images/{key}", operation_id="getImage", response_model=model(ImageView))
def image(core: CoreOf, caller: Reader, key: Which, response: Response) -> Answer:
    """An image, by its key or its recipe."""
    check_image(core.store, caller.project, key)
    with core.contexts.use() as ctx:
        view = catalog.image(ctx, key)
    response.headers["ETag"] = _tag(view)
    return _answer(view, caller)


@router.delete(
    "/images/{key}",
    operation_id="deleteImage",
    status_code=202,
    response_model=model(JobView),
    responses={204: {"description": "The image is removed."}},
)
async def delete_image(
    core: CoreOf, jobs: JobsOf, caller: Admin, key: Which, wait: Wait, if_match: IfMatch = None
) -> Response:
    """Remove an image that no template or lab uses, by its key or its recipe."""
    job = await in_thread(submit_delete_image, jobs, caller, key, if_match)
    return await job_answer(core, job, wait, _gone)


@router.get("/templates", operation_id="listTemplates", response_model=many(TemplateView))
def templates(core: CoreOf, caller: Reader) -> list[Answer]:
    """All templates, but those with data of other projects."""
    unseen = hidden(core.store, caller.project)
    with core.contexts.use() as ctx:
        return [answer(view) for view in catalog.templates(ctx) if not _of(view, unseen)]


@router.post(
    "/templates",
    operation_id="buildTemplate",
    status_code=202,
    response_model=model(JobView),
    responses={201: {"model": model(TemplateView), "description": "The template exists."}},
)
async def build_template(
    core: CoreOf,
    jobs: JobsOf,
    caller: Admin,
    asked: FromBody[BuildTemplate],
    wait: Wait,
    key: Key = None,
) -> Response:
    """Form a cluster and capture it as a template, unless it exists; its image is built first."""
    job = await in_thread(_build_template, jobs, caller, asked, key)
    return await job_answer(core, job, wait, partial(_template_made, core))


@router.get("/templates/{key}", operation_id="getTemplate", response_model=model(TemplateView))
def get_template(core: CoreOf, caller: Reader, key: Which, response: Response) -> Answer:
    """A template, by its key or a prefix of it."""
    view = _template(core, key, hidden(core.store, caller.project))
    response.headers["ETag"] = _tag(view)
    return answer(view)


@router.delete(
    "/templates/{key}",
    operation_id="deleteTemplate",
    status_code=202,
    response_model=model(JobView),
    responses={204: {"description": "The template is removed."}},
)
async def delete_template(
    core: CoreOf, jobs: JobsOf, caller: Admin, key: Which, wait: Wait, if_match: IfMatch = None
) -> Response:
    """Remove a template that no lab was cloned from, by its key or a prefix of it."""
    job = await in_thread(submit_delete_template, jobs, caller, key, if_match)
    return await job_answer(core, job, wait, _gone)


def submit_image(jobs: Jobs, caller: Caller, asked: BuildImage, key: str | None) -> JobRecord:
    """Submit the job that builds an image; raises NotFound for an unknown recipe."""
    engines = jobs.core.settings.home.engines
    recipe = load(image_recipe(asked.recipe), engines=engines).name
    request = replace(asked, recipe=recipe)
    guests = [BUILDER] if jobs.core.settings.builder is not None else []
    job = new_job(caller.token, request, key=key, guests=guests)

    def check() -> None:
        for guest in guests:
            jobs.core.admission.check(need_of_guest(guest), "the build needs")
        check_guests(jobs.core, caller.token, job.project, guests, added="this image's build")

    return submit(jobs, job, check)


def _image_made(core: Core, caller: Caller, job: JobRecord) -> Response:
    with core.contexts.use() as ctx:
        view = catalog.image(ctx, Owner.parse(job.about).name)
    headers = {"ETag": _tag(view), "Location": f"/v1/images/{view.key}"}
    body = _answer(view, caller).model_dump(mode="json")
    return JSONResponse(body, status_code=201, headers=headers)


def submit_delete_image(jobs: Jobs, caller: Caller, which: str, if_match: str | None) -> JobRecord:
    """Submit the removal of an image; raises NotFound, Changed, Conflict if it is used."""
    with jobs.core.contexts.use() as ctx:
        view = catalog.image(ctx, which)
    check_tag(f"the image {view.key}", _tag(view), if_match)
    _check_unused(Owner("image", view.key), view.used_by)
    return submit(jobs, new_job(caller.token, DeleteImage(which=view.key)))


def _build_template(jobs: Jobs, caller: Caller, asked: BuildTemplate, key: str | None) -> JobRecord:
    asked.check()
    request = replace(asked, nodes=asked.node_count)
    core = jobs.core
    check_fleet_data(core, caller.project, request)
    there = added.families(core.settings.home.engines)
    guests = [node.size for node in planned(request, there)]
    core.settings.profile_of(request.profile)
    job = new_job(caller.token, request, key=key, guests=guests)

    def check() -> None:
        core.admission.check(need_of(request))
        check_guests(core, caller.token, job.project, guests, added="this template's nodes")

    return submit(jobs, job, check)


def _template_made(core: Core, job: JobRecord) -> Response:
    view = _template(core, Owner.parse(job.about).name)
    headers = {"ETag": _tag(view), "Location": f"/v1/templates/{view.key}"}
    body = answer(view).model_dump(mode="json")
    return JSONResponse(body, status_code=201, headers=headers)


def submit_delete_template(
    jobs: Jobs, caller: Caller, which: str, if_match: str | None
) -> JobRecord:
    """Submit the removal of a template; raises NotFound, Changed, Conflict if it is used."""
    core = jobs.core
    view = _template(core, which)
    check_tag(f"the template {view.key}", _tag(view), if_match)
    users = [lab.name for lab in core.store.labs.all() if lab.template == view.key]
    _check_unused(Owner("template", view.key), users)
    return submit(jobs, new_job(caller.token, DeleteTemplate(key=view.key)))


def _check_unused(owner: Owner, users: Sequence[str]) -> None:
    if users:
        raise Conflict(
            f"the {owner.kind} {owner.name} is used by {', '.join(users)}",
            hint="remove these first; set the count of a warm pool to 0 to remove its labs",
        )


def _gone(_: JobRecord) -> Response:
    return Response(status_code=204)


def _template(core: Core, which: str, unseen: Collection[str] = ()) -> TemplateView:
    """A template that was formed of none of the images ``unseen``; raises NotFound."""
    with core.contexts.use() as ctx:
        there = {view.key: view for view in catalog.templates(ctx) if not _of(view, unseen)}
    return there[template.meant(there, which)]


def _of(view: TemplateView, images: Collection[str]) -> bool:
    """Whether a template was formed of one of ``images``."""
    return view.image in images or any(node.image in images for node in view.each)


def _tag(view: ImageView | TemplateView) -> str:
    return tag_of(view.key, view.created_at, view.state, view.size)


def _answer(view: ImageView | EngineView, caller: Caller) -> Answer:
    return answer(view, admin=caller.project is None)

"""Images and templates as pages; only administrators build and remove them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from fastapi import APIRouter, Request
from fastapi.responses import Response

from lab.api.core.core import Core
from lab.api.http.auth import Caller
from lab.api.http.dependencies import CoreOf, JobsOf
from lab.api.routes import catalog
from lab.api.routes.catalog import Which
from lab.api.web import forms, pages
from lab.api.web.request import AdminAccess, Fields, PageRoute, ReadAccess
from lab.errors import LabError
from lab.imagebuild import added
from lab.imagebuild.recipe import recipes

router = APIRouter(route_class=PageRoute, include_in_schema=False)


@router.get("/images", operation_id="imagesPage")
def images(request: Request, core: CoreOf, caller: ReadAccess) -> Response:
    """All images, and a form that builds one."""
    return _images(request, core, caller)


@router.post("/images", operation_id="buildImage")
def build_image(
    request: Request, core: CoreOf, jobs: JobsOf, caller: AdminAccess, fields: Fields
) -> Response:
    """Build an image, and show its job."""

    def act() -> str:
        asked = forms.image_request(fields)
        return f"/jobs/{catalog.submit_image(jobs, caller, asked, forms.key_of(fields)).id}"

    return pages.done(act, partial(_images, request, core, caller, typed=fields))


@router.post("/images/{key}/delete", operation_id="deleteImage")
def delete_image(
    request: Request, core: CoreOf, jobs: JobsOf, caller: AdminAccess, key: Which
) -> Response:
    """Remove an image, and show its job."""

    def act() -> str:
        return f"/jobs/{catalog.submit_delete_image(jobs, caller, key, None).id}"

    return pages.done(act, partial(_images, request, core, caller))


@router.get("/templates", operation_id="templatesPage")
def templates(request: Request, core: CoreOf, caller: ReadAccess) -> Response:
    """All templates."""
    return _templates(request, core, caller)


@router.post("/templates/{key}/delete", operation_id="deleteTemplate")
def delete_template(
    request: Request, core: CoreOf, jobs: JobsOf, caller: AdminAccess, key: Which
) -> Response:
    """Remove a template, and show its job."""

    def act() -> str:
        return f"/jobs/{catalog.submit_delete_template(jobs, caller, key, None).id}"

    return pages.done(act, partial(_templates, request, core, caller))


def _images(
    request: Request,
    core: Core,
    caller: Caller,
    error: LabError | None = None,
    *,
    typed: Mapping[str, str] | None = None,
) -> Response:
    return pages.page(
        request,
        "images.html",
        at="/images",
        images=catalog.images(core, caller),
        recipes=[*recipes(), *added.families(core.settings.home.engines)],
        key=forms.new_key(),
        typed=typed or {},
        **pages.outcome(error),
    )


def _templates(
    request: Request, core: Core, caller: Caller, error: LabError | None = None
) -> Response:
    found = catalog.templates(core, caller)
    return pages.page(
        request, "templates.html", at="/templates", templates=found, **pages.outcome(error)
    )

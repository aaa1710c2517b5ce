"""Images and templates as pages: the host's, and so for administrators to make and remove."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from fastapi import APIRouter, Request
from fastapi.responses import Response

from lab.api.http.auth import Caller, ServiceOf
from lab.api.routes import catalog
from lab.api.routes.catalog import Which
from lab.api.service import Service
from lab.api.web import forms, pages
from lab.api.web.request import Administering, Fields, Looking, PageRoute
from lab.errors import LabError
from lab.imagebuild.recipe import recipes

router = APIRouter(route_class=PageRoute, include_in_schema=False)


@router.get("/images", operation_id="imagesPage")
def images(request: Request, service: ServiceOf, caller: Looking) -> Response:
    """All images, and a form that builds one."""
    return _images(request, service, caller)


@router.post("/images", operation_id="buildImage")
def build_image(
    request: Request, service: ServiceOf, caller: Administering, fields: Fields
) -> Response:
    """Build an image, and show its job."""

    def act() -> str:
        asked = forms.image_request(fields)
        return f"/jobs/{catalog.submit_image(service, caller, asked, forms.key_of(fields)).id}"

    return pages.done(act, partial(_images, request, service, caller, typed=fields))


@router.post("/images/{key}/delete", operation_id="deleteImage")
def delete_image(
    request: Request, service: ServiceOf, caller: Administering, key: Which
) -> Response:
    """Remove an image, and show its job."""

    def act() -> str:
        return f"/jobs/{catalog.submit_delete_image(service, caller, key, None).id}"

    return pages.done(act, partial(_images, request, service, caller))


@router.get("/templates", operation_id="templatesPage")
def templates(request: Request, service: ServiceOf, caller: Looking) -> Response:
    """All templates."""
    return _templates(request, service, caller)


@router.post("/templates/{key}/delete", operation_id="deleteTemplate")
def delete_template(
    request: Request, service: ServiceOf, caller: Administering, key: Which
) -> Response:
    """Remove a template, and show its job."""

    def act() -> str:
        return f"/jobs/{catalog.submit_delete_template(service, caller, key, None).id}"

    return pages.done(act, partial(_templates, request, service, caller))


def _images(
    request: Request,
    service: Service,
    caller: Caller,
    error: LabError | None = None,
    *,
    typed: Mapping[str, str] | None = None,
) -> Response:
    return pages.page(
        request,
        "images.html",
        at="/images",
        images=catalog.images(service, caller),
        recipes=recipes(),
        key=forms.new_key(),
        typed=typed or {},
        **pages.told(error),
    )


def _templates(
    request: Request, service: Service, caller: Caller, error: LabError | None = None
) -> Response:
    found = catalog.templates(service, caller)
    return pages.page(
        request, "templates.html", at="/templates", templates=found, **pages.told(error)
    )

"""What the host has: /v1/host, /v1/images, /v1/templates; and who did what: /v1/audit."""

from __future__ import annotations

import os
from typing import Annotated

from fastapi import APIRouter, Path, Query
from fastapi.responses import Response

from api.answers import ID_LIMIT
from api.auth import Admin, Caller, Reader, ServiceOf
from api.models import AuditEntry, Capacity, Host, Image, Page, Template
from lab import host as machine
from lab.errors import NotFound
from lab.lifecycle import authority, catalog
from lab.lifecycle.views import ImageView

router = APIRouter(prefix="/v1", tags=["host"])

Key = Annotated[str, Path(max_length=100, pattern=r"^[a-z0-9][a-z0-9.-]*$")]


@router.get("/host", operation_id="getHost")
def host(service: ServiceOf, _: Reader) -> Host:
    """What the host can do, and what room it has."""
    settings, admission = service.settings, service.admission
    with service.contexts.use() as ctx:
        can, space = ctx.hypervisor.capabilities(), ctx.storage.space()
        labs = sum(not lab.pool for lab in ctx.store.labs.all())
    used = admission.used()
    first, last = settings.port_range
    return Host(
        hypervisor=can.name,
        accelerator=can.accelerator,
        warm=can.warm,
        why_cold=can.why_cold,
        storage=settings.storage,
        memory=Capacity(total=admission.memory_budget, used=used.memory),
        memory_available=machine.memory().available,
        ports=Capacity(total=last - first + 1, used=used.ports),
        processors=os.cpu_count() or 1,
        space_free=space.free,
        space_total=space.total,
        labs=labs,
        waiting=admission.waiting,
        pools=service.pool.views(),
    )


class Pem(Response):
    """A certificate."""

    media_type = "application/x-pem-file"


@router.get("/host/ca", operation_id="getAuthority", response_class=Pem)
def ca(service: ServiceOf, _: Reader) -> Pem:
    """The certificate that clients check database servers with, as PEM."""
    return Pem(authority.certificate(service.settings.home).read_bytes())


@router.get("/images", operation_id="listImages")
def images(service: ServiceOf, caller: Reader) -> list[Image]:
    """All images."""
    with service.contexts.use() as ctx:
        return [_image(view, caller) for view in catalog.images(ctx)]


@router.get("/images/{key}", operation_id="getImage")
def image(service: ServiceOf, caller: Reader, key: Key) -> Image:
    """An image, by its key or its recipe."""
    with service.contexts.use() as ctx:
        return _image(catalog.image(ctx, key), caller)


@router.get("/templates", operation_id="listTemplates")
def templates(service: ServiceOf, _: Reader) -> list[Template]:
    """All templates."""
    with service.contexts.use() as ctx:
        return [Template(**vars(view)) for view in catalog.templates(ctx)]


@router.get("/templates/{key}", operation_id="getTemplate")
def template(service: ServiceOf, _: Reader, key: Key) -> Template:
    """A template."""
    with service.contexts.use() as ctx:
        for view in catalog.templates(ctx):
            if view.key == key:
                return Template(**vars(view))
    raise NotFound(f"there is no template {key!r}", hint="GET /v1/templates lists the templates")


@router.get("/audit", operation_id="listAudit")
def audit(
    service: ServiceOf,
    _: Admin,
    after: Annotated[int | None, Query(ge=1, le=ID_LIMIT)] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
) -> Page[AuditEntry]:
    """Who did what, the latest first."""
    found = service.store.audit.latest(before=after, limit=limit + 1)
    items = [AuditEntry(**vars(record)) for record in found[:limit]]
    return Page(items=items, next=str(items[-1].id) if len(found) > limit else None)


def _image(view: ImageView, caller: Caller) -> Image:
    known = {name: getattr(view, name) for name in Image.model_fields}
    known["used_by"] = list(view.used_by) if caller.project is None else []
    return Image(**known)

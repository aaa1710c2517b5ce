"""What the host is: /v1/host; and who did what: /v1/audit."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import Response
from pydantic import BaseModel, Field

from lab import host as machine
from lab.api.http.answers import ID_LIMIT
from lab.api.http.auth import Admin, Reader, ServiceOf
from lab.api.http.models import Asked, AuditEntry, Capacity, Host, Page
from lab.api.http.units import IN_SECONDS, Seconds
from lab.api.service import Service
from lab.lifecycle.gc import gc
from lab.lifecycle.nodes import home_ca

router = APIRouter(prefix="/v1", tags=["host"])


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
        processors=machine.processors(),
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
    return Pem(home_ca.certificate(service.settings.home).read_bytes())


class GcRequest(Asked):
    """What to clear away, as for `lab gc`."""

    dry_run: Annotated[bool, Field(description="Only say what would go.")] = False
    orphans: Annotated[
        bool, Field(description="Also what carries our tag but is not recorded.")
    ] = False
    unused: Annotated[
        bool, Field(description="Also images and templates of which nothing is made now.")
    ] = False
    age: Annotated[
        Seconds,
        Field(
            ge=0, le=10 * 366 * 86400, description=f"Of those: not used for so long, {IN_SECONDS}."
        ),
    ] = 0.0


class GcReport(BaseModel):
    """What was removed, what was left and why, and what schedules had done to snapshots."""

    removed: list[str]
    left: list[str]
    snapshots: list[str]


@router.post("/host/gc", operation_id="collectGarbage")
async def collect(service: ServiceOf, caller: Admin, asked: GcRequest) -> GcReport:
    """Clear away what is left over; what expires and what its own jobs leave the service clears."""
    return await service.sweeps.run(caller.token.id, partial(_collect, service, asked))


def _collect(service: Service, asked: GcRequest) -> GcReport:
    with service.contexts.use() as ctx:
        return GcReport(**vars(gc(ctx, **asked.model_dump())))


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

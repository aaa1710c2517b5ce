"""The host: /v1/host; the audit trail: /v1/audit."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import Response

from lab import host as machine
from lab.api.core.admission import Need, need_of_lab
from lab.api.core.core import Core
from lab.api.core.threads import Route
from lab.api.http.answers import Answer, Page, answer, model, page, paged
from lab.api.http.auth import Admin, Reader
from lab.api.http.bodies import FromBody
from lab.api.http.dependencies import CoreOf
from lab.api.http.queries import Limit, OfHost, check_own
from lab.api.http.units import ID_LIMIT
from lab.lifecycle.host.gc import gc
from lab.lifecycle.nodes import home_ca
from lab.requests.host import CollectGarbage
from lab.state.records import LabWithNodes
from lab.views.host import AuditEntry, Capacity, GcReport, Host, PoolView, Usage

router = APIRouter(prefix="/v1", tags=["host"], route_class=Route)


@router.get("/host", operation_id="getHost", response_model=model(Host))
def host(core: CoreOf, caller: Reader) -> Answer:
    """The host's capabilities and capacity."""
    settings, admission = core.settings, core.admission
    with core.contexts.use() as ctx:
        can, space = ctx.hypervisor.capabilities(), ctx.storage.space()
        found = ctx.store.labs_with_nodes()
    labs = [one for one in found if not one.lab.pool]
    used = admission.used()
    first, last = settings.port_range
    view = Host(
        hypervisor=can.name,
        accelerator=can.accelerator,
        warm=not can.why_cold,
        why_cold=can.why_cold,
        storage=settings.storage,
        memory=Capacity(admission.memory_budget, used.memory),
        memory_available=machine.memory().available,
        ports=Capacity(last - first + 1, used.ports),
        processors=machine.processors(),
        processors_used=used.cpus,
        space_free=space.free,
        space_total=space.total,
        labs=len(labs),
        pooled=len(found) - len(labs),
        projects=_projects([one for one in labs if caller.sees(one.lab.project)]),
        waiting=admission.waiting,
        pools=_pools(core),
    )
    return answer(view)


def _projects(labs: Sequence[LabWithNodes]) -> tuple[Usage, ...]:
    found = []
    for project in sorted({one.lab.project for one in labs}):
        needs = [need_of_lab(one) for one in labs if one.lab.project == project]
        total = sum(needs, Need())
        found.append(Usage(project, len(needs), total.memory, total.cpus))
    return tuple(found)


def _pools(core: Core) -> tuple[PoolView, ...]:
    ready = core.pool.counts()
    requests = {pool.name: core.pool.requests(pool.name) for pool in core.pool.pools}
    return tuple(
        PoolView(
            name=pool.name,
            blueprint=pool.spec.blueprint,
            nodes=pool.spec.node_count,
            memory=pool.spec.memory,
            count=pool.count,
            ready=ready[pool.name],
            hits=requests[pool.name][0],
            misses=requests[pool.name][1],
        )
        for pool in core.pool.pools
    )


class Pem(Response):
    """A certificate, which is a chain of one; in a fleet, one of each host.

    Its type is the one that is registered for certificates as PEM (RFC 8555); the usual
    application/x-pem-file is not.
    """

    media_type = "application/pem-certificate-chain"


@router.get("/host/ca", operation_id="getAuthority", response_class=Pem)
def ca(core: CoreOf, _: Reader) -> Pem:
    """The CA certificate that verifies the database servers, as PEM; of a fleet, those of all."""
    if core.fleet is not None:
        return Pem(core.fleet.authorities())
    return Pem(home_ca.certificate(core.settings.home).read_bytes())


@router.post("/host/gc", operation_id="collectGarbage", response_model=model(GcReport))
async def collect(core: CoreOf, caller: Admin, asked: FromBody[CollectGarbage]) -> Answer:
    """Remove leftovers of interrupted commands; the service removes those of its own jobs."""
    report = await core.limits.collections.run(caller.token.id, partial(_collect, core, asked))
    return answer(report)


def _collect(core: Core, asked: CollectGarbage) -> GcReport:
    with core.contexts.use() as ctx:
        return gc(ctx, asked)


@router.get("/audit", operation_id="listAudit", response_model=page(AuditEntry))
def audit(
    core: CoreOf,
    _: Admin,
    after: Annotated[int | None, Query(ge=1, le=ID_LIMIT)] = None,
    limit: Limit = 100,
    host: OfHost = None,
) -> Page[Answer]:
    """The audit trail of a host, the latest entry first."""
    check_own(core, host)
    found = core.store.audit.latest(before=after, limit=limit + 1)
    own = core.settings.serve.host_name
    items = [answer(record, AuditEntry, host_name=own) for record in found[:limit]]
    return paged(AuditEntry, items, found[limit - 1].id if len(found) > limit else None)

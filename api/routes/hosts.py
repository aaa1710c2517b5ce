"""The hosts of a fleet: /v1/hosts; the jobs that wait for one: /v1/queue."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Path
from fastapi.responses import Response

from lab.api.core.core import Core
from lab.api.core.fleet import Fleet
from lab.api.core.threads import Route
from lab.api.http.answers import Answer, Page, answer, many, model, page, paged
from lab.api.http.auth import Admin, Caller, Reader
from lab.api.http.dependencies import CoreOf
from lab.api.http.queries import Limit
from lab.api.jobs import placing
from lab.errors import NotFound
from lab.fleet import hosts, placements
from lab.names import FLEET_HOST
from lab.views.fleet import host_view
from lab.views.host import FleetHost
from lab.views.jobs import JobView

router = APIRouter(prefix="/v1", tags=["host"], route_class=Route)

Name = Annotated[str, Path(pattern=FLEET_HOST, examples=["h1"])]


def fleet_of(core: Core) -> Fleet:
    """The fleet of this host; raises NotFound if it belongs to none."""
    if core.fleet is None:
        raise NotFound(
            "this host belongs to no fleet", hint="`lab serve --database URL --host-name NAME`"
        )
    return core.fleet


@router.get("/hosts", operation_id="listHosts", response_model=page(FleetHost))
def list_hosts(core: CoreOf, caller: Reader) -> Page[Answer]:
    """The hosts of the fleet, by name."""
    now, admin = time.time(), caller.may("admin")
    views = [host_view(one, now) for one in fleet_of(core).refresh()]
    return paged(FleetHost, [answer(view, admin=admin) for view in views], None)


@router.get("/hosts/{name}", operation_id="getFleetHost", response_model=model(FleetHost))
def show(core: CoreOf, caller: Reader, name: Name) -> Answer:
    """A host of the fleet."""
    fleet_of(core).refresh()
    return _one(core, caller, name)


@router.post("/hosts/{name}/drain", operation_id="drainHost", response_model=model(FleetHost))
def drain(core: CoreOf, caller: Admin, name: Name) -> Answer:
    """Place no further labs on a host; those that it has stay."""
    return _drained(core, caller, name, draining=True)


@router.post("/hosts/{name}/undrain", operation_id="undrainHost", response_model=model(FleetHost))
def undrain(core: CoreOf, caller: Admin, name: Name) -> Answer:
    """Place labs on a host again."""
    return _drained(core, caller, name, draining=False)


@router.delete("/hosts/{name}", operation_id="removeHost", status_code=204)
def remove(core: CoreOf, _: Admin, name: Name) -> Response:
    """Forget a host that is lost, or that has neither labs nor jobs."""
    hosts.remove(fleet_of(core).database, name)
    fleet_of(core).refresh()
    return Response(status_code=204)


@router.get("/queue", operation_id="listQueue", response_model=many(JobView))
def queue(core: CoreOf, caller: Reader, limit: Limit = 100) -> list[Answer]:
    """The jobs of the fleet that no host has begun, the oldest first.

    `host_name` is the host that each was placed on; empty: none has room for it yet.
    """
    found = placements.waiting(fleet_of(core).database, caller.project, limit)
    return [answer(placing.record_of(one), JobView, host_name=one.host) for one in found]


def _drained(core: Core, caller: Caller, name: str, *, draining: bool) -> Answer:
    fleet = fleet_of(core)
    hosts.drain(fleet.database, name, draining=draining)
    fleet.refresh()
    fleet.signal("")
    return _one(core, caller, name)


def _one(core: Core, caller: Caller, name: str) -> Answer:
    found = fleet_of(core).host(name)
    if found is None:
        raise NotFound(
            f"the fleet has no host {name}", hint="`lab host ls`, or GET /v1/hosts, lists them"
        )
    return answer(host_view(found, time.time()), admin=caller.may("admin"))

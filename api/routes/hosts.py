"""The hosts of a fleet: /v1/hosts."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Path
from fastapi.responses import Response

from lab.api.core.core import Core
from lab.api.core.fleet import Fleet
from lab.api.core.threads import Route
from lab.api.http.answers import Answer, Page, answer, model, page, paged
from lab.api.http.auth import Admin, Reader
from lab.api.http.dependencies import CoreOf
from lab.errors import NotFound
from lab.fleet import hosts
from lab.views.fleet import host_view
from lab.views.host import FleetHost

router = APIRouter(prefix="/v1/hosts", tags=["host"], route_class=Route)

Name = Annotated[str, Path(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$", examples=["h1"])]


def fleet_of(core: Core) -> Fleet:
    """The fleet of this host; raises NotFound if it belongs to none."""
    if core.fleet is None:
        raise NotFound(
            "this host belongs to no fleet", hint="`lab serve --database URL --host-name NAME`"
        )
    return core.fleet


@router.get("", operation_id="listHosts", response_model=page(FleetHost))
def list_hosts(core: CoreOf, _: Reader) -> Page[Answer]:
    """The hosts of the fleet, by name."""
    now = time.time()
    views = [host_view(one, now) for one in fleet_of(core).refresh()]
    return paged(FleetHost, [answer(view) for view in views], None)


@router.get("/{name}", operation_id="getFleetHost", response_model=model(FleetHost))
def show(core: CoreOf, _: Reader, name: Name) -> Answer:
    """A host of the fleet."""
    fleet_of(core).refresh()
    return _one(core, name)


@router.post("/{name}/drain", operation_id="drainHost", response_model=model(FleetHost))
def drain(core: CoreOf, _: Admin, name: Name) -> Answer:
    """Place no further labs on a host; those that it has stay."""
    return _drained(core, name, draining=True)


@router.post("/{name}/undrain", operation_id="undrainHost", response_model=model(FleetHost))
def undrain(core: CoreOf, _: Admin, name: Name) -> Answer:
    """Place labs on a host again."""
    return _drained(core, name, draining=False)


@router.delete("/{name}", operation_id="removeHost", status_code=204)
def remove(core: CoreOf, _: Admin, name: Name) -> Response:
    """Forget a host that is lost, or that has neither labs nor jobs."""
    hosts.remove(fleet_of(core).database, name)
    fleet_of(core).refresh()
    return Response(status_code=204)


def _drained(core: Core, name: str, *, draining: bool) -> Answer:
    fleet = fleet_of(core)
    hosts.drain(fleet.database, name, draining=draining)
    fleet.refresh()
    fleet.signal("")
    return _one(core, name)


def _one(core: Core, name: str) -> Answer:
    found = fleet_of(core).host(name)
    if found is None:
        raise NotFound(
            f"the fleet has no host {name}", hint="`lab host ls`, or GET /v1/hosts, lists them"
        )
    return answer(host_view(found, time.time()))

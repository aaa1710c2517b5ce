"""The hosts of a fleet as a page; only administrators drain them."""

from __future__ import annotations

import time

from fastapi import APIRouter, Request
from fastapi.responses import Response

from lab.api.core.core import Core
from lab.api.http.auth import Caller
from lab.api.http.dependencies import CoreOf
from lab.api.routes import hosts
from lab.api.routes.hosts import Name
from lab.api.web import pages
from lab.api.web.request import AdminAccess, PageRoute, ReadAccess
from lab.views.fleet import capture_rows, host_view

router = APIRouter(route_class=PageRoute, include_in_schema=False)

_WAITING = 50
"""Jobs of the queue that are shown."""


@router.get("/hosts", operation_id="hostsPage")
def list_page(request: Request, core: CoreOf, caller: ReadAccess) -> Response:
    """The hosts of the fleet, what waits for one, and what each has to clone labs from."""
    return _list(request, core, caller)


@router.post("/hosts/{name}/drain", operation_id="drainHost")
def drain(core: CoreOf, caller: AdminAccess, name: Name) -> Response:
    """Place no further labs on a host."""
    hosts.drain(core, caller, name)
    return pages.go("/hosts")


@router.post("/hosts/{name}/undrain", operation_id="undrainHost")
def undrain(core: CoreOf, caller: AdminAccess, name: Name) -> Response:
    """Place labs on a host again."""
    hosts.undrain(core, caller, name)
    return pages.go("/hosts")


def _list(request: Request, core: Core, caller: Caller) -> Response:
    now, found = time.time(), hosts.fleet_of(core).refresh()
    waiting = hosts.queue(core, caller, _WAITING + 1)
    return pages.page(
        request,
        "hosts.html",
        hosts=[host_view(one, now) for one in found],
        now=now,
        waiting=waiting[:_WAITING],
        more=len(waiting) > _WAITING,
        captures=capture_rows(found, data=caller.may("admin")),
    )

"""Power and logs of nodes as pages."""

from __future__ import annotations

from functools import partial
from typing import get_args

from fastapi import APIRouter, Request
from fastapi.responses import Response

from lab.api.core.core import Core
from lab.api.core.problem import problem
from lab.api.http.auth import Caller
from lab.api.http.dependencies import CoreOf, JobsOf
from lab.api.jobs.jobs import Jobs
from lab.api.routes.labs import Name
from lab.api.routes.logs import Lines, Source, last_lines
from lab.api.routes.power import (
    NodeName,
    submit_power,
    submit_promote,
)
from lab.api.web import pages
from lab.api.web.labs import lab_page
from lab.api.web.request import Fields, PageRoute, UseAccess
from lab.errors import LabError, NotFound
from lab.requests.labs import Action, NodeAction, Promote
from lab.views.nodes import LogLines

router = APIRouter(prefix="/labs/{name}", route_class=PageRoute, include_in_schema=False)


@router.post("/power/{action}", operation_id="powerLab")
def power_lab(
    request: Request, core: CoreOf, jobs: JobsOf, caller: UseAccess, name: Name, action: Action
) -> Response:
    """Start, stop, restart or kill all nodes, or have them sleep or wake."""
    return _power(request, core, jobs, caller, name, "", action)


@router.post("/nodes/{node}/power/{action}", operation_id="powerNode")
def power_node(
    request: Request,
    core: CoreOf,
    jobs: JobsOf,
    caller: UseAccess,
    name: Name,
    node: NodeName,
    action: NodeAction,
) -> Response:
    """Start, stop, restart or kill a node."""
    return _power(request, core, jobs, caller, name, node, action)


@router.post("/nodes/{node}/promote", operation_id="promoteNode")
def promote(
    request: Request,
    core: CoreOf,
    jobs: JobsOf,
    caller: UseAccess,
    name: Name,
    node: NodeName,
    fields: Fields,
) -> Response:
    """Have a node take the writes of its lab."""

    def act() -> str:
        asked = Promote(node=node, force=fields.get("force") == "yes")
        submit_promote(jobs, caller, name, asked)
        return f"/labs/{name}"

    return pages.done(act, partial(lab_page, request, core, caller, name))


@router.get("/nodes/{node}/logs", operation_id="logsPage")
async def logs(
    request: Request,
    core: CoreOf,
    caller: UseAccess,
    name: Name,
    node: NodeName,
    source: Source = "engine",
    lines: Lines = 200,
) -> Response:
    """The last lines of a node's log."""
    refused, found = None, LogLines(())
    try:
        wanted = partial(last_lines, core, caller, name, node, source, lines)
        found = await core.limits.programs.run(caller.token.id, wanted)
    except NotFound:
        raise
    except LabError as error:  # for example: the node is not running
        refused = problem(error)
    return pages.page(
        request,
        "logs.html",
        name=name,
        node=node,
        source=source,
        sources=get_args(Source),
        lines=found.lines,
        limit=lines,
        problem=refused,
    )


def _power(
    request: Request,
    core: Core,
    jobs: Jobs,
    caller: Caller,
    name: str,
    node: str,
    action: Action,
) -> Response:
    def act() -> str:
        submit_power(jobs, caller, name, node, action)
        return f"/labs/{name}"

    return pages.done(act, partial(lab_page, request, core, caller, name))

"""Starting and stopping labs and nodes, and looking into nodes."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path
from fastapi.responses import JSONResponse, Response
from starlette.concurrency import run_in_threadpool

from lab.api.http import problems
from lab.api.http.answers import Wait, Waiter, outcome
from lab.api.http.auth import Caller, Reader, ServiceOf, User
from lab.api.http.models import NODE, Command, Job, Node, Output
from lab.api.jobs.submit import new_job, submit
from lab.api.routes.labs import Name
from lab.api.service import Service
from lab.errors import CommandFailed, Forbidden, NotFound
from lab.lifecycle import node_access
from lab.lifecycle.nodes import inspect
from lab.state.records import JobRecord

router = APIRouter(prefix="/v1/labs/{name}", tags=["nodes"])

NodeName = Annotated[str, Path(pattern=NODE, examples=["n1"])]
_DONE: dict[int | str, dict[str, Any]] = {200: {"model": Job, "description": "It is done."}}
Action = Literal["start", "stop", "restart", "kill"]


@router.post(
    "/{action}", operation_id="powerLab", status_code=202, response_model=Job, responses=_DONE
)
async def power_lab(
    service: ServiceOf, caller: User, name: Name, action: Action, wait: Wait
) -> Response:
    """Start, stop, restart or kill all nodes of a lab; to kill is to pull the plug."""
    return await _power(service, caller, name, "", action, wait)


@router.get("/nodes", operation_id="listNodes")
def list_nodes(service: ServiceOf, caller: Reader, name: Name) -> list[Node]:
    """The nodes of a lab."""
    return _nodes(service, caller, name)


@router.get("/nodes/{node}", operation_id="getNode")
def get_node(service: ServiceOf, caller: Reader, name: Name, node: NodeName) -> Node:
    """A node of a lab."""
    for found in _nodes(service, caller, name):
        if found.name == node:
            return found
    raise NotFound(f"the lab {name} has no node {node}")


@router.post("/nodes/{node}/exec", operation_id="execute", response_model=Output)
async def execute(
    service: ServiceOf, caller: User, name: Name, node: NodeName, asked: Command
) -> Output | Response:
    """Run a program in a node as root, if the service's settings allow it.

    If the program fails, the answer is the problem command-failed with the status 422.
    """
    check_execute(service)
    run = partial(_execute, service, caller, name, node, asked)
    try:
        return await service.programs.run(caller.token.id, run)
    except CommandFailed as error:
        return problems.respond({**problems.problem(error), "status": 422})  # no fault of ours


@router.post(
    "/nodes/{node}/{action}",
    operation_id="powerNode",
    status_code=202,
    response_model=Job,
    responses=_DONE,
)
async def power_node(
    service: ServiceOf, caller: User, name: Name, node: NodeName, action: Action, wait: Wait
) -> Response:
    """Start, stop, restart or kill a node; to kill is to pull the plug."""
    return await _power(service, caller, name, node, action, wait)


def check_execute(service: Service) -> None:
    """Raise Forbidden if the settings keep everybody out of nodes."""
    if not service.settings.serve.execute:
        raise Forbidden("programs are not to be run in nodes here")


def _execute(service: Service, caller: Caller, name: str, node: str, asked: Command) -> Output:
    caller.lab(service, name)
    with service.contexts.use() as ctx:
        stdin = asked.stdin.encode(errors="replace")
        printed = node_access.execute(
            ctx, name, node, asked.argv, stdin=stdin, timeout=asked.timeout
        )
    return Output(stdout=printed.decode(errors="replace"))


async def _power(
    service: Service, caller: Caller, name: str, node: str, action: Action, wait: Waiter
) -> Response:
    job = await run_in_threadpool(submit_power, service, caller, name, node, action)
    return await outcome(service, job, wait, _done)


def submit_power(
    service: Service, caller: Caller, name: str, node: str, action: Action
) -> JobRecord:
    """The job that does ``action``, begun; of the whole lab if ``node`` is empty. NotFound."""
    record = caller.lab(service, name)
    with service.contexts.use() as ctx:
        if node:
            inspect.node_of(ctx, name, node)
    request = {"node": node, "force": action == "kill", "created_at": record.created_at}
    kind = "stop" if action == "kill" else action
    return submit(service, new_job(caller, kind, request, lab=name, project=record.project))


def _done(job: JobRecord) -> Response:
    headers = {"Location": f"/v1/labs/{job.lab}"}
    return JSONResponse(Job.of(job).model_dump(mode="json"), status_code=200, headers=headers)


def _nodes(service: Service, caller: Caller, name: str) -> list[Node]:
    caller.lab(service, name)
    with service.contexts.use() as ctx:
        return [Node.of(view) for view in inspect.lab(ctx, name).nodes]

"""Power and state of labs and nodes, and programs in nodes."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Path
from fastapi.responses import Response
from msgspec.structs import replace

from lab.api.core.core import Core
from lab.api.core.problem import problem
from lab.api.core.threads import Route, in_thread
from lab.api.http import problems
from lab.api.http.answers import Answer, answer, many, model
from lab.api.http.auth import Caller, Reader, User
from lab.api.http.bodies import FromBody
from lab.api.http.dependencies import CoreOf, JobsOf
from lab.api.http.job_answer import JOB_DONE, Key, Wait, Waiter, job_answer, job_done
from lab.api.jobs.jobs import Jobs
from lab.api.jobs.quota import (
    UNLIMITED,
    check_snapshots,
    max_snapshots,
    snapshots_of,
    upgraded_by,
)
from lab.api.jobs.submit import new_job, submit
from lab.api.routes.labs import Name, seen
from lab.errors import CommandFailed, Forbidden
from lab.lifecycle.labs import node_access
from lab.lifecycle.nodes import inspect
from lab.names import NODE_NAME
from lab.requests.labs import Action, NodeAction, Promote, RunProgram, UpgradeLab, power
from lab.state.service import JobRecord
from lab.views.jobs import JobView
from lab.views.labs import NodeView
from lab.views.nodes import Output

router = APIRouter(prefix="/v1/labs/{name}", tags=["nodes"], route_class=Route)

NodeName = Annotated[str, Path(pattern=NODE_NAME, examples=["n1"])]


# Before the actions, one of which it would be taken for.
@router.post(
    "/promote",
    operation_id="promoteNode",
    status_code=202,
    response_model=model(JobView),
    responses=JOB_DONE,
)
async def promote_node(
    jobs: JobsOf, caller: User, name: Name, asked: FromBody[Promote], wait: Wait
) -> Response:
    """Let another node take the writes of a lab: the source, or the primary of a group.

    `force`: also if the node that takes them now does not answer; it is powered off.
    """
    job = await in_thread(submit_promote, jobs, caller, name, asked)
    return await job_answer(jobs.core, job, wait, partial(job_done, jobs.core))


@router.post(
    "/upgrade",
    operation_id="upgradeLab",
    status_code=202,
    response_model=model(JobView),
    responses=JOB_DONE,
)
async def upgrade_lab(
    jobs: JobsOf, caller: User, name: Name, asked: FromBody[UpgradeLab], wait: Wait, key: Key = None
) -> Response:
    """Replace the servers of a lab by those of another series, node by node.

    A snapshot is taken before each node; the lab is rolled back to it if the step fails, and the
    job fails. What became of each node is the job's report.
    """
    job = await in_thread(submit_upgrade, jobs, caller, name, asked, key)
    return await job_answer(jobs.core, job, wait, partial(job_done, jobs.core))


@router.post(
    "/{action}",
    operation_id="powerLab",
    status_code=202,
    response_model=model(JobView),
    responses=JOB_DONE,
)
async def power_lab(jobs: JobsOf, caller: User, name: Name, action: Action, wait: Wait) -> Response:
    """Start, stop, restart or kill all nodes of a lab (kill: stop without a shutdown); sleep, wake.

    A lab that sleeps is paused as a whole; a connection to it wakes it as well.
    """
    return await _power(jobs, caller, name, "", action, wait)


@router.get("/nodes", operation_id="listNodes", response_model=many(NodeView))
def list_nodes(core: CoreOf, caller: Reader, name: Name) -> list[Answer]:
    """The nodes of a lab."""
    return [answer(node) for node in seen(core, caller, name)[0].nodes]


@router.get("/nodes/{node}", operation_id="getNode", response_model=model(NodeView))
def get_node(core: CoreOf, caller: Reader, name: Name, node: NodeName) -> Answer:
    """A node of a lab."""
    return answer(seen(core, caller, name)[0].node(node))


@router.post("/nodes/{node}/exec", operation_id="execute", response_model=model(Output))
async def execute(
    core: CoreOf, caller: User, name: Name, node: NodeName, asked: FromBody[RunProgram]
) -> Answer | Response:
    """Run a program in a node as root, if the service's settings allow it.

    If it exits with an error, the response is the problem command-failed, status 422.
    """
    check_execute(core)
    run = partial(_execute, core, caller, name, node, asked)
    try:
        return answer(await core.limits.programs.run(caller.token.id, run))
    except CommandFailed as error:
        return problems.respond(
            {**problem(error), "status": 422}
        )  # the program's error, not the service's


@router.post(
    "/nodes/{node}/{action}",
    operation_id="powerNode",
    status_code=202,
    response_model=model(JobView),
    responses=JOB_DONE,
)
async def power_node(
    jobs: JobsOf, caller: User, name: Name, node: NodeName, action: NodeAction, wait: Wait
) -> Response:
    """Start, stop, restart or kill a node; kill: stop without a shutdown."""
    return await _power(jobs, caller, name, node, action, wait)


def check_execute(core: Core) -> None:
    """Raise Forbidden if the settings do not allow programs in nodes."""
    if not core.settings.serve.execute:
        raise Forbidden("access into nodes is disabled: execute = false in [serve]")


def _execute(core: Core, caller: Caller, name: str, node: str, asked: RunProgram) -> Output:
    caller.lab(core, name)
    with core.contexts.use() as ctx:
        stdin = asked.stdin.encode(errors="replace")
        printed = node_access.execute(
            ctx, name, node, asked.argv, stdin=stdin, timeout=asked.timeout
        )
    return Output(printed.decode(errors="replace"))


async def _power(
    jobs: Jobs, caller: Caller, name: str, node: str, action: Action, wait: Waiter
) -> Response:
    job = await in_thread(submit_power, jobs, caller, name, node, action)
    return await job_answer(jobs.core, job, wait, partial(job_done, jobs.core))


def submit_power(jobs: Jobs, caller: Caller, name: str, node: str, action: Action) -> JobRecord:
    """Submit ``action``, of the whole lab if ``node`` is empty; raises NotFound."""
    core = jobs.core
    record = caller.lab(core, name)
    with core.contexts.use() as ctx:
        if node:
            inspect.node_of(ctx, name, node)
    request = power(action, lab=name, created_at=record.created_at, node=node)
    return submit(jobs, new_job(caller.token, request, project=record.project))


def submit_promote(jobs: Jobs, caller: Caller, name: str, asked: Promote) -> JobRecord:
    """Submit the promotion of a node; raises NotFound."""
    core = jobs.core
    record = caller.lab(core, name)
    with core.contexts.use() as ctx:
        inspect.node_of(ctx, name, asked.node)
    request = replace(asked, lab=name, created_at=record.created_at)
    return submit(jobs, new_job(caller.token, request, project=record.project))


def submit_upgrade(
    jobs: Jobs, caller: Caller, name: str, asked: UpgradeLab, key: str | None
) -> JobRecord:
    """Submit the upgrade of a lab; raises NotFound, LimitReached."""
    core, token = jobs.core, caller.token
    record = caller.lab(core, name)
    if asked.node:
        with core.contexts.use() as ctx:
            inspect.node_of(ctx, name, asked.node)
    request = replace(asked, lab=name, created_at=record.created_at)
    job = new_job(token, request, project=record.project, key=key)
    limited = max_snapshots(core, token) is not None or token.max_disk is not None
    taken = snapshots_of(core, record.project) if limited else UNLIMITED
    count = upgraded_by(core.store.lab_with_nodes(name), request)
    return submit(jobs, job, lambda: check_snapshots(core, token, record, taken, count))

"""Labs: /v1/labs."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Path
from fastapi.responses import JSONResponse, Response
from msgspec.structs import replace

from lab.api.core.admission import need_of
from lab.api.core.core import Core
from lab.api.core.fleet import Fleet
from lab.api.core.observing import READS
from lab.api.core.threads import Route, in_thread
from lab.api.events.notifier import HOST
from lab.api.http import problems
from lab.api.http.answers import model, page
from lab.api.http.auth import Admin, Caller, Reader, User
from lab.api.http.bodies import FromBody
from lab.api.http.conditional import IfMatch, check_match, etag
from lab.api.http.dependencies import CoreOf, JobsOf
from lab.api.http.forward import Passed
from lab.api.http.job_answer import Key, Wait, Waiter, job_answer, job_open
from lab.api.http.lab_answer import lab_answer, lab_of
from lab.api.http.listing import LabSelection, labs_listed, listed_at_once
from lab.api.http.queries import FromQuery
from lab.api.jobs import placing
from lab.api.jobs.data import check_fleet_data
from lab.api.jobs.jobs import Jobs
from lab.api.jobs.quota import UNLIMITED, check_quota, snapshots_of
from lab.api.jobs.submit import check_kept, check_number, new_job, submit
from lab.blueprints import planned
from lab.errors import Conflict, HostUnfit, InvalidSpec, LimitReached, NotFound
from lab.fleet import placements
from lab.fleet.placements import Placement
from lab.imagebuild import added
from lab.lifecycle.labs.lease import changes, refuse_removed
from lab.lifecycle.nodes import inspect
from lab.lifecycle.service.usage import Snapshots
from lab.names import LAB_NAME
from lab.requests.labs import ChangeLab, CreateLab, DeleteLab
from lab.spec import LabSpec
from lab.state.records import LabRecord
from lab.state.service import JobRecord
from lab.units import format_duration
from lab.views.jobs import JobView
from lab.views.labs import Lab

router = APIRouter(prefix="/v1/labs", tags=["labs"], route_class=Route)

Name = Annotated[str, Path(pattern=LAB_NAME, examples=["shop"])]
AtHost = Annotated[
    str, Path(pattern=rf"{LAB_NAME[:-1]}(@[a-z0-9-]{{1,63}})?$", examples=["shop@h1"])
]


@router.post(
    "",
    operation_id="createLab",
    status_code=202,
    response_model=model(JobView),
    responses={201: {"model": model(Lab), "description": "The lab is ready."}},
)
async def create(
    core: CoreOf,
    jobs: JobsOf,
    caller: User,
    asked: FromBody[CreateLab],
    wait: Wait,
    key: Key = None,
) -> Response:
    """Create a lab: a clone of a template. The first use of a template builds it, in minutes."""
    if core.fleet is not None:
        return await _placed(jobs, core.fleet, caller, asked, wait, key)
    job = await in_thread(submit_create, jobs, caller, asked, key)
    return await job_answer(core, job, wait, partial(created, core, caller))


@router.get("", operation_id="listLabs", response_model=page(Lab))
async def list_labs(
    core: CoreOf,
    caller: Reader,
    selection: FromQuery[LabSelection],
) -> Response:
    """Labs, by name."""
    body = listed_at_once(core, caller, selection)
    if body is None:
        body = await in_thread(labs_listed, core, caller, selection)
    return Response(body, media_type="application/json")


@router.get("/{name}", operation_id="getLab", response_model=model(Lab))
async def get(core: CoreOf, caller: Reader, name: Name, wait: Wait) -> Response:
    """A lab. Its ETag changes with the fields that PATCH sets. ``wait``: until it is created."""
    if wait.seconds:
        find = partial(caller.lab, core, name)
        await wait.until(core, HOST, find, lambda found: found.state != "creating", every=1.0)
    return await in_thread(_respond, core, caller, name)


@router.patch("/{name}", operation_id="changeLab", response_model=model(Lab))
def change(
    core: CoreOf, caller: User, name: Name, asked: FromBody[ChangeLab], if_match: IfMatch = None
) -> Response:
    """Set the lease of a lab from now on, its protection, or its limit of idle time."""
    with core.store.transaction():
        record = caller.lab(core, name)
        check_match(record, if_match)
        refuse_removed(record)
        if asked.ttl is not None:
            check_ttl(core, caller, asked.ttl)
        # A change counts as activity.
        core.store.labs.update(name, active_at=time.time(), **changes(asked))
    return _respond(core, caller, name)


@router.post("/{name}/heartbeat", operation_id="heartbeat", response_model=model(Lab))
def heartbeat(core: CoreOf, caller: User, name: Name) -> Response:
    """A heartbeat: the lease is extended by the heartbeat timeout that the lab was created with."""
    with core.store.transaction():
        record = caller.lab(core, name)
        refuse_removed(record)
        if record.heartbeat is None:
            raise Conflict(
                f"the lab {name} was created without a heartbeat",
                hint=f"`lab extend {name} TTL`, or PATCH /v1/labs/{name}, extends its lease",
            )
        now = time.time()
        core.store.labs.update(name, expires_at=now + record.heartbeat, active_at=now)
    return _respond(core, caller, name)


@router.post("/{name}/adopt", operation_id="adoptLab", response_model=model(Lab))
def adopt(core: CoreOf, caller: Admin, name: AtHost) -> Response:
    """Of a fleet: have a lab that is foreign hold its name again."""
    if core.fleet is None:
        raise NotFound("this host belongs to no fleet")
    caller.lab(core, name)
    core.fleet.adopt(name)
    return _respond(core, caller, name)


@router.delete(
    "/{name}",
    operation_id="deleteLab",
    status_code=202,
    response_model=model(JobView),
    responses={204: {"description": "The lab is removed."}},
)
async def delete(
    core: CoreOf,
    jobs: JobsOf,
    caller: User,
    name: Name,
    asked: FromQuery[DeleteLab],
    wait: Wait,
    if_match: IfMatch = None,
) -> Response:
    """Remove a lab with its data."""
    job = await in_thread(submit_delete, jobs, caller, replace(asked, lab=name), if_match)
    return await job_answer(core, job, wait, lambda _: Response(status_code=204))


def check_ttl(core: Core, caller: Caller, ttl: float) -> None:
    """Raise LimitReached if a lease is longer than the service or the token allows."""
    here, own = core.settings.serve.max_ttl, caller.token.max_ttl or float("inf")
    most, whose = (own, "for this token") if own < here else (here, "by this service")
    if ttl > most:
        raise LimitReached(
            f"a lease is limited to {format_duration(most)} {whose},"
            f" {format_duration(ttl)} was requested",
            hint=f"request {format_duration(most)} at most, and extend the lease when it is needed",
        )


def default_ttl(core: Core, caller: Caller) -> float:
    """Seconds of a lease that is not requested."""
    return min(core.settings.serve.default_ttl, caller.token.max_ttl or float("inf"))


def requested(core: Core, caller: Caller, asked: CreateLab) -> CreateLab:
    """``asked`` as a job's request, with its lease; raises InvalidSpec, LimitReached."""
    ttl = asked.ttl or asked.heartbeat or default_ttl(core, caller)
    check_ttl(core, caller, max(ttl, asked.heartbeat or 0.0))
    asked.check()
    request = replace(asked, nodes=asked.node_count, ttl=ttl, owner=caller.token.name)
    check_fleet_data(core, caller.project, request)
    planned(request, added.families(core.settings.home.engines))
    core.settings.profile_of(request.profile)
    return request


def counted(core: Core, caller: Caller, spec: LabSpec) -> Snapshots:
    """The snapshots that count for the caller's quotas, if ``spec`` is limited by them."""
    limited = caller.token.max_disk is not None or spec.schedule.keep
    return snapshots_of(core, caller.token.project) if limited else UNLIMITED


def submit_placed(
    jobs: Jobs, fleet: Fleet, caller: Caller, asked: CreateLab, key: str | None
) -> Placement:
    """Submit the job that creates a lab, on the host of a fleet that fits it best.

    Raises as ``submit_create``, and Unreachable.
    """
    core = jobs.core
    request = requested(core, caller, asked)
    taken = counted(core, caller, request)
    if caller.token.scope != "admin":
        core.limits.submissions.use(caller.token.id)

    def check(unfinished: Sequence[Placement]) -> None:
        own = [one for one in unfinished if one.token == caller.token.id]
        check_number(len(own), core.settings.serve.token_jobs)
        check_kept(core, caller.token, [len(json.dumps(one.request)) for one in own])
        ours = [one for one in unfinished if one.project == caller.token.project]
        coming = {one.job: (one.lab, placing.spec_of(one)) for one in ours}
        check_quota(core, caller.token, request, taken, coming)

    placed, host = placing.place(
        core, fleet, new_job(caller.token, request, key=key), request, check, caller.project
    )
    if host is not None and host.name != fleet.name:
        fleet.signal(host.name)
    return placed


def submitted(jobs: Jobs, caller: Caller, asked: CreateLab, key: str | None) -> str:
    """Submit the job that creates a lab; its id.

    Raises as ``submit_create`` and ``submit_placed``.
    """
    fleet = jobs.core.fleet
    if fleet is None:
        return submit_create(jobs, caller, asked, key).id
    placed = submit_placed(jobs, fleet, caller, asked, key)
    if placed.host == fleet.name:
        with suppress(HostUnfit):  # the job is placed
            placing.take(jobs, fleet)
    return placed.job


async def _placed(
    jobs: Jobs, fleet: Fleet, caller: Caller, asked: CreateLab, wait: Waiter, key: str | None
) -> Response:
    core = jobs.core
    placed = await in_thread(submit_placed, jobs, fleet, caller, asked, key)
    if not placed.host and wait.seconds:

        def find() -> Placement | None:
            return placements.find(fleet.database, placed.job)

        with suppress(HostUnfit):
            found = await wait.until(core, HOST, find, _is_decided, 0.5)
            placed = found or placed
    if placed.error is not None:
        return problems.respond(
            placed.error, {"Location": f"/v1/jobs/{placed.job}"}, job=placed.job
        )
    waits = job_open(placing.record_of(placed))
    with suppress(HostUnfit):  # the job is placed, whatever does not answer now
        if placed.host == fleet.name:
            await in_thread(placing.take, jobs, fleet)
            job = await in_thread(core.store.jobs.find, placed.job)
            if job is not None:
                return await job_answer(core, job, wait, partial(created, core, caller))
        elif placed.host and (host := await in_thread(fleet.host, placed.host)) is not None:
            return Passed(host, f"/v1/fleet/jobs/{placed.job}", waits)
    return waits


def _is_decided(placed: Placement | None) -> bool:
    """Whether a job has a host, or needs none any more."""
    return placed is None or placed.state != "queued"


def submit_create(jobs: Jobs, caller: Caller, asked: CreateLab, key: str | None) -> JobRecord:
    """Submit the job that creates a lab.

    Raises InvalidSpec, Forbidden, Conflict, HostUnfit, LimitReached.
    """
    core = jobs.core
    if asked.host or asked.on_host_lost:
        raise InvalidSpec(
            "this host belongs to no fleet: it has no other hosts",
            hint="leave out host and on_host_lost",
        )
    request = requested(core, caller, asked)
    job = new_job(caller.token, request, key=key)
    taken = counted(core, caller, request)

    def check() -> None:
        core.admission.check(need_of(request))
        check_quota(core, caller.token, request, taken)
        if (name := request.name) and core.store.labs.find(name):
            raise Conflict(
                f"lab {name} exists already",
                hint=f"choose another name; `lab down {name}`, or DELETE /v1/labs/{name},"
                " removes it",
            )

    return submit(jobs, job, check)


def created(core: Core, caller: Caller, job: JobRecord) -> Response:
    """The answer to a request for a lab that is ready."""
    return _respond(core, caller, job.lab, status=201)


def submit_delete(jobs: Jobs, caller: Caller, asked: DeleteLab, if_match: str | None) -> JobRecord:
    """Submit the removal of a lab; raises NotFound, Changed, and Conflict if it is protected."""
    core, name = jobs.core, asked.lab
    record = core.store.labs.find(name)
    project, created_at = "", None
    if record is not None or caller.project is not None:
        record = caller.lab(core, name)
        check_match(record, if_match)
        project, created_at = record.project, record.created_at
        if record.protected and not asked.force:
            raise Conflict(
                f"the lab {name} is protected",
                hint=f"`lab down --force {name}`, or DELETE with ?force=true, removes it",
            )
    else:  # not in the state database, found by its tags: for admins
        with core.contexts.use() as ctx:
            inspect.lab(ctx, name)
    request = replace(asked, created_at=created_at)
    return submit(jobs, new_job(caller.token, request, project=project))


def seen(core: Core, caller: Caller, name: str) -> tuple[Lab, LabRecord | None]:
    """A lab as the caller sees it, and its record if there is one; raises NotFound."""
    login = caller.may("use")
    record = core.store.labs.find(name)
    if record is not None or caller.project is not None:
        record = caller.lab(core, name)
        for _ in range(READS):
            if core.observing.fresh(one for one in [core.observing.labs().get(name)] if one):
                break
        found = core.observing.seen(name)
        # Meanwhile it may have been removed, and its name be of another project's lab.
        if found and not found.record.pool and caller.sees(found.record.project):
            host = core.settings.serve.host_name
            return lab_of(found.view, found.record, login=login, host_name=host), found.record
        caller.lab(core, name)
    with core.contexts.use() as ctx:
        view = inspect.lab(ctx, name)
    return lab_of(view, record, login=login), record


def _respond(core: Core, caller: Caller, name: str, *, status: int = 200) -> Response:
    """A lab as the body, with its ETag; raises NotFound."""
    lab, record = seen(core, caller, name)
    headers = {} if record is None else {"ETag": etag(record)}
    if status == 201:
        headers["Location"] = f"/v1/labs/{name}"
    body = lab_answer(lab).model_dump(mode="json")
    return JSONResponse(body, status_code=status, headers=headers)

"""Labs of a fleet: where a requested one is created, and what was placed on this host."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from lab import host
from lab.api.core.admission import need_of
from lab.api.core.captures import coming, latest, template_named, versions
from lab.api.core.core import Core
from lab.api.core.fleet import Fleet
from lab.api.core.problem import problem
from lab.api.jobs import stored
from lab.api.jobs.jobs import Jobs
from lab.api.jobs.submit import KeyReused
from lab.api.telemetry.logs import log
from lab.distribution import version
from lab.errors import Conflict, InvalidSpec, LabError
from lab.fleet import placements
from lab.fleet.choose import Needs
from lab.fleet.hosts import Facts, Host
from lab.fleet.placements import Placement
from lab.requests.labs import CreateLab
from lab.spec import LabSpec
from lab.state.service import JobRecord, JobState, NewJob
from lab.storage import Space


def place(
    core: Core,
    fleet: Fleet,
    job: NewJob,
    request: CreateLab,
    check: Callable[[Sequence[Placement]], None],
    project: str | None,
) -> tuple[Placement, Host | None]:
    """Record where a lab is to be created, and notify its host; None: that has been done before.

    Or no host has room, and the job waits for one. ``check`` raises to refuse it, given the open
    placements. ``project``: whose datasets it may have; None: all. Raises KeyReused,
    Conflict, InvalidSpec, HostUnfit.
    """
    dataset = latest(fleet, request, versions(core.settings.home, core.store), project)
    wanted = Placement(
        job=job.id, kind=job.kind, lab=request.name, project=job.project, token=job.token,
        key=job.key, digest=job.digest, request=dict(job.request),
        needs=Needs(
            need_of(request).memory, request.host, dataset=request.dataset, project=project,
            template=template_named(core.settings, request, dataset),
        ),
        again=request.on_host_lost == "recreate",
    )  # fmt: skip
    most = core.settings.serve.queue
    placed, host = placements.place(
        fleet.database, wanted, request.blueprint, queue=most, check=check
    )
    if placed.digest != job.digest:
        raise KeyReused(
            "this Idempotency-Key was used before with a different request",
            hint="use a new key for each new request",
        )
    return placed, host


def take(jobs: Jobs, fleet: Fleet) -> None:
    """Start the jobs that were placed on this host; raises Unreachable, HostUnfit."""
    for one in placements.claim(fleet.database, fleet.member):
        jobs.core.metrics.taken((one.claimed_at or one.created_at) - one.created_at)
        start(jobs, fleet, one)


def start(jobs: Jobs, fleet: Fleet, placed: Placement) -> None:
    """Record a job that this host has claimed, and start it; no error if that was done.

    One whose request cannot be read, such as a newer version's, fails.
    """
    try:
        request = request_of(placed)
    except LabError as error:
        log.error("a placed job cannot be begun", extra={"given_up": placed.job}, exc_info=error)
        placements.fail(fleet.database, fleet.member, placed.job, problem(error))
        return
    job = NewJob(
        id=placed.job, kind="create", lab=placed.lab, project=placed.project, token=placed.token,
        state="queued", digest=placed.digest, created_at=time.time(),
        request=stored.plain(request), size=len(json.dumps(placed.request)),
        facts=stored.facts(request),
    )  # fmt: skip
    with suppress(Conflict):
        jobs.core.store.jobs.add(job)
    jobs.start(placed.job)


def request_of(placed: Placement) -> CreateLab:
    """What was requested, with the name that the lab was given: a pool's may have another.

    Raises InvalidSpec if this version does not know all of it.
    """
    unknown = sorted(stored.unknown(placed.request, CreateLab))
    if placed.kind != "create":
        unknown = [f"jobs of the kind {placed.kind}"]
    if unknown:
        raise InvalidSpec(
            f"lab {version()}, which runs on the host {placed.host}, does not know all that another"
            f" version requests of it: {', '.join(unknown)}",
            hint="upgrade lab there, or request another host: `--host`",
        )
    return _read(placed, placed.request)


def spec_of(placed: Placement) -> LabSpec:
    """The lab that an open job is to create, as far as this version knows what was requested."""
    for request in (placed.request, {**placed.request, "options": {}}):
        with suppress(LabError):
            found = _read(placed, request)
            found.check()
            return found
    return LabSpec("single")


def _read(placed: Placement, request: Mapping[str, Any]) -> CreateLab:
    named = dict(request)
    if not named.get("name"):
        named |= {"name": placed.lab, "any_name": True}
    return stored.read(record_of(placed), named, CreateLab)


def facts(core: Core) -> Facts:
    """What this host says of itself."""
    store = core.store
    budget, used = core.admission.memory_budget, core.admission.used().memory
    free = budget - used
    if core.settings.hypervisor != "fake":
        free = min(free, host.memory().available - core.settings.memory_floor)
    labs = store.labs.all()
    space = core.space.get() or Space(0, 0)
    templates = [record for record in store.templates.all() if record.state == "ready"]
    images = {record.key: record for record in store.images.all() if record.state == "ready"}
    named: set[str] = set()
    for record in templates:
        image = images.get(record.image)
        if image is not None and not record.source:
            dataset = f"{image.dataset}@{image.version}" if image.dataset else ""
            recipes = ("", image.recipe)
            named |= {template_named(core.settings, record.spec, dataset, one) for one in recipes}
    fleet = core.fleet
    assert fleet is not None  # noqa: S101  # for the type checker
    return Facts(
        epoch=fleet.member.epoch,
        certificate=fleet.certificate,
        memory=budget,
        memory_free=max(0, free),
        cpus=host.processors(),
        load=os.getloadavg()[0],
        labs=sum(not lab.pool for lab in labs),
        jobs=tuple({*core.admission.admitted(), *(lab.job for lab in labs if lab.job)}),
        space=space.total,
        space_free=space.free,
        full=shutil.disk_usage(core.settings.home.root).free < core.settings.space_floor,
        templates=tuple(sorted(named)),
        formed=len(templates),
        images=tuple(sorted(key for key, record in images.items() if not record.dataset)),
        versions=versions(core.settings.home, store),
        coming=coming(store),
    )


def ended(core: Core, fleet: Fleet) -> list[str]:
    """The jobs of this host that have ended here, and are open in the fleet's database."""
    over = []
    for one in placements.claimed(fleet.database, fleet.member):
        job = core.store.jobs.find(one.job)
        if job is not None and job.state not in ("queued", "running"):
            over.append(one.job)
    return over


def record_of(placed: Placement) -> JobRecord:
    """A job that no host has begun, as the record would have it."""
    state: JobState = placed.state if placed.state in ("failed", "cancelled") else "queued"
    return JobRecord(
        id=placed.job, kind="create", lab=placed.lab, project=placed.project, token=placed.token,
        state=state, digest=placed.digest,
        created_at=placed.created_at, ended_at=placed.ended_at, error=placed.error,
    )  # fmt: skip

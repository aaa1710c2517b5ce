"""Datasets: /v1/datasets. One belongs to a project, or is for all; see docs/security.md."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Annotated

import msgspec
from fastapi import APIRouter, Path, WebSocket
from fastapi.responses import JSONResponse, Response

from lab.api.background.refresher import next_refresh
from lab.api.core.admission import need_of_guest
from lab.api.core.captures import named
from lab.api.core.core import Core
from lab.api.core.threads import Route, in_thread
from lab.api.http.answers import Answer, answer, extended, many, model
from lab.api.http.auth import Caller, Reader, User
from lab.api.http.bodies import FromBody
from lab.api.http.dependencies import CoreOf, JobsOf, core_of
from lab.api.http.job_answer import Key, Wait, job_answer
from lab.api.http.queries import FromQuery
from lab.api.jobs import uploads
from lab.api.jobs.data import LISTS_DATASETS, last_refresh, latest_of, visible
from lab.api.jobs.jobs import Jobs
from lab.api.jobs.quota import check_dataset, check_guests
from lab.api.jobs.submit import new_job, submit
from lab.api.wire.transfer import Transfer
from lab.api.wire.websockets import serve_websocket
from lab.blueprints import blueprint
from lab.datasets import queries
from lab.datasets import source as sources
from lab.datasets.live import require_server
from lab.datasets.source import (
    UPLOAD,
    LabCapture,
    Source,
    StandardInput,
    Uploaded,
    check_upload,
)
from lab.errors import Conflict, Forbidden, InvalidSpec, LimitReached, NotFound
from lab.lifecycle.datasets import dataset
from lab.lifecycle.datasets.engine import check_engine, default_engine
from lab.lifecycle.datasets.load import loading_options
from lab.lifecycle.images.provenance import read_provenance
from lab.names import DATASET, LAB_NAME, parse_dataset
from lab.progress import Listener
from lab.requests.datasets import CreateDataset, DeleteDataset, RefreshDataset
from lab.state.records import ImageRecord
from lab.state.service import JobRecord
from lab.units import format_size
from lab.views.datasets import (
    DatasetView,
    LastRefresh,
    PersonalColumn,
    UploadView,
    VersionsView,
)
from lab.views.jobs import JobView

router = APIRouter(prefix="/v1/datasets", tags=["datasets"], route_class=Route)

Which = Annotated[
    str, Path(pattern=DATASET, description="A dataset, or a version of it.", examples=["crm@1"])
]
Name = Annotated[str, Path(pattern=LAB_NAME, examples=["crm"])]
_VERSION = extended(DatasetView, Answer, "DatasetVersion")
_DATASET = extended(VersionsView, Answer, "Dataset")
_OPEN = ("generate:", "lab:", UPLOAD)
"""How the sources begin that need nothing of the host."""


@router.get("", operation_id="listDatasets", response_model=many(VersionsView))
def list_datasets(core: CoreOf, caller: Reader) -> list[Answer]:
    """The datasets of the project and those for all, by name; administrators see all."""
    names = sorted({record.dataset for record in core.store.images.all() if record.dataset})
    found = []
    for name in names:
        try:
            found.append(answer(_dataset(core, caller, name)))
        except NotFound:
            continue  # another project's
    return found


@router.post(
    "",
    operation_id="createDataset",
    status_code=202,
    response_model=model(JobView),
    responses={201: {"model": _DATASET, "description": "Its first version is loaded."}},
)
async def create(
    core: CoreOf,
    jobs: JobsOf,
    caller: User,
    asked: FromBody[CreateDataset],
    wait: Wait,
    key: Key = None,
) -> Response:
    """Load data into an image; labs of it are requested with `dataset`."""
    job = await in_thread(submit_create, jobs, caller, asked, key)
    return await job_answer(core, job, wait, partial(_made, core, caller))


@router.websocket("/upload")
async def upload(websocket: WebSocket, name: str) -> None:
    """Take a dump, which a source `upload:ID` names then."""
    identity = uuid.uuid4().hex

    async def run(core: Core, caller: Caller, _: None) -> tuple[str, int]:
        def receive(file: int, hear: Listener) -> UploadView:
            del hear  # it has no steps
            return uploads.receive(core, caller.token, identity, name, file)

        allowed = partial(caller.valid, core)
        transfer = Transfer(websocket, allowed, core.stopping.is_set, uploads.IDLE, uploads.LEAST)
        why = await transfer.receive(receive)
        if not transfer.whole:
            await in_thread(uploads.discard, core, caller.token.id, identity)
        return why, transfer.carried

    def reach(*_: object) -> nullcontext[None]:
        check_upload(name)
        return nullcontext()

    limit = core_of(websocket).limits.uploads
    await serve_websocket(websocket, "uploadDump", "use", limit, reach, run)


@router.get("/{name}", operation_id="getDataset", response_model=_DATASET)
def get(core: CoreOf, caller: Reader, name: Which) -> Answer:
    """A dataset with all its versions, or with the one that is named."""
    found = _dataset(core, caller, parse_dataset(name)[0], columns=True)
    version = parse_dataset(name)[1]
    if version:
        found = replace(found, versions=tuple(v for v in found.versions if v.version == version))
        if not found.versions:
            raise _unknown(name)
    return answer(found)


@router.get("/{name}/scan", operation_id="scanDataset", response_model=many(PersonalColumn))
def scan(core: CoreOf, caller: Reader, name: Which) -> list[Answer]:
    """Columns of a version that look personal and that no masking rule covers."""
    visible(core.store, caller.project, parse_dataset(name)[0])
    with core.contexts.use() as ctx:
        return [answer(one) for one in dataset.scan(ctx, name)]


@router.post(
    "/{name}/refresh",
    operation_id="refreshDataset",
    status_code=202,
    response_model=model(JobView),
    responses={201: {"model": _DATASET, "description": "The next version is loaded."}},
)
async def refresh(
    core: CoreOf,
    jobs: JobsOf,
    caller: User,
    name: Name,
    asked: FromQuery[RefreshDataset],
    wait: Wait,
    key: Key = None,
) -> Response:
    """Make the next version from the same source; versions beyond `keep` are removed."""
    request = msgspec.structs.replace(asked, name=name)
    job = await in_thread(submit_refresh, jobs, caller, request, key)
    return await job_answer(core, job, wait, partial(_made, core, caller))


@router.delete(
    "/{name}",
    operation_id="deleteDataset",
    status_code=202,
    response_model=model(JobView),
    responses={204: {"description": "It is removed, or goes with the last lab of it."}},
)
async def delete(
    core: CoreOf,
    jobs: JobsOf,
    caller: User,
    name: Which,
    asked: FromQuery[DeleteDataset],
    wait: Wait,
) -> Response:
    """Remove a dataset, or a version of it, that no lab uses."""
    request = msgspec.structs.replace(asked, which=name)
    job = await in_thread(submit_delete, jobs, caller, request)
    return await job_answer(core, job, wait, lambda _: Response(status_code=204))


def submit_create(jobs: Jobs, caller: Caller, asked: CreateDataset, key: str | None) -> JobRecord:
    """Submit the job that loads a dataset.

    Raises InvalidSpec, Forbidden, NotFound, Conflict, HostUnfit, LimitReached.
    """
    core = jobs.core
    before = core.store.jobs.by_key(caller.token.id, key) if key else None
    request, source, project = _request(core, caller, asked, before=before)
    owner = "" if asked.shared else project
    guest = dataset.guest_size(core.store, source)
    if before is None:  # outside of the transaction: it asks the fleet's database
        _check_fleet(core, asked.name, owner)
    job = new_job(caller.token, request, project=project, key=key, guests=[guest])

    def check() -> None:
        dataset.check_free(core.store, asked.name, owner)
        upload = core.settings.home.uploads / request.upload if request.upload else None
        core.admission.check(need_of_guest(guest), "loading needs")
        check_guests(core, caller.token, project, [guest], added="this dataset's loading")
        size = uploads.size(upload) if upload else dataset.foreseen(core.store, source)
        most = core.settings.serve.dataset_size
        if not caller.may("admin") and most and size > most and not asked.source.startswith("lab:"):
            raise _too_large(size, most)
        check_dataset(core, caller.token, owner, 0 if upload else size)  # it counts already

    return submit(jobs, job, check)


def _request(
    core: Core, caller: Caller, asked: CreateDataset, *, before: JobRecord | None
) -> tuple[CreateDataset, Source, str]:
    """The job's request, its source, and the project whose data it will have.

    ``before``: the job of the same Idempotency-Key, whose upload may be loaded already.
    """
    if not asked.source.startswith(_OPEN):
        _check_admin(caller, "sources on the host and servers that it reaches")
        if "://" not in asked.source and not asked.source.startswith("/"):
            raise InvalidSpec(
                "the source is neither an absolute path of the host nor mysql://, lab:, upload: or"
                " generate:",
                hint="such as /srv/dumps/shop.sql.gz, or lab:shop",
            )
    if asked.shared:
        _check_admin(caller, "datasets for all projects")
    dataset.check_rules(asked.mask)
    loading_options(asked.settings, asked.my_cnf)
    if asked.warm:
        queries.check(asked.warm)
    text, sent, created_at, project = asked.source, "", None, caller.token.project
    if text.startswith(UPLOAD):
        sent, text = _sent(core, caller, text.removeprefix(UPLOAD), before)
    source = sources.parse(text)
    require_server(asked.selection, source)
    _check_engine(core, asked)
    if isinstance(source, LabCapture):
        record = caller.lab(core, source.lab)
        if asked.mask or asked.sql:
            raise InvalidSpec(
                f"{source}: a lab becomes a dataset as it is: neither masked nor with further SQL",
                hint="execute the statements in a branch of the lab",
            )
        created_at, project = record.created_at, record.project or project
    elif isinstance(source, StandardInput):
        raise InvalidSpec("a service has no standard input", hint="upload the dump")
    facts = {"source": text, "upload": sent, "lab_created_at": created_at}
    request = msgspec.structs.replace(asked, **facts)
    return request, source, project


def _check_engine(core: Core, asked: CreateDataset) -> None:
    """Raise InvalidSpec unless labs of the blueprint can have the engine of the dataset."""
    if asked.engine:
        check_engine(core.settings.home, asked.blueprint, asked.engine)
    elif asked.blueprint:
        default_engine(blueprint(asked.blueprint))


def _sent(core: Core, caller: Caller, identity: str, before: JobRecord | None) -> tuple[str, str]:
    """The path of an upload below the home's, and the text of its source; raises NotFound."""
    sent = str(before.facts.get("upload", "")) if before else ""
    if before and sent.split("/")[1:2] == [identity]:
        return sent, str(before.facts.get("source", ""))
    path = uploads.find(core, caller.token, identity)
    return str(path.relative_to(core.settings.home.uploads)), str(Uploaded(path.name))


def submit_refresh(
    jobs: Jobs, caller: Caller, request: RefreshDataset, key: str | None
) -> JobRecord:
    """Submit the job that makes the next version of a dataset.

    Raises NotFound, Forbidden, InvalidSpec, Busy, LimitReached.
    """
    core, name = jobs.core, request.name
    record = _changeable(core, caller, name)[-1]
    latest = latest_of(core.store, name)
    if latest is None:
        raise _unknown(name)
    with core.contexts.use() as ctx:
        made = read_provenance(ctx, latest)
    if not made.source.startswith(_OPEN):
        _check_admin(caller, "sources on the host and servers that it reaches")
    guest = dataset.guest_size(core.store, dataset.refreshable(name, made))
    if request.engine:
        dataset.another_engine(core.settings.home, name, made, request.engine)
    project = record.project or None
    job = new_job(caller.token, request, project=project, key=key, guests=[guest])

    def check() -> None:
        for other in core.store.jobs.open():
            if other.kind == "refresh-dataset" and other.about == job.about:
                raise Conflict(
                    f"the dataset {name} is being refreshed by the job {other.id}",
                    hint="try again when it ends: the page Jobs shows it, as does"
                    f" GET /v1/jobs/{other.id}?wait=60",
                )
        core.admission.check(need_of_guest(guest), "loading needs")
        check_guests(core, caller.token, job.project, [guest], added="this dataset's loading")
        check_dataset(core, caller.token, record.project, latest.size)

    return submit(jobs, job, check)


def _check_fleet(core: Core, name: str, owner: str) -> None:
    """Raise Conflict if another host of the fleet has a dataset of that name, or makes one."""
    there = named(core.fleet, name) if core.fleet else []
    if any(version.project != owner for _, version in there):
        raise Conflict(f"the name {name} is taken by another dataset", hint="choose another name")
    if there:
        host, found = there[0]
        raise Conflict(
            f"the host {host.name} has the dataset {found.at}",
            hint=f"`lab dataset refresh {name}` where it was made makes the next version",
        )


def submit_delete(jobs: Jobs, caller: Caller, request: DeleteDataset) -> JobRecord:
    """Submit the removal of a dataset or a version; raises NotFound, Forbidden, Conflict."""
    core, which = jobs.core, request.which
    name, version = parse_dataset(which)
    found = [
        record
        for record in _changeable(core, caller, name)
        if version in (0, record.version) and record.state == "ready"
    ]
    if not found:
        raise _unknown(which)
    keys = {record.key for record in found}
    users = [one.lab.name for one in core.store.labs_with_nodes() if keys & one.images]
    if users and not request.defer:
        raise Conflict(
            f"the dataset {which} is used by {', '.join(_seen(core, caller, users)) or 'labs'}",
            hint="remove these first, or use `lab dataset rm --defer`, or ?defer=true:"
            " it is removed with the last of them",
        )
    job = new_job(caller.token, request, project=found[-1].project or None)
    return submit(jobs, job)


def _changeable(core: Core, caller: Caller, name: str) -> Sequence[ImageRecord]:
    """The versions of a dataset that the caller may refresh and remove.

    Raises NotFound; Forbidden for one that is for all, unless the caller is an administrator.
    """
    found = visible(core.store, caller.project, name)
    if caller.project is not None and any(one.project != caller.project for one in found):
        raise Forbidden(f"the dataset {name} is for all projects: administrators change it")
    return found


def _check_admin(caller: Caller, what: str) -> None:
    if not caller.may("admin"):
        raise Forbidden(f"{what} require the scope admin, the token has {caller.token.scope}")


def _too_large(size: int, most: int) -> LimitReached:
    return LimitReached(
        f"the dataset would have {format_size(size)} of SQL, {format_size(most)} is the limit",
        hint="load less",
    )


def _dataset(core: Core, caller: Caller, name: str, *, columns: bool = False) -> VersionsView:
    """A dataset as the caller sees it; raises NotFound."""
    records = visible(core.store, caller.project, name)
    with core.contexts.use() as ctx:
        views = [dataset.described(ctx, record, columns=columns) for record in records]
    scheduled = [one for one in core.settings.serve.datasets if one.name == name]
    return VersionsView(
        name=name,
        project=records[-1].project,
        versions=tuple(
            replace(view, used_by=_seen(core, caller, _labs(view.used_by))) for view in views
        ),
        refresh=scheduled[0].refresh if scheduled else None,
        next_refresh_at=next_refresh(core, name),
        last_refresh=_last(core, name, records),
    )


def _labs(used_by: Sequence[str]) -> list[str]:
    return [one.removeprefix("lab ") for one in used_by if one.startswith("lab ")]


def _seen(core: Core, caller: Caller, labs: Sequence[str]) -> tuple[str, ...]:
    """Those of ``labs`` that the caller sees."""
    found = [core.store.labs.find(name) for name in labs]
    return tuple(lab.name for lab in found if lab and not lab.pool and caller.sees(lab.project))


def _last(core: Core, name: str, there: Sequence[ImageRecord]) -> LastRefresh | None:
    job = last_refresh(core.store, name, there)
    if job is None:
        return None
    error = "" if job.error is None else str(job.error.get("detail", ""))
    return LastRefresh(job=job.id, state=job.state, at=job.ended_at or job.created_at, error=error)


def _made(core: Core, caller: Caller, job: JobRecord) -> Response:
    name = parse_dataset(job.about.partition(":")[2])[0]
    body = answer(_dataset(core, caller, name, columns=True)).model_dump(mode="json")
    return JSONResponse(body, status_code=201, headers={"Location": f"/v1/datasets/{name}"})


def _unknown(which: str) -> NotFound:
    return NotFound(f"there is no dataset {which!r}", hint=LISTS_DATASETS)

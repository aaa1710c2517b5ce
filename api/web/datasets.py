"""Datasets as a page: made from labs, refreshed, removed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from functools import partial

from fastapi import APIRouter, Request
from fastapi.responses import Response

from lab.api.core.core import Core
from lab.api.http.auth import Caller
from lab.api.http.dependencies import CoreOf, JobsOf
from lab.api.routes import datasets
from lab.api.routes.datasets import Name, Which
from lab.api.web import forms, pages
from lab.api.web.request import Fields, PageRoute, ReadAccess, UseAccess
from lab.errors import LabError
from lab.requests.datasets import DeleteDataset, RefreshDataset

router = APIRouter(route_class=PageRoute, include_in_schema=False)


@router.get("/datasets", operation_id="datasetsPage")
def show(request: Request, core: CoreOf, caller: ReadAccess) -> Response:
    """The datasets that the caller may use, and a form that makes one."""
    return _page(request, core, caller)


@router.post("/datasets", operation_id="createDataset")
def create(
    request: Request, core: CoreOf, jobs: JobsOf, caller: UseAccess, fields: Fields
) -> Response:
    """Load a dataset, and show its job."""

    def act() -> str:
        asked = forms.dataset_request(fields)
        return f"/jobs/{datasets.submit_create(jobs, caller, asked, forms.key_of(fields)).id}"

    return pages.done(act, partial(_page, request, core, caller, typed=fields))


@router.post("/datasets/{name}/refresh", operation_id="refreshDataset")
def refresh(
    request: Request, core: CoreOf, jobs: JobsOf, caller: UseAccess, name: Name
) -> Response:
    """Make the next version of a dataset, and show its job."""

    def act() -> str:
        return f"/jobs/{datasets.submit_refresh(jobs, caller, RefreshDataset(name=name), None).id}"

    return pages.done(act, partial(_page, request, core, caller))


@router.post("/datasets/{name}/delete", operation_id="deleteDataset")
def delete(
    request: Request, core: CoreOf, jobs: JobsOf, caller: UseAccess, name: Which, fields: Fields
) -> Response:
    """Remove a dataset or a version, and show its job."""

    def act() -> str:
        asked = DeleteDataset(which=name, defer=fields.get("defer") == "yes")
        return f"/jobs/{datasets.submit_delete(jobs, caller, asked).id}"

    return pages.done(act, partial(_page, request, core, caller))


def _page(
    request: Request,
    core: Core,
    caller: Caller,
    error: LabError | None = None,
    *,
    typed: Mapping[str, str] | None = None,
) -> Response:
    return pages.page(
        request,
        "datasets.html",
        at="/datasets",
        datasets=datasets.list_datasets(core, caller),
        loads=_loads(core, caller),
        key=forms.new_key(),
        typed=typed or {},
        **pages.outcome(error),
    )


def _loads(core: Core, caller: Caller) -> Mapping[str, str]:
    """The jobs that load versions now, by version; empty for those that the caller may not see."""
    found: dict[str, str] = defaultdict(str)
    for record in core.store.images.all():
        if record.dataset and record.state == "building":
            job = core.store.jobs.find(record.job)
            if job is not None and caller.sees(job.project):
                found[f"{record.dataset}@{record.version}"] = job.id
    return found

"""The page of a lab's snapshots, with forms to take, branch, protect, remove, and roll back."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from fastapi import APIRouter, Request
from fastapi.responses import Response

from lab.api.core.core import Core
from lab.api.http.auth import Caller
from lab.api.http.dependencies import CoreOf, JobsOf
from lab.api.routes import branches, snapshots
from lab.api.routes.labs import Name
from lab.api.routes.snapshots import Label
from lab.api.web import forms, pages
from lab.api.web.request import Fields, PageRoute, ReadAccess, UseAccess
from lab.errors import LabError
from lab.requests.labs import ResetLab
from lab.requests.snapshots import ChangeSnapshot, DeleteSnapshot

router = APIRouter(prefix="/labs/{name}/snapshots", route_class=PageRoute, include_in_schema=False)


@router.get("", operation_id="snapshotsPage")
def show(request: Request, core: CoreOf, caller: ReadAccess, name: Name) -> Response:
    """The snapshots of a lab as a tree, and forms that take one and create branches."""
    return _snapshots(request, core, caller, name)


@router.post("", operation_id="takeSnapshot")
def take(
    request: Request, core: CoreOf, jobs: JobsOf, caller: UseAccess, name: Name, fields: Fields
) -> Response:
    """Take a snapshot, and show its job."""

    def act() -> str:
        asked, key = forms.snapshot_request(fields), forms.key_of(fields)
        return f"/jobs/{snapshots.submit_take(jobs, caller, name, asked, key).id}"

    return pages.done(act, partial(_snapshots, request, core, caller, name, typed=fields))


@router.post("/branches", operation_id="branchLab")
def branch(
    request: Request, core: CoreOf, jobs: JobsOf, caller: UseAccess, name: Name, fields: Fields
) -> Response:
    """Create branches of the lab, and show their job."""

    def act() -> str:
        asked, key = forms.branch_request(fields), forms.key_of(fields)
        return f"/jobs/{branches.submit_branch(jobs, caller, name, asked, key).id}"

    return pages.done(act, partial(_snapshots, request, core, caller, name, typed=fields))


@router.post("/{label}/protect", operation_id="changeSnapshot")
def protect(
    request: Request, core: CoreOf, caller: UseAccess, name: Name, label: Label, fields: Fields
) -> Response:
    """Protect a snapshot from removal, or end its protection."""

    def act() -> str:
        asked = ChangeSnapshot(protected=fields.get("protected") == "yes")
        snapshots.change(core, caller, name, label, asked)
        return f"/labs/{name}/snapshots"

    return pages.done(act, partial(_snapshots, request, core, caller, name))


@router.post("/{label}/rollback", operation_id="rollBack")
def roll_back(
    request: Request,
    core: CoreOf,
    jobs: JobsOf,
    caller: UseAccess,
    name: Name,
    label: Label,
    fields: Fields,
) -> Response:
    """Roll back the lab, or one node, to a snapshot, and show the job."""

    def act() -> str:
        asked = forms.rollback_request(label, fields)
        return f"/jobs/{snapshots.submit_rollback(jobs, caller, name, asked).id}"

    return pages.done(act, partial(_snapshots, request, core, caller, name))


@router.post("/{label}/reset", operation_id="resetLab")
def reset(
    request: Request, core: CoreOf, jobs: JobsOf, caller: UseAccess, name: Name, label: Label
) -> Response:
    """Reset the lab to a snapshot, and show the job."""

    def act() -> str:
        return f"/jobs/{snapshots.submit_reset(jobs, caller, name, ResetLab(to=label)).id}"

    return pages.done(act, partial(_snapshots, request, core, caller, name))


@router.post("/{label}/delete", operation_id="deleteSnapshot")
def delete(
    request: Request,
    core: CoreOf,
    jobs: JobsOf,
    caller: UseAccess,
    name: Name,
    label: Label,
    fields: Fields,
) -> Response:
    """Remove a snapshot, and show its job."""

    def act() -> str:
        asked = DeleteSnapshot(lab=name, label=label, force=fields.get("force") == "yes")
        return f"/jobs/{snapshots.submit_delete(jobs, caller, asked).id}"

    return pages.done(act, partial(_snapshots, request, core, caller, name))


def _snapshots(
    request: Request,
    core: Core,
    caller: Caller,
    name: str,
    error: LabError | None = None,
    *,
    typed: Mapping[str, str] | None = None,
) -> Response:
    found = snapshots.tree(core, caller, name)
    return pages.page(
        request,
        "snapshots.html",
        at=f"/labs/{name}/snapshots",
        name=name,
        nodes=[node.name for node in core.store.nodes.of(name)],
        snapshots=found,
        labels=[one.label for _, one in reversed(found)],
        key=forms.new_key(),
        typed=typed or {},
        **pages.outcome(error),
    )

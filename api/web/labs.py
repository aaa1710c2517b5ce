"""Labs as pages: the list, one lab, and their forms."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from urllib.parse import quote

from fastapi import APIRouter, Request
from fastapi.responses import Response

from lab.api.core.core import Core
from lab.api.http.auth import Caller
from lab.api.http.dependencies import CoreOf, JobsOf
from lab.api.http.listing import LabSelection, page_of
from lab.api.http.queries import After
from lab.api.jobs.data import usable
from lab.api.routes import host, labs
from lab.api.routes.labs import Name
from lab.api.web import forms, pages
from lab.api.web.events import shown
from lab.api.web.picture import HIGH, WIDE, picture
from lab.api.web.request import Fields, PageRoute, ReadAccess, UseAccess
from lab.blueprints import BLUEPRINTS, has_server
from lab.config.enginefile import engines, family_of
from lab.errors import InvalidSpec, LabError
from lab.imagebuild import added
from lab.requests.labs import DeleteLab
from lab.state.jobs import OPEN
from lab.state.records import LabRecord
from lab.units import format_duration
from lab.views.labs import Lab

router = APIRouter(route_class=PageRoute, include_in_schema=False)

CA_FILE = "lab-ca.pem"
"""The name of the file in which browsers save the CA certificate."""
_AT_ONCE = 50
_JOBS = 5


@router.get("/", operation_id="labsPage")
def list_page(
    request: Request,
    core: CoreOf,
    caller: ReadAccess,
    after: After = "",
) -> Response:
    """All labs, and a form that creates one."""
    return _list(request, core, caller, after=after)


@router.get("/host/ca", operation_id="getAuthority")
def ca(core: CoreOf, caller: ReadAccess) -> Response:
    """The CA certificate that verifies the database servers, as a file."""
    found = host.ca(core, caller)
    found.headers["Content-Disposition"] = f'attachment; filename="{CA_FILE}"'
    return found


@router.post("/labs", operation_id="createLab")
def create(
    request: Request, core: CoreOf, jobs: JobsOf, caller: UseAccess, fields: Fields
) -> Response:
    """Create a lab, and show its job."""

    def act() -> str:
        asked, key = forms.lab_request(fields), forms.key_of(fields)
        return f"/jobs/{labs.submitted(jobs, caller, asked, key)}"

    return pages.done(act, partial(_list, request, core, caller, typed=fields))


@router.get("/labs/{name}", operation_id="labPage")
def show(request: Request, core: CoreOf, caller: ReadAccess, name: Name) -> Response:
    """One lab."""
    return lab_page(request, core, caller, name)


@router.post("/labs/{name}/change", operation_id="changeLab")
def change(
    request: Request, core: CoreOf, caller: UseAccess, name: Name, fields: Fields
) -> Response:
    """Extend the lease of a lab, or change its protection."""

    def act() -> str:
        labs.change(core, caller, name, forms.lab_changes(fields))
        return f"/labs/{name}"

    return pages.done(act, partial(lab_page, request, core, caller, name, typed=fields))


@router.post("/labs/{name}/heartbeat", operation_id="heartbeat")
def heartbeat(request: Request, core: CoreOf, caller: UseAccess, name: Name) -> Response:
    """Send a heartbeat, by hand."""

    def act() -> str:
        labs.heartbeat(core, caller, name)
        return f"/labs/{name}"

    return pages.done(act, partial(lab_page, request, core, caller, name))


@router.post("/labs/{name}/delete", operation_id="deleteLab")
def delete(
    request: Request, core: CoreOf, jobs: JobsOf, caller: UseAccess, name: Name, fields: Fields
) -> Response:
    """Remove a lab, and show its job."""

    def act() -> str:
        asked = DeleteLab(lab=name, force=fields.get("force") == "yes")
        job = labs.submit_delete(jobs, caller, asked, None)
        return f"/jobs/{job.id}"

    return pages.done(act, partial(lab_page, request, core, caller, name, typed=fields))


def lab_page(
    request: Request,
    core: Core,
    caller: Caller,
    name: str,
    error: LabError | None = None,
    *,
    typed: Mapping[str, str] | None = None,
) -> Response:
    """One lab, with the error and the fields of a refused form; raises NotFound."""
    lab, record = labs.seen(core, caller, name)
    recent = core.store.jobs.latest(caller.project, lab=name, limit=_JOBS)
    open_jobs = [job for job in recent if job.state in OPEN]
    return pages.page(
        request,
        "lab.html",
        at=f"/labs/{name}",
        lab=lab,
        recorded=record is not None,
        jobs=recent,
        progress=[(job, shown(core, caller, job)) for job in open_jobs],
        addresses=_addresses(lab),
        box=(WIDE, HIGH),
        picture=picture(lab) if len(lab.nodes) > 1 else None,
        promotable=_promotable(lab, record),
        typed=typed or {},
        **pages.outcome(error),
    )


def _promotable(lab: Lab, record: LabRecord | None) -> list[str]:
    """The nodes that can be made the one that takes writes, where its blueprint has one."""
    if record is None:
        return []
    try:
        plan = record.plan
    except InvalidSpec:  # of another version of lab
        return []
    return [
        node.name
        for node in lab.nodes
        if plan.elects
        and has_server(node.services)
        and node.role not in {*plan.writers, *plan.late}
    ]


def _list(
    request: Request,
    core: Core,
    caller: Caller,
    error: LabError | None = None,
    *,
    after: str = "",
    typed: Mapping[str, str] | None = None,
) -> Response:
    found = page_of(core, caller, LabSelection(after=after, limit=_AT_ONCE))
    assert found is not None  # noqa: S101  # for the type checker: it waited
    serve = core.settings.serve
    return pages.page(
        request,
        "labs.html",
        at=f"/?after={quote(after)}" if after else "/",
        labs=[one.lab(login=caller.may("use")) for one in found.items],
        after=after,
        next=found.next,
        jobs=core.store.jobs.latest(caller.project, limit=_JOBS),
        host=host.host(core, caller),
        blueprints=list(BLUEPRINTS),
        engines=list(engines(added.families(core.settings.home.engines))),
        options=forms.OPTIONS,
        changed=forms.changed_options(typed or {}),
        datasets=usable(core.store, caller.project),
        profiles=sorted(core.settings.all_profiles()),
        profile=core.settings.profile,
        default_ttl=format_duration(min(serve.default_ttl, caller.token.max_ttl or float("inf"))),
        max_ttl=format_duration(min(serve.max_ttl, caller.token.max_ttl or float("inf"))),
        key=forms.new_key(),
        typed=typed or {},
        **pages.outcome(error),
    )


def _addresses(lab: Lab) -> list[tuple[str, str]]:
    """Connection strings and commands to copy, each with its title."""
    if not lab.dsn:
        return []
    nodes = [node for node in lab.nodes if node.sql_port]
    found = [("DSN", lab.dsn), ("User", lab.user), ("Password", lab.password)]
    client = _client(lab)
    found += [
        (f"Client, {node.name}", f"{client} -h {node.host} -P {node.sql_port} -u {lab.user} -p")
        for node in nodes
    ]
    return found


def _client(lab: Lab) -> str:
    """The command of the engine's client, which verifies the server where it has TLS."""
    family = family_of(lab.engine)
    verified = f"{family.client} --ssl-ca={CA_FILE} --{family.tls_option}"
    plain = f"{family.client} --{family.plain_option}" if lab.unencrypted else family.client
    return verified if lab.ssl_ca else plain

"""How a service performs a request: where it is sent, and what becomes of its answer."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import field
from typing import Any

from lab.client.jobs import AT_ONCE, Jobs, deadline_of
from lab.client.models import Job, dataset_of, datasets_of, read, read_lab
from lab.client.transport import Answer, Wire, path_of
from lab.errors import HostUnfit, LabError, LimitReached, NotFound
from lab.progress import Listener
from lab.request import Request, body_fields, body_of
from lab.requests.datasets import CreateDataset, DeleteDataset, RefreshDataset
from lab.requests.host import CollectGarbage
from lab.requests.images import BuildImage, BuildTemplate, DeleteImage, DeleteTemplate
from lab.requests.labs import (
    BranchLab,
    ChangeLab,
    CreateLab,
    DeleteLab,
    DropStandby,
    EnsureLab,
    LabRequest,
    MakeStandby,
    Power,
    Promote,
    ResetLab,
    RestartLab,
    RollBack,
    SleepLab,
    StartLab,
    StopLab,
    UpgradeLab,
    WakeLab,
)
from lab.requests.snapshots import (
    ChangeSnapshot,
    DeleteSnapshot,
    DeleteSnapshots,
    PruneSnapshots,
    TakeSnapshot,
)
from lab.undo import Undo
from lab.values import dataclass
from lab.views.catalog import ImageView, TemplateView
from lab.views.datasets import DatasetView
from lab.views.host import GcReport
from lab.views.labs import Lab
from lab.views.snapshots import Pruned, SnapshotView
from lab.views.upgrades import UpgradeView
from lab.wait import Deadline, attempts

_LIMITED = 10.0
"""Seconds of retries, while the token has too many requests, to find the job of a request."""
_UNDO = 120.0
_GC = 3600.0
"""Seconds for the answer of a garbage collection, which is no job."""


@dataclass(frozen=True)
class Sent:
    """A request on its way: the key finds its job if it is sent again."""

    wire: Wire
    jobs: Jobs
    method: str
    path: str
    body: dict[str, Any] | None
    query: dict[str, Any]
    listener: Listener | None
    timeout: float | None
    key: str = field(default_factory=lambda: str(uuid.uuid4()))

    def ask(self, wait: float = 0.0) -> Answer:
        """Send it, the first time or again."""
        return self.wire.ask(
            self.method, self.path, body=self.body, query=self.query, key=self.key, wait=wait
        )

    def change(self) -> Any:
        """Send a change of one resource, which is no job, and return that resource."""
        return self.wire.ask(self.method, self.path, body=self.body or {}).body

    def get(self, *path: str) -> Any:
        """What is at a path of the service."""
        return self.wire.ask("GET", path_of(*path)).body

    def followed(self, answer: Answer, deadline: Deadline) -> Job:
        """The job of an answer once it has ended; raises its error."""
        job_id = read(answer.body, Job).id
        return self.jobs.follow(job_id, self.listener, timeout=deadline.left).check()

    def done(self) -> None:
        """Send it, and return once its job has ended; raises its error."""
        self.jobs.done(self.method, self.path, self.query, self.timeout, self.listener, self.body)


def settable(kind: type[Request], fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """The fields of a request as keyword arguments; raises TypeError for what no client sets."""
    if wrong := sorted(set(fields) - set(body_fields(kind))):
        raise TypeError(f"{kind.__name__} has no field {', '.join(wrong)} that a client sets")
    return fields


def run(
    wire: Wire, jobs: Jobs, request: Request, timeout: float | None, listener: Listener | None
) -> Any:
    """Send a request, and return what it makes once its job has ended.

    ``timeout``: seconds for all of it; None: no limit. Raises what the service reports, and
    NotReady after ``timeout``.
    """
    method, path, end = WAYS[type(request)]
    bare = isinstance(request, Power) or not body_fields(type(request))  # its path says all of it
    given = {} if bare else body_of(request)
    in_query = method == "DELETE" or isinstance(request, RefreshDataset)
    query = {name: _in_query(value) for name, value in given.items()} if in_query else {}
    body = None if bare or in_query else given
    sent = Sent(wire, jobs, method, path_of(*path(request)), body, query, listener, timeout)
    return end(sent, request)


def _in_query(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _lab(sent: Sent, request: CreateLab) -> Lab:
    return _labs(sent, request)[0]


def _labs(sent: Sent, _: Request) -> list[Lab]:
    """The labs that a request creates. If this raises, its job is cancelled and undone."""
    deadline = deadline_of(sent.timeout)
    with Undo() as undo:
        # From before the request on: an interrupt may come before its answer.
        undo.push("the request", lambda: _cancel_labs(sent))
        try:
            answer = sent.ask(0.0 if sent.listener else min(AT_ONCE, deadline.left))
        except LabError:
            undo.keep()  # refused, or failed and undone by the service
            raise
        if answer.status == 201:
            found = _read_labs(answer)
        else:
            job_id = read(answer.body, Job).id
            job = sent.jobs.follow(job_id, sent.listener, timeout=deadline.left)
            if job.state != "succeeded":
                undo.keep()
            names = job.check().labs
            found = [read_lab(sent.get("labs", name)) for name in names]
        undo.keep()
    return found


def _read_labs(answer: Answer) -> list[Lab]:
    """The lab, or the labs, of an answer."""
    body = answer.body
    return [read_lab(one) for one in (body if isinstance(body, list) else [body])]


def _cancel_labs(sent: Sent) -> None:
    """Cancel the job of a request, whether or not its answer arrived; its key finds the job."""
    deadline, jobs = Deadline.after(_LIMITED), sent.jobs
    try:
        for _ in attempts(deadline, first=0.5, most=5.0):
            with suppress(LimitReached):  # too many requests: retry
                answer = sent.ask()
                break
        else:
            answer = sent.ask()
    except HostUnfit:
        raise  # the service is away: the job may continue
    except LabError:
        return  # it failed and was undone by the service
    if answer.status == 201:
        names = [lab.name for lab in _read_labs(answer)]
    else:
        job = jobs.cancel(read(answer.body, Job).id)
        ended = jobs.follow(job.id, timeout=_UNDO)
        if ended.state != "succeeded":
            return  # the service has undone it
        names = ended.labs
    for name in names:
        with suppress(NotFound):
            jobs.done("DELETE", path_of("labs", name), {"force": "true"}, None, None)


def _changed(sent: Sent, request: LabRequest) -> Lab:
    sent.done()
    return read_lab(sent.get("labs", request.lab))


def _lab_changed(sent: Sent, _: ChangeLab) -> Lab:
    return read_lab(sent.change())


def _upgraded(sent: Sent, _: Request) -> UpgradeView:
    """The report, also of a job that failed because a step did."""
    job = _ended(sent)[1]
    if job is None:
        raise AssertionError  # an upgrade makes nothing of its own, which 201 would say
    try:
        return read(sent.get("jobs", job.id, "report"), UpgradeView)
    except NotFound:
        job.check()
        raise


def _removed(sent: Sent, _: Request) -> None:
    sent.done()


def _lab_removed(sent: Sent, request: DeleteLab) -> bool:
    """Whether it is gone: with ``defer`` its disks may be left."""
    sent.done()
    names = sent.wire.items("/v1/labs", {}) if request.defer else ()
    return request.lab not in [item["name"] for item in names]


def _dataset_removed(sent: Sent, request: DeleteDataset) -> bool:
    """Whether it is gone: with ``defer`` some of it may be left."""
    sent.done()
    if not request.defer:
        return True
    name, _, version = request.which.partition("@")
    there = [view for view in datasets_of(sent.get("datasets")) if view.name == name]
    return not [view for view in there if version in ("", str(view.version))]


def _snapshot(sent: Sent, request: TakeSnapshot) -> SnapshotView:
    deadline = deadline_of(sent.timeout)
    answer = sent.ask()
    if answer.status == 201:
        return read(answer.body, SnapshotView)
    job = sent.followed(answer, deadline)
    label = job.about.partition(":")[2]
    for found in read(sent.get("labs", request.lab, "snapshots"), list[SnapshotView]):
        if found.label == label:
            return found
    raise NotFound(f"the snapshot {label} of {request.lab} was removed")


def _snapshot_changed(sent: Sent, _: ChangeSnapshot) -> SnapshotView:
    return read(sent.change(), SnapshotView)


def _snapshots_removed(sent: Sent, request: DeleteSnapshots) -> None:
    """Unknown ones are reported first, then the newest is removed first.

    The RAM of a snapshot may be kept as what differs from an older one.
    """
    deadline = deadline_of(sent.timeout)
    ages: dict[str, int] = {}
    found = read(sent.get("labs", request.lab, "snapshots"), list[SnapshotView])
    for age, view in enumerate(reversed(found), 1):
        ages.setdefault(view.label, age)
        ages.setdefault(view.name, age)
    for label in sorted(request.labels, key=lambda label: ages.get(label, 0)):
        one = DeleteSnapshot(lab=request.lab, label=label, force=request.force)
        run(sent.wire, sent.jobs, one, deadline.left, sent.listener)


def _pruned(sent: Sent, _: Request) -> list[str]:
    """The labels of the removed snapshots."""
    deadline = deadline_of(sent.timeout)
    answer = sent.wire.ask(sent.method, sent.path, twice=True)
    if answer.status == 200:
        return list(read(answer.body, Pruned).removed)
    job = sent.followed(answer, deadline)
    labels = job.about.partition(":")[2]
    return labels.split(",") if labels else []


def _collected(sent: Sent, _: Request) -> GcReport:
    answer = sent.wire.ask(sent.method, sent.path, body=sent.body or {}, allow=_GC)
    return read(answer.body, GcReport)


def _image(sent: Sent, _: Request) -> ImageView:
    return read(_built(sent, "images"), ImageView)


def _template(sent: Sent, _: Request) -> TemplateView:
    return read(_built(sent, "templates"), TemplateView)


def _dataset(sent: Sent, _: Request) -> DatasetView:
    return dataset_of(_built(sent, "datasets"))


def _built(sent: Sent, what: str) -> Any:
    """What a request builds, one of ``what``. If this raises, its job is cancelled and undone."""
    answer, job = _ended(sent)
    about = job.check().about if job else ""
    return sent.get(what, about.partition(":")[2]) if about else answer.body


def _ended(sent: Sent) -> tuple[Answer, Job | None]:
    """The answer, and its job once that has ended, unless the answer is what was made.

    If this raises, the job is cancelled and undone.
    """
    deadline = deadline_of(sent.timeout)
    with Undo() as undo:
        undo.push("the request", lambda: _cancel_job(sent))
        try:
            answer = sent.ask()
        except LabError:
            undo.keep()  # refused
            raise
        job = None
        if answer.status != 201:
            job_id = read(answer.body, Job).id
            job = sent.jobs.follow(job_id, sent.listener, timeout=deadline.left)
        undo.keep()
    return answer, job


def _cancel_job(sent: Sent) -> None:
    """Cancel the job of a request that creates no lab, whether or not its answer arrived."""
    try:
        answer = sent.ask()
    except HostUnfit:
        raise  # the service is away: the job may continue
    except LabError:
        return
    if answer.status != 201:
        sent.jobs.follow(sent.jobs.cancel(read(answer.body, Job).id).id, timeout=_UNDO)


def _power(action: str) -> Callable[[Power], tuple[str, ...]]:
    def path(asked: Power) -> tuple[str, ...]:
        node = ("nodes", asked.node) if asked.node else ()
        killed = isinstance(asked, StopLab) and asked.force
        return "labs", asked.lab, *node, "kill" if killed else action

    return path


WAYS: Mapping[type[Request], tuple[str, Callable[[Any], tuple[str, ...]], Callable[..., Any]]] = {
    CreateLab: ("POST", lambda _: ("labs",), _lab),
    EnsureLab: ("POST", lambda _: ("labs",), _lab),
    BranchLab: ("POST", lambda r: ("labs", r.lab, "branches"), _labs),
    ChangeLab: ("PATCH", lambda r: ("labs", r.lab), _lab_changed),
    DeleteLab: ("DELETE", lambda r: ("labs", r.lab), _lab_removed),
    StartLab: ("POST", _power("start"), _changed),
    StopLab: ("POST", _power("stop"), _changed),
    RestartLab: ("POST", _power("restart"), _changed),
    SleepLab: ("POST", _power("sleep"), _changed),
    WakeLab: ("POST", _power("wake"), _changed),
    Promote: ("POST", lambda r: ("labs", r.lab, "promote"), _changed),
    UpgradeLab: ("POST", lambda r: ("labs", r.lab, "upgrade"), _upgraded),
    RollBack: ("POST", lambda r: ("labs", r.lab, "rollback"), _changed),
    ResetLab: ("POST", lambda r: ("labs", r.lab, "reset"), _changed),
    MakeStandby: ("PUT", lambda r: ("labs", r.lab, "standby"), _changed),
    DropStandby: ("DELETE", lambda r: ("labs", r.lab, "standby"), _changed),
    TakeSnapshot: ("POST", lambda r: ("labs", r.lab, "snapshots"), _snapshot),
    PruneSnapshots: ("POST", lambda r: ("labs", r.lab, "snapshots", "prune"), _pruned),
    ChangeSnapshot: ("PATCH", lambda r: ("labs", r.lab, "snapshots", r.label), _snapshot_changed),
    DeleteSnapshots: ("DELETE", lambda r: ("labs", r.lab, "snapshots"), _snapshots_removed),
    DeleteSnapshot: ("DELETE", lambda r: ("labs", r.lab, "snapshots", r.label), _removed),
    BuildImage: ("POST", lambda _: ("images",), _image),
    DeleteImage: ("DELETE", lambda r: ("images", r.which), _removed),
    BuildTemplate: ("POST", lambda _: ("templates",), _template),
    DeleteTemplate: ("DELETE", lambda r: ("templates", r.key), _removed),
    CreateDataset: ("POST", lambda _: ("datasets",), _dataset),
    RefreshDataset: ("POST", lambda r: ("datasets", r.name, "refresh"), _dataset),
    DeleteDataset: ("DELETE", lambda r: ("datasets", r.which), _dataset_removed),
    CollectGarbage: ("POST", lambda _: ("host", "gc"), _collected),
}
"""The method and the path of each request, and what becomes of its answer."""

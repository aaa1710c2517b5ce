"""Who may see and use data: a dataset belongs to a project, or is for all."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from lab.api.core.captures import elsewhere, others
from lab.api.core.core import Core
from lab.errors import NotFound
from lab.names import parse_dataset
from lab.spec import LabSpec
from lab.state.records import ImageRecord
from lab.state.service import JobRecord, JobState
from lab.state.store import Store

LISTS_DATASETS = "`lab dataset ls`, or GET /v1/datasets, lists the datasets"
LISTS_IMAGES = "`lab image ls`, or GET /v1/images, lists the images"


def sees(project: str | None, record: ImageRecord) -> bool:
    """Whether a caller sees an image: it has no data, data for all, or data of ``project``.

    ``project``: None for administrators.
    """
    return project is None or not record.dataset or record.project in ("", project)


def hidden(store: Store, project: str | None) -> set[str]:
    """The keys of the images that a caller does not see."""
    return {record.key for record in store.images.all() if not sees(project, record)}


def visible(store: Store, project: str | None, name: str) -> Sequence[ImageRecord]:
    """The versions of a dataset that a caller sees, the oldest first; raises NotFound."""
    found = [
        record for record in store.images.all() if record.dataset == name and sees(project, record)
    ]
    if not found:
        raise NotFound(f"there is no dataset {name!r}", hint=LISTS_DATASETS)
    return sorted(found, key=lambda record: record.version)


def latest_of(store: Store, name: str) -> ImageRecord | None:
    """The latest version of a dataset that new labs get."""
    found = [
        record
        for record in store.images.all()
        if record.dataset == name and record.state == "ready" and not record.removing
    ]
    return max(found, key=lambda record: record.version, default=None)


def last_refresh(
    store: Store, name: str, there: Sequence[ImageRecord], states: Sequence[JobState] = ()
) -> JobRecord | None:
    """The latest refresh of the dataset whose versions are ``there``, oldest first.

    Not one of another dataset, perhaps another project's, that had its name before.
    """
    made = {record.job for record in there}
    found = store.jobs.latest(states=states, kinds=["refresh-dataset"], dataset=name, limit=1)
    for job in found:
        if job.id in made or (there and job.created_at >= there[0].created_at):
            return job
    return None


def usable(store: Store, project: str | None) -> list[str]:
    """The names of the datasets that new labs of a project can have."""
    found = {
        record.dataset
        for record in store.images.all()
        if record.dataset
        and record.state == "ready"
        and not record.removing
        and sees(project, record)
    }
    return sorted(found)


def check_image(store: Store, project: str | None, which: str) -> None:
    """Raise NotFound unless a caller sees an image, by its key or its recipe.

    The same for one that is hidden as for one that is not there.
    """
    if not any(
        which in (record.key, "" if record.dataset else record.recipe) and sees(project, record)
        for record in store.images.all()
    ):
        raise NotFound(f"there is no image {which!r}", hint=LISTS_IMAGES)


def check_data(
    store: Store,
    project: str | None,
    request: LabSpec,
    *,
    images: Collection[str] = (),
    fetched: bool = False,
) -> None:
    """Raise NotFound if a lab would be made of data that its project must not see.

    ``images``: keys of further images, on other hosts of the fleet; ``fetched``: whether one of
    these has the dataset for it. A dataset of that name here must be the project's all the same.
    """
    if request.image and request.image not in images:
        check_image(store, project, request.image)
    if not request.dataset:
        return
    name, version = parse_dataset(request.dataset)
    here = [record for record in store.images.all() if record.dataset == name]
    if fetched and all(sees(project, record) for record in here):
        return
    if not any(
        record.state == "ready" and not record.removing and version in (0, record.version)
        for record in visible(store, project, name)
    ):
        raise NotFound(f"there is no dataset {request.dataset!r}", hint=LISTS_DATASETS)


def check_fleet_data(core: Core, project: str | None, request: LabSpec) -> None:
    """As ``check_data``; what other hosts of the fleet have can be fetched."""
    fleet, images, there = core.fleet, set[str](), False
    if fleet is not None:
        images = {key for host in others(fleet) for key in host.facts.images}
        there = bool(elsewhere(fleet, request, project))
    check_data(core.store, project, request, images=images, fetched=there)


def project_of(core: Core, job: JobRecord) -> str | None:
    """The project whose data a job may use; None: all, for administrators and the service."""
    token = core.store.tokens.find(job.token) if job.token else None
    if not job.token or (token is not None and token.scope == "admin"):
        return None
    return job.project

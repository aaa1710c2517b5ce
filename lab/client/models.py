"""Answers of the service, as the views that the verbs return on a host.

Unknown fields are ignored, so that a newer service can add some.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any, TypeVar

import msgspec

from lab.client.problem import error_of
from lab.config.profile import PROFILES, risks
from lab.errors import Interrupted, LabError, NotFound
from lab.values import dataclass
from lab.views.datasets import DatasetView
from lab.views.jobs import JobView
from lab.views.labs import Lab

T = TypeVar("T")


@dataclass(frozen=True)
class Job(JobView):
    """A job of a service."""

    def check(self) -> Job:
        """The job itself; raises its error if it failed, Interrupted if it was cancelled."""
        if self.state == "cancelled":
            raise Interrupted(
                f"job {self.id} was cancelled", details=["by a request to the service"]
            )
        if self.state == "failed":
            raise error_of(self.error or {"detail": f"job {self.id} failed"})
        return self


@dataclass(frozen=True)
class Page:
    """A page of a list; ``next``: the cursor of the page after it, None for the last."""

    items: list[dict[str, Any]] = field(default_factory=list)
    next: str | None = None


def read(data: object, kind: type[T]) -> T:
    """``data`` as a ``kind``; raises LabError if it is something else."""
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        raise LabError(
            f"the service's answer is not a valid {kind.__name__.lower()}",
            hint="is the service another version, or another program?",
            details=[str(error)],
        ) from None


def read_lab(data: object) -> Lab:
    """A lab; raises LabError if it is none."""
    if not isinstance(data, dict):
        return read(data, Lab)
    login = data.get("connection") or {"user": "", "password": "", "dsn": "", "ssl_ca": ""}
    profile = PROFILES.get(str(data.get("profile")))
    more = {
        "seconds": data.get("ready_seconds", 0.0),
        "risks": risks(profile) if profile else [],
    }
    return read({**data, **login, **more}, Lab)


@dataclass(frozen=True)
class _Dataset:
    """A dataset as the service describes it, as far as it is used here."""

    name: str
    versions: list[DatasetView] = field(default_factory=list)


def datasets_of(data: object) -> list[DatasetView]:
    """All versions in a list of datasets; raises LabError."""
    return [view for one in read(data, list[_Dataset]) for view in one.versions]


def dataset_of(data: object) -> DatasetView:
    """The latest version of a dataset that is ready; raises NotFound, LabError."""
    found = read(data, _Dataset)
    ready = [view for view in found.versions if view.state == "ready"] or found.versions
    if not ready:
        raise NotFound(f"there is no dataset {found.name!r}")
    return ready[-1]

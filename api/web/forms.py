"""The fields of forms, as the API's models."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from lab.api.http.catalog import ImageRequest
from lab.api.http.datasets import DatasetRequest
from lab.api.http.models import Asked, LabPatch, LabRequest
from lab.api.http.units import OURS
from lab.api.routes.branches import BranchRequest
from lab.api.routes.snapshots import RollbackRequest, SnapshotRequest
from lab.errors import InvalidSpec

M = TypeVar("M", bound=Asked)

_READ: Mapping[str, Callable[[str], Any]] = {
    "protected": lambda text: text == "yes",
    "rebuild": lambda text: text == "yes",
    "disks_only": lambda text: text == "yes",
    "cold": lambda text: text == "yes",
    "shared": lambda text: text == "yes",
}
_SNAPSHOT = ("name", "ttl", "disks_only", "protected")
_BRANCH = ("branch_name", "at", "count", "branch_ttl")
_DATASET = ("name", "source", "keep", "shared")
_LAB = (
    "blueprint", "name", "nodes", "engine", "dataset", "profile", "memory", "cpus", "disk", "ttl",
    "idle", "protected",
)  # fmt: skip


class InvalidForm(InvalidSpec):
    """Fields of a form are invalid; ``fields`` names them."""

    def __init__(self, wrong: Mapping[str, str]) -> None:
        super().__init__(
            "the form has invalid fields",
            hint="correct the marked fields, and submit the form again",
            details=[f"{field}: {text}" for field, text in wrong.items()],
        )
        self.fields = frozenset(wrong)


def lab_request(fields: Mapping[str, str]) -> LabRequest:
    """The request of a lab in a form; empty fields have their defaults. Raises InvalidForm."""
    return _read(LabRequest, {k: v for k, v in fields.items() if k in _LAB and v.strip()})


def image_request(fields: Mapping[str, str]) -> ImageRequest:
    """The request of an image in a form; raises InvalidForm."""
    return _read(ImageRequest, {k: v for k, v in fields.items() if k in ("recipe", "rebuild")})


def dataset_request(fields: Mapping[str, str]) -> DatasetRequest:
    """The request of a dataset in a form; raises InvalidForm."""
    said = {k: v for k, v in fields.items() if k in _DATASET and v.strip()}
    return _read(DatasetRequest, said)


def snapshot_request(fields: Mapping[str, str]) -> SnapshotRequest:
    """The request of a snapshot in a form; raises InvalidForm."""
    said = {k: v for k, v in fields.items() if k in _SNAPSHOT and v.strip()}
    return _read(SnapshotRequest, said)


def branch_request(fields: Mapping[str, str]) -> BranchRequest:
    """The request of branches in a form; raises InvalidForm.

    Its fields may have the prefix ``branch_``, as another form of the page has fields of the same
    names.
    """
    said = {k: v for k, v in fields.items() if k in _BRANCH and v.strip()}
    return _read(BranchRequest, said, prefix="branch_")


def rollback_request(label: str, fields: Mapping[str, str]) -> RollbackRequest:
    """The request of a rollback to ``label`` in a form; raises InvalidForm."""
    said = {k: v for k, v in fields.items() if k in ("node", "cold") and v.strip()}
    return _read(RollbackRequest, {"to": label, **said})


def new_key() -> str:
    """An Idempotency-Key for a form: if it is sent twice, one job is submitted."""
    return uuid.uuid4().hex


def key_of(fields: Mapping[str, str]) -> str | None:
    """The Idempotency-Key of a form with a ``new_key``."""
    return f"page-{fields['key'][:64]}" if fields.get("key") else None


def lab_patch(fields: Mapping[str, str]) -> LabPatch:
    """The changes of a lab in a form; raises InvalidForm."""
    asked = _read(LabPatch, {k: v for k, v in fields.items() if k in ("ttl", "protected")})
    if asked.ttl is asked.protected is None:
        raise InvalidForm({"ttl": "a duration such as 1h is needed"})
    return asked


def _read(model: type[M], said: Mapping[str, str], *, prefix: str = "") -> M:
    """The fields of a form as a ``model``; ``prefix`` is removed from names that have it."""
    names = {field.removeprefix(prefix): field for field in said}
    asked = {name: _READ.get(name, str)(said[field].strip()) for name, field in names.items()}
    try:
        return model.model_validate(asked)
    except ValidationError as error:
        wrong: dict[str, str] = {}
        for one in error.errors():
            name = str(one["loc"][0])
            wrong.setdefault(names.get(name, name), one["msg"].removeprefix(OURS))
        raise InvalidForm(wrong) from None

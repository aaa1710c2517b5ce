"""The fields of forms, as the API's models."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from lab.api.http.catalog import ImageRequest
from lab.api.http.models import Asked, LabPatch, LabRequest
from lab.api.http.units import OURS
from lab.api.routes.snapshots import RollbackRequest, SnapshotRequest
from lab.errors import InvalidSpec

M = TypeVar("M", bound=Asked)

_READ: Mapping[str, Callable[[str], Any]] = {
    "protected": lambda text: text == "yes",
    "rebuild": lambda text: text == "yes",
}
_LAB = (
    "blueprint", "name", "nodes", "engine", "profile", "memory", "cpus", "disk", "ttl", "idle",
    "protected",
)  # fmt: skip


class InvalidForm(InvalidSpec):
    """Fields of a form are invalid; ``fields`` names them."""

    def __init__(self, wrong: Mapping[str, str]) -> None:
        super().__init__(
            "the form has invalid fields",
            hint="change the marked fields, and send it again",
            details=[f"{field}: {text}" for field, text in wrong.items()],
        )
        self.fields = frozenset(wrong)


def lab_request(fields: Mapping[str, str]) -> LabRequest:
    """The request of a lab in a form; empty fields have their defaults. Raises InvalidForm."""
    return _read(LabRequest, {k: v for k, v in fields.items() if k in _LAB and v.strip()})


def image_request(fields: Mapping[str, str]) -> ImageRequest:
    """The request of an image in a form; raises InvalidForm."""
    return _read(ImageRequest, {k: v for k, v in fields.items() if k in ("recipe", "rebuild")})


def snapshot_request(fields: Mapping[str, str]) -> SnapshotRequest:
    """The request of a snapshot in a form; raises InvalidForm."""
    return _read(SnapshotRequest, {k: v for k, v in fields.items() if k == "name" and v.strip()})


def rollback_request(label: str, fields: Mapping[str, str]) -> RollbackRequest:
    """The request of a rollback to ``label`` in a form; raises InvalidForm."""
    node = {k: v for k, v in fields.items() if k == "node" and v.strip()}
    return _read(RollbackRequest, {"to": label, **node})


def new_key() -> str:
    """A key for a form that creates something: one that is sent twice is one job."""
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


def _read(model: type[M], said: Mapping[str, str]) -> M:
    asked = {field: _READ.get(field, str)(text.strip()) for field, text in said.items()}
    try:
        return model.model_validate(asked)
    except ValidationError as error:
        wrong: dict[str, str] = {}
        for one in error.errors():
            wrong.setdefault(str(one["loc"][0]), one["msg"].removeprefix(OURS))
        raise InvalidForm(wrong) from None

"""The bodies of HTTP requests, derived from what ``lab.requests`` declares.

A parameter ``asked: FromBody[BranchLab]`` of a route is the request that the body makes: with the
limits, descriptions and examples of its fields, and none that only the service or its host sets.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import msgspec
from fastapi import Body
from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, create_model
from pydantic_core import CoreSchema, core_schema

from lab import request as requests
from lab.api.http import units
from lab.request import FieldMark, Request
from lab.requests.datasets import CreateDataset
from lab.requests.host import CollectGarbage
from lab.requests.images import BuildImage, BuildTemplate
from lab.requests.labs import (
    BranchLab,
    ChangeLab,
    CreateLab,
    MakeStandby,
    Promote,
    ResetLab,
    RollBack,
    RunProgram,
    UpgradeLab,
)
from lab.requests.snapshots import ChangeSnapshot, TakeSnapshot
from lab.requests.tokens import CreateToken
from lab.values import dataclass

R = TypeVar("R", bound=Request)

NAMES: Mapping[type[Request], str] = {
    CreateLab: "LabRequest",
    BranchLab: "BranchRequest",
    Promote: "PromoteRequest",
    RollBack: "RollbackRequest",
    ResetLab: "ResetRequest",
    MakeStandby: "StandbyRequest",
    UpgradeLab: "UpgradeRequest",
    TakeSnapshot: "SnapshotRequest",
    BuildImage: "ImageRequest",
    BuildTemplate: "TemplateRequest",
    CreateDataset: "DatasetRequest",
    CreateToken: "TokenRequest",
    CollectGarbage: "GcRequest",
    ChangeLab: "LabPatch",
    ChangeSnapshot: "SnapshotPatch",
    RunProgram: "Command",
}
"""What the OpenAPI document calls the body of a request."""

_UNITS = {"seconds": units.Seconds, "bytes": units.Bytes}


@dataclass(frozen=True)
class _OfBody:
    """Makes pydantic read a request from a body."""

    def __get_pydantic_core_schema__(
        self, kind: type[Request], handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        body = handler.generate_schema(_model(kind))
        return core_schema.no_info_after_validator_function(lambda read: _request(kind, read), body)


FromBody = Annotated[R, Body(), _OfBody()]
"""A request that the body of an HTTP request makes; unknown fields are an error."""


def read(kind: type[R], given: Mapping[str, Any]) -> R:
    """The request of a form or a body; raises pydantic's ValidationError."""
    return _request(kind, _model(kind).model_validate(dict(given)))


def _request(kind: type[R], body: BaseModel) -> R:
    given = {name: getattr(body, name) for name in type(body).model_fields}
    lists = {name: tuple(value) for name, value in given.items() if isinstance(value, list)}
    return kind(**{name: its for name, its in {**given, **lists}.items() if its is not None})


@cache
def _model(kind: type[Request]) -> type[BaseModel]:
    """The model of the body of a request."""
    defaults = {one.name: one for one in msgspec.structs.fields(kind)}
    declared: dict[str, Any] = {
        name: (_type(its), _default(defaults[name], its))
        for name, its in requests.body_fields(kind).items()
    }
    return create_model(
        NAMES[kind],
        __doc__=inspect.getdoc(kind),
        __config__=ConfigDict(extra="forbid"),
        __module__=__name__,
        **declared,
    )


def _default(field: msgspec.structs.FieldInfo, declared: Any) -> Any:
    if "empty" in requests.marks(declared):
        return None
    if field.default is msgspec.NODEFAULT:
        return ...
    return Field(default_factory=list) if field.default == () else field.default


def _type(declared: Any) -> Any:
    """The type of a field, as it is declared, for pydantic."""
    origin, parts = get_origin(declared), get_args(declared)
    if origin is Annotated:
        found = _type(parts[0])
        for one in parts[1:]:
            if isinstance(one, msgspec.Meta):
                found = Annotated[found, Field(**limits(one))]
            elif isinstance(one, FieldMark) and one.kind == "empty":
                found = found | None
            elif isinstance(one, FieldMark):
                found = _UNITS[one.kind]
        return found
    if origin is tuple:
        return list[_type(parts[0])]  # type: ignore[misc]  # made at run time
    if type(None) in parts:
        return Union[tuple(_type(one) for one in parts)]  # noqa: UP007  # of any number
    return declared


_LIMITS = (
    "gt", "ge", "lt", "le", "multiple_of", "pattern", "min_length", "max_length", "description",
    "examples",
)  # fmt: skip


def limits(meta: msgspec.Meta) -> dict[str, Any]:
    """What a field declares of its values, as pydantic and FastAPI name it."""
    found = {name: getattr(meta, name) for name in _LIMITS}
    return {name: value for name, value in found.items() if value is not None}

"""The queries of URLs, derived from what requests declare; and the parameters that lists share.

A parameter ``asked: FromQuery[DeleteLab]`` of a route is the request that the query makes, as
``FromBody`` is the one that the body makes; unknown names in a query are ignored.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args, get_origin

import msgspec
from fastapi import Depends, Query

from lab.api.core.core import Core
from lab.api.http import units
from lab.api.http.bodies import limits
from lab.errors import NotFound
from lab.names import FLEET_HOST
from lab.request import FieldMark, Request, body_fields

R = TypeVar("R", bound=Request)

After = Annotated[str, Query(max_length=64)]
"""The ``next`` of the page before, of a list; empty: the first page."""
Limit = Annotated[int, Query(ge=1, le=500)]
"""How many items a page of a list has, at most."""
Filter = Annotated[str, Query(max_length=64)]
"""Only the items of a list that are of this; empty: all."""

OfHost = Annotated[
    str | None,
    Query(
        pattern=FLEET_HOST,
        description="The host of the fleet whose list is meant; default: the one that answers.",
        examples=["h1"],
    ),
]
"""A list that each host of a fleet has of its own: requests for another's are passed on to it."""

_UNITS = {"seconds": units.SecondsInQuery, "bytes": units.Bytes}

if TYPE_CHECKING:
    FromQuery = Annotated[R, "the query"]
else:

    class FromQuery:
        """A request that the query of an HTTP request makes."""

        def __class_getitem__(cls, kind: type[Request]) -> Any:
            return Annotated[kind, Depends(reader(kind))]


@cache
def reader(kind: type[R]) -> Callable[..., Coroutine[None, None, R]]:
    """The dependency that makes a request of a query; its signature has the parameters."""

    async def read(**given: Any) -> R:
        return kind(**given)

    defaults = {one.name: one.default for one in msgspec.structs.fields(kind)}
    found = [_parameter(name, its, defaults[name]) for name, its in body_fields(kind).items()]
    read.__signature__ = inspect.Signature(found)  # type: ignore[attr-defined]  # of inspect
    return read


def _parameter(name: str, declared: Any, default: Any) -> inspect.Parameter:
    """A field as a parameter; one that is marked ``empty`` has no null here, but its default."""
    kind, *beside = get_args(declared) if get_origin(declared) is Annotated else (declared,)
    said: dict[str, Any] = {}
    for one in beside:
        if isinstance(one, msgspec.Meta):
            said |= limits(one)
        elif isinstance(one, FieldMark):
            kind = _UNITS.get(one.kind, kind)
    if default is msgspec.NODEFAULT:
        default = inspect.Parameter.empty
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[kind, Query(**said)],
    )


def check_own(core: Core, host: str | None) -> None:
    """Raise NotFound unless a list is of this host: requests for another's were passed on."""
    if host is not None and host != core.settings.serve.host_name:
        hint = "`lab host ls` shows them" if core.fleet else "this host belongs to no fleet"
        raise NotFound(f"the fleet has no host {host}", hint=hint)

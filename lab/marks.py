"""Who sees a field of a view beyond this host: a mark in the field's type says it.

Of a view that the API answers with each field has one; a field without a mark is not in the answer.
The descriptions of the API's document are the texts below the fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Annotated, Any, Literal, TypeVar, get_type_hints

from lab.values import dataclass

T = TypeVar("T")

Reach = Literal["public", "admins", "login", "host"]


@dataclass(frozen=True, eq=False)
class Mark:
    """Whom a field reaches, and what the API's document says of it.

    ``name``: in the answer, if it differs. ``values``: the type of its values in the document,
    where the view takes any, so that a client reads those of a newer service.
    """

    reach: Reach
    examples: tuple[Any, ...] = ()
    name: str = ""
    values: Any = None


def public(*examples: Any, name: str = "", values: Any = None) -> Mark:
    """The mark of a field for each caller who may see the view."""
    return Mark("public", examples, name, values)


def login(*examples: Any) -> Mark:
    """The mark of a part of a lab's login, for callers who may use the lab."""
    return Mark("login", examples)


Public = Annotated[T, public()]
"""For each caller who may see the view."""
ForAdmins = Annotated[T, Mark("admins")]
"""For administrators; others get the field's default."""
Login = Annotated[T, login()]
"""A part of a lab's login, for callers who may use the lab."""
HostOnly = Annotated[T, Mark("host")]
"""For users of this host, never in an answer of the API."""


class Moment:
    """Marks a time: seconds since 1970 here, a text as in RFC 3339 in answers."""


Time = Annotated[float, Moment()]
_MARKS: dict[type, Mapping[str, Mark]] = {}
"""Those of views, once worked out: reading the types again costs a tenth of a ms."""


def marks(view: type) -> Mapping[str, Mark]:
    """The marks of a view's fields, by their names."""
    if view not in _MARKS:
        hints = get_type_hints(view, include_extras=True)
        _MARKS[view] = {
            one.name: mark
            for one in fields(view)
            for mark in getattr(hints[one.name], "__metadata__", ())
            if isinstance(mark, Mark)
        }
    return _MARKS[view]


def defaults(view: type, reach: Reach) -> Mapping[str, Any]:
    """What those get in place of the fields of a view who are not within ``reach``."""
    hidden = {name for name, mark in marks(view).items() if mark.reach == reach}
    return {one.name: one.default for one in fields(view) if one.name in hidden}

"""The base of all requests, and what their fields declare beside their types.

A field's limits, description and examples are those of ``msgspec.Meta``. ``FieldMark`` says the
rest: where it comes from, and what forms its values have over HTTP.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from operator import gt, le, lt
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from lab.errors import InvalidSpec
from lab.names import FORMS
from lab.units import format_duration, format_size
from lab.values import dataclass


@dataclass(frozen=True)
class FieldMark:
    """What a field is, further to its type; such a value stands in ``Annotated``.

    - ``host only``: set by the service or by a command on its host, never by an HTTP request.
    - ``lab``, ``about``: what the request is about, a part of the path of an HTTP request. In the
      row of a job it is the job's lab, or its subject after the colon.
    - ``empty``: over HTTP, null stands for an empty value.
    - ``seconds``, ``bytes``: over HTTP, a text such as 30m or 768M may stand for the number.
    """

    kind: Literal["host only", "lab", "about", "empty", "seconds", "bytes"]
    noun: str = ""
    """Of ``about``: what it is, which stands before the colon."""


HOST_ONLY, LAB, EMPTY = FieldMark("host only"), FieldMark("lab"), FieldMark("empty")
Seconds = Annotated[float, FieldMark("seconds")]
Bytes = Annotated[int, FieldMark("bytes")]
_SHOWN: Mapping[str, Callable[[Any], str]] = {"seconds": format_duration, "bytes": format_size}
_MOST = 80
"""Characters of a value that a message repeats."""
IN_SECONDS = "in seconds, or a text such as 30m or 1d12h"
IN_BYTES = "in bytes, or a text such as 768M or 1G"


class Request(msgspec.Struct, frozen=True):
    """The base of all requests."""

    LATER: ClassVar[tuple[str, ...]] = ()
    """Fields that were added later: a job's row and digest have them only while they are true, or
    a number."""
    LARGE: ClassVar[tuple[str, ...]] = ()
    """Fields that only the job reads, and that end with it: texts, which may hold secrets, and
    lists."""


R = TypeVar("R", bound=Request)


@cache
def fields(kind: type[Request]) -> dict[str, Any]:
    """The fields of a request, each with its type as it is declared."""
    found = get_type_hints(kind, include_extras=True)
    return {name: found[name] for name in kind.__struct_fields__}


def marks(declared: Any) -> set[str]:
    """The kinds of the marks of a field."""
    return {one.kind for one in _marks(declared)}


def _marks(declared: Any) -> list[FieldMark]:
    found = get_args(declared)[1:] if get_origin(declared) is Annotated else ()
    return [one for one in found if isinstance(one, FieldMark)]


@cache
def marked(kind: type[Request], *any_of: str) -> Mapping[str, str]:
    """The fields of a request that have one of these marks, and which."""
    found = {name: marks(its) & set(any_of) for name, its in fields(kind).items()}
    return {name: min(its) for name, its in found.items() if its}


def filled(kind: type[Request], given: Mapping[str, Any]) -> dict[str, Any]:
    """Stored fields of a request without those that are null, or empty where that means null."""
    empty = marked(kind, "empty")
    return {
        key: value
        for key, value in given.items()
        if value is not None and (value or key not in empty)
    }


@cache
def subject(kind: type[Request]) -> Mapping[str, FieldMark]:
    """The fields that say what a request is about: each is marked ``lab`` or ``about``."""
    found = ((name, mark) for name, its in fields(kind).items() for mark in _marks(its))
    return {name: mark for name, mark in found if mark.kind in ("lab", "about")}


def body_fields(kind: type[Request]) -> dict[str, Any]:
    """The fields that an HTTP request sets by its body or its query, with their types."""
    outside = marked(kind, "host only", "lab", "about")
    return {name: its for name, its in fields(kind).items() if name not in outside}


def body_of(request: Request) -> dict[str, Any]:
    """The values of a request that an HTTP request sends: those that say something.

    What is empty, such as a limit of 0, says something unless that is the default.
    """
    outside, found = body_fields(type(request)), {}
    for field in msgspec.structs.fields(request):
        value = getattr(request, field.name)
        if field.name in outside and (value or value not in (None, {}, (), field.default)):
            found[field.name] = msgspec.to_builtins(value)
    return found


def check(request: R) -> R:
    """The request itself; raises InvalidSpec if a value is outside of its field's limits.

    What only the service or its host sets has none.
    """
    empty, ours = marked(type(request), "empty"), marked(type(request), "host only")
    for name, its in fields(type(request)).items():
        value = getattr(request, name)
        if name not in ours and (value or name not in empty):
            try:
                msgspec.convert(msgspec.to_builtins(value), its)
            except msgspec.ValidationError as error:
                what, found = name.replace("_", " "), None
                with suppress(TypeError):  # a value of another type has no such limits
                    found = _outside(what, value, its)
                raise found or InvalidSpec(f"{what} is invalid: {error}") from None
    return request


def _outside(name: str, value: Any, declared: Any) -> InvalidSpec | None:
    """The error of a value outside of its field's limits; it has no text that may be secret."""
    if isinstance(value, tuple):
        for number, one in enumerate(value, 1):
            for entry in (part for part in _parts(declared) if get_origin(part) is tuple):
                if error := _outside(f"{name}, number {number},", one, get_args(entry)[0]):
                    return error
    beside = [one for part in _parts(declared) for one in getattr(part, "__metadata__", ())]
    shown = next((_SHOWN[one.kind] for one in beside if getattr(one, "kind", "") in _SHOWN), str)
    for meta in (one for one in beside if isinstance(one, msgspec.Meta)):
        if meta.pattern and not re.search(meta.pattern, value):
            hint = FORMS.get(meta.pattern, meta.pattern)
            return InvalidSpec(f"{name}: {value[:_MOST]!r} is invalid", hint=hint)
        if text := _beyond(meta, value, shown):
            return InvalidSpec(f"{name} {text}")
    for choices in (get_args(part) for part in _parts(declared) if get_origin(part) is Literal):
        if value not in choices:
            return InvalidSpec(f"{name} is {value!r}", hint=f"one of: {', '.join(choices)}")
    return None


def _beyond(meta: msgspec.Meta, value: Any, shown: Callable[[Any], str]) -> str:
    """How far a value is beyond a limit, and which; empty if it is not."""
    if meta.max_length is not None and len(value) > meta.max_length:
        what = "characters" if isinstance(value, str) else "entries"
        return f"has {len(value)} {what}, {meta.max_length} at most"
    limits = (
        (meta.gt, le, "is not enough"), (meta.ge, lt, "at least"), (meta.le, gt, "at most")
    )  # fmt: skip
    for limit, beyond, words in limits:
        if limit is not None and beyond(value, limit):
            return f"is {shown(value)}, {shown(limit)} {words}"
    if meta.multiple_of is not None and value % meta.multiple_of:
        return f"is {value}, no multiple of {shown(meta.multiple_of)}"
    return ""


def _parts(declared: Any) -> list[Any]:
    """A type as it is declared, and each type in it but for the entries of tuples."""
    inner = [] if get_origin(declared) is tuple else get_args(declared)
    return [declared, *(one for part in inner for one in _parts(part))]

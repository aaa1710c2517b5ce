"""Answers of the API: models that are made of the declarations of views.

A model has the fields of its view that are marked for callers of the API, and nothing else.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from functools import cache, reduce
from importlib import import_module
from itertools import pairwise
from operator import or_
from types import GenericAlias, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Generic,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from pydantic import BaseModel, ConfigDict, Field, create_model

from lab.api.http import units
from lab.marks import Moment, Reach, defaults, marks

T = TypeVar("T")


class Page(BaseModel, Generic[T]):
    """A part of a list. ``next``: the ``after`` that gets the next part; null: this is the last."""

    items: list[T]
    next: str | None = None


class Answer(BaseModel):
    """An answer, made of a view by ``answer``."""

    view: ClassVar[type]
    model_config = ConfigDict(from_attributes=True, populate_by_name=True)


_MODELS: dict[type, type[Answer]] = {}


def answer(
    shown: object, view: type | None = None, /, *, admin: bool = False, **parts: object
) -> Answer:
    """A view as the API returns it; ``admin``: with what is for administrators.

    ``view``: if ``shown`` is a record, the view of it. ``parts``: the fields of the model that
    ``shown`` does not have, or has otherwise.
    """
    view = view or type(shown)
    hidden = {} if admin else defaults(view, "admins")
    return model(view).model_validate({**vars(shown), **hidden, **parts})


def model(view: type) -> type[Answer]:
    """The model of a view, called as the view without the word."""
    return _MODELS.get(view) or extended(view, Answer)


def extended(view: type, base: type[Answer], title: str = "") -> type[Answer]:
    """The model of a view, with the fields of ``base``; from now on that of the view."""
    title = title or view.__name__.removesuffix("View")
    _MODELS[view] = part(view, base, title, "public", "admins")
    return _MODELS[view]


def part(view: type, base: type[Answer], title: str, *reaches: Reach) -> type[Answer]:
    """A model of those fields of a view that have one of ``reaches``, and of ``base``."""
    hints, texts, found = get_type_hints(view, include_extras=True), described(view), {}
    for name, mark in marks(view).items():
        if mark.reach in reaches:
            about = Field(
                description=texts.get(name),
                examples=list(mark.examples) or None,
                validation_alias=name if mark.name else None,
            )
            found[mark.name or name] = (_shown(mark.values or hints[name]), about)
    found |= {name: (field.annotation, field) for name, field in base.model_fields.items()}
    text = view.__doc__ if base is Answer else base.__doc__
    made: type[Answer] = create_model(title, __base__=Answer, __doc__=text, **found)  # type: ignore[call-overload]
    made.view = view
    return made


def many(view: type) -> Any:
    """The type of a list of answers."""
    return GenericAlias(list, (model(view),))


def page(view: type) -> Any:
    """The type of a page of answers."""
    return Page.__class_getitem__(model(view))


def paged(view: type, items: Sequence[Answer], after: object) -> Page[Answer]:
    """A page of answers; ``after``: the cursor of the next page, None for the last."""
    made: Page[Answer] = page(view)(items=items, next=None if after is None else str(after))
    return made


def _shown(kind: Any) -> Any:
    """The type in an answer of what has the type ``kind`` in a view."""
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        timed = any(isinstance(one, Moment) for one in kind.__metadata__)
        return units.Time if timed else _shown(args[0])
    if origin is tuple:
        return GenericAlias(list, (_shown(args[0]),))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return GenericAlias(dict, tuple(map(_shown, args)))
    if origin in (Union, UnionType):
        return reduce(or_, map(_shown, args))
    return model(kind) if isinstance(kind, type) and is_dataclass(kind) else kind


def described(kind: type) -> dict[str, str]:
    """The texts below the fields of a class and of its bases."""
    found: dict[str, str] = {}
    for one in reversed(kind.__mro__[:-1]):
        for field, below in _pairs(one.__module__, one.__name__):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                text = below.value if isinstance(below, ast.Expr) else None
                if isinstance(text, ast.Constant):
                    found[field.target.id] = " ".join(str(text.value).replace("``", "`").split())
    return found


def _pairs(module: str, name: str) -> list[tuple[ast.stmt, ast.stmt]]:
    """The statements of a class, each with the next."""
    body = next(
        one.body for one in _parsed(module) if isinstance(one, ast.ClassDef) and one.name == name
    )
    return list(pairwise(body))


@cache
def _parsed(module: str) -> list[ast.stmt]:
    return ast.parse(inspect.getsource(import_module(module))).body

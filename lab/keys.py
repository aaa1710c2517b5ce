"""How values are written down, declared once: in the type of the field that holds them.

Example::

    memory_floor: Size = 512 * MIB
    sync: Literal["standard", "always", "disabled"] = "standard"
    queue: Annotated[int, within(1)] = 100

The fields of such a dataclass are the keys of a TOML table, and where a setting has them, of a
flag and an environment variable. ``Given`` marks fields that nobody writes down.

Every command reads settings, so nothing heavy is loaded for it: a validation library costs
milliseconds, and the messages need a text for each key with it as well.
"""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass, replace
from functools import partial
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from lab.errors import InvalidSpec
from lab.suggest import did_you_mean
from lab.values import dataclass

T = TypeVar("T")

Given = Annotated[T, "set by the program"]
"""The type of a field that is not a key."""


class WrongType(Exception):
    """A parser's way to say that a value is not what its key expects."""


@dataclass(frozen=True)
class Key:
    """What a key may hold: metadata of its field's type.

    ``expected`` completes the sentence "expected ..."; ``parse`` takes what TOML gives and what
    a person writes in an environment variable, and may raise WrongType or InvalidSpec.
    """

    expected: str
    parse: Callable[[object], Any]


Keys = Mapping[str, Key]
_KNOWN: dict[type, Keys] = {}
"""The keys of dataclasses, once worked out: reading the types again costs a tenth of a ms."""


def keys(kind: type) -> Keys:
    """The keys of a table that describes the dataclass ``kind``, in the order of its fields."""
    if kind not in _KNOWN:
        hints = get_type_hints(kind, include_extras=True)
        _KNOWN[kind] = {name: key for name, hint in hints.items() if (key := _key(hint))}
    return _KNOWN[kind]


def parse(keys: Keys, key: str, value: object, place: object) -> Any:
    """``value`` of ``key`` as its type; raises InvalidSpec that starts with ``place``, if any."""
    prefix = f"{place}: " if place else ""
    entry = keys.get(key)
    if entry is None:
        known = "known keys: " + ", ".join(keys)
        raise InvalidSpec(
            f"{prefix}unknown key {key!r}", hint=did_you_mean(key, keys, otherwise=known)
        )
    try:
        return entry.parse(value)
    except WrongType:
        raise InvalidSpec(f"{prefix}{key} is {value!r}, expected {entry.expected}") from None
    except InvalidSpec as error:
        raise InvalidSpec(
            f"{prefix}{key}: {error.what}", hint=error.hint or f"expected {entry.expected}"
        ) from None


def parse_all(keys: Keys, table: object, place: object) -> dict[str, Any]:
    """The values of a table, parsed; raises WrongType if it is none, InvalidSpec as ``parse``."""
    if not isinstance(table, Mapping):
        raise WrongType
    return {key: parse(keys, key, value, place) for key, value in table.items()}


def complete(kind: type[T], values: Mapping[str, Any], place: object, **given: object) -> T:
    """The dataclass ``kind`` with ``values``; raises InvalidSpec if a key without default lacks."""
    known = keys(kind)
    for field in fields(kind):  # type: ignore[arg-type]
        key = known.get(field.name)
        optional = field.default is not MISSING or field.default_factory is not MISSING
        if key and field.name not in values and not optional:
            where = f"{place}: {field.name}" if place else field.name
            raise InvalidSpec(f"{where} is missing", hint=f"expected {key.expected}")
    return kind(**values, **given)


def overlay(base: T, table: object, known: Keys, place: object) -> T:
    """``base`` with the values of a table, and of tables in it, in place of its own.

    ``known``: the table's keys. Raises as ``parse_all``.
    """
    if not isinstance(table, Mapping):
        raise WrongType
    changes = {}
    for key, value in table.items():
        part, entry = getattr(base, key, None), known.get(key)
        if entry and is_dataclass(part):
            inner = partial(overlay, part, known=keys(type(part)), place="")
            changes[key] = parse({key: Key(entry.expected, inner)}, key, value, place)
        else:
            changes[key] = parse(known, key, value, place)
    return replace(base, **changes)  # type: ignore[type-var]


def text(value: object) -> str:
    """A text as it is."""
    if not isinstance(value, str):
        raise WrongType
    return value


def whole(value: object) -> int:
    """A whole number, also written as text."""
    return int(value) if isinstance(value, str) and value.strip().isdecimal() else number(value)


def number(value: object) -> int:
    """A whole number, and no text."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise WrongType
    return value


def within(low: int, high: int | None = None) -> Key:
    """A key whose value is a whole number within these limits, both included."""

    def read(value: object) -> int:
        found = whole(value)
        if found < low or (high is not None and found > high):
            raise WrongType
        return found

    limits = f", {low} at least" if high is None else f" from {low} to {high}"
    return Key(f"a whole number{limits}", read)


def matching(expected: str, pattern: str) -> Key:
    """A key whose value is a text that matches all of the regular expression ``pattern``."""

    def read(value: object) -> str:
        if not re.fullmatch(pattern, text(value)):
            raise WrongType
        return text(value)

    return Key(expected, read)


def one_of(*choices: object) -> Key:
    """A key whose value is one of ``choices``."""

    def choose(value: object) -> object:
        if not isinstance(value, str):
            raise WrongType
        if value not in choices:
            known = [str(choice) for choice in choices]
            raise InvalidSpec(f"{value!r} is unknown", hint=did_you_mean(value, known))
        return value

    return Key("one of " + ", ".join(map(str, choices)), choose)


def table_of(kind: type) -> Key:
    """A key whose value is a table with the fields of the dataclass ``kind``."""
    known = keys(kind)
    return Key(
        f"a table of {', '.join(known)}",
        lambda value: complete(kind, parse_all(known, value, ""), ""),
    )


def list_of(expected: str, entry: Key) -> Key:
    """A key whose value is a list, not empty, of what ``entry`` expects."""

    def read(value: object) -> tuple[Any, ...]:
        if not isinstance(value, list) or not value:
            raise WrongType
        return tuple(entry.parse(each) for each in value)

    return Key(expected, read)


def _true_or_false(value: object) -> bool:
    if not isinstance(value, bool):
        raise WrongType
    return value


_PLAIN: Mapping[object, Key] = {
    bool: Key("true or false", _true_or_false),
    int: Key("a whole number", whole),
    str: Key("a text", text),
}


def _key(hint: Any) -> Key | None:
    """The key that a field's type declares; None for one that is ``Given``."""
    if get_origin(hint) is Annotated:
        return next((entry for entry in hint.__metadata__ if isinstance(entry, Key)), None)
    if get_origin(hint) is Literal:
        return one_of(*get_args(hint))
    if get_origin(hint) in (Union, types.UnionType):
        return _key(get_args(hint)[0])
    return table_of(hint) if is_dataclass(hint) and isinstance(hint, type) else _PLAIN[hint]

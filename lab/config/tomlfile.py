"""TOML files of known keys, read so that every mistake is told with its place.

A file is checked against a literal table: key -> ``Key``. The parsers take what TOML
gives and what a person writes in an environment variable alike.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.errors import HostUnfit, InvalidSpec
from lab.spec import parse_duration, parse_size
from lab.suggest import did_you_mean


class WrongType(Exception):
    """A parser's way to say that a value is not what its key expects."""


@dataclass(frozen=True)
class Key:
    """What a key may hold.

    ``expected`` completes the sentence "expected ..."; ``parse`` may raise WrongType or
    InvalidSpec.
    """

    expected: str
    parse: Callable[[object], Any]


Keys = Mapping[str, Key]


def read(path: Path, keys: Keys) -> dict[str, Any]:
    """The parsed values of the file at ``path``; empty if there is no such file.

    Raises InvalidSpec, naming the file and the key, for what is not in ``keys``, what has
    the wrong type, and what is not TOML or cannot be read.
    """
    try:
        text = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise InvalidSpec(f"{path} cannot be read: {error.strerror}") from error
    return {key: parse(keys, key, value, path) for key, value in _load(text, path).items()}


def put(path: Path, keys: Keys, key: str, value: str) -> None:
    """Write ``key`` into the file at ``path``; whatever else is in it stays as it is.

    Raises InvalidSpec as ``read`` does, HostUnfit if it cannot be written.
    """
    line = f"{key} = {json.dumps(value)}\n"
    read(path, keys)
    fresh = path.with_name(f"{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        fresh.write_text(_with_line(text, key, line), encoding="utf-8")
        if read(fresh, keys).get(key) != keys[key].parse(value):
            raise InvalidSpec(f"{path} cannot be changed by a program", hint=f"write: {line}")
        fresh.replace(path)
    except OSError as error:
        raise HostUnfit(
            f"{path} cannot be written: {error.strerror}", hint=f"write into it: {line}"
        ) from error
    finally:
        fresh.unlink(missing_ok=True)


def _with_line(text: str, key: str, line: str) -> str:
    """``text`` with ``line`` in place of that of ``key``, or at the end of what is in no table."""
    lines = text.splitlines(keepends=True)
    tables = [at for at, one in enumerate(lines) if one.startswith("[")]
    top = tables[0] if tables else len(lines)
    for at in range(top):
        if re.match(rf"{key}\s*=", lines[at]):
            lines[at] = line
            return "".join(lines)
    if top and not lines[top - 1].endswith("\n"):
        lines[top - 1] += "\n"
    return "".join([*lines[:top], line, *lines[top:]])


def parse(keys: Keys, key: str, value: object, place: object) -> Any:
    """``value`` of ``key`` as its type; raises InvalidSpec that starts with ``place``."""
    entry = keys.get(key)
    if entry is None:
        known = "known keys: " + ", ".join(keys)
        raise InvalidSpec(
            f"{place}: unknown key {key!r}", hint=did_you_mean(key, keys, otherwise=known)
        )
    try:
        return entry.parse(value)
    except WrongType:
        raise InvalidSpec(
            f"{place}: {key} is {value!r}, expected {entry.expected}",
        ) from None
    except InvalidSpec as error:
        raise InvalidSpec(
            f"{place}: {key}: {error.what}", hint=error.hint or f"expected {entry.expected}"
        ) from None


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


def size(value: object) -> int:
    """Bytes: a whole number, or text such as 2G."""
    return parse_size(value) if isinstance(value, str) else whole(value)


def seconds(value: object) -> float:
    """Seconds: a number, or text such as 5m."""
    if isinstance(value, str):
        if not re.fullmatch(r"\s*\d{1,10}(\.\d{1,9})?\s*", value):
            return parse_duration(value)
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e10:
        raise WrongType
    return float(value)


def lease(value: object) -> float | None:
    """Seconds from text such as 2h; ``none`` for no lease."""
    if not isinstance(value, str):
        raise WrongType
    return None if value.strip().lower() in {"", "none"} else parse_duration(value)


def one_of(*choices: str) -> Key:
    """A key whose value is one of ``choices``."""

    def choose(value: object) -> str:
        if not isinstance(value, str):
            raise WrongType
        if value not in choices:
            raise InvalidSpec(f"there is no {value!r}", hint=did_you_mean(value, choices))
        return value

    return Key("one of " + ", ".join(choices), choose)


def _load(content: bytes, path: Path) -> dict[str, Any]:
    # Costs milliseconds: only when there is a file.
    toml: Any = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        found: dict[str, Any] = toml.loads(content.decode())
        return found
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise InvalidSpec(f"{path} is not valid TOML: line {line} is not UTF-8") from error
    except ValueError as error:
        raise InvalidSpec(f"{path} is not valid TOML: {error}") from error

"""TOML files of known keys, read so that the message about a mistake names its place."""

from __future__ import annotations

import importlib
import json
import re
import stat
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

from lab import texts
from lab.drafts import replaced
from lab.errors import HostUnfit, InvalidSpec
from lab.keys import Keys, parse_all
from lab.paths import writing

_PARTS = 32
_DEEP = re.compile(r"(?:[^\s.=\[\]{},#]{1,64}\.){32}")
"""A key of many parts, which the reader of TOML takes as long for as the square of their number."""


def read(path: Path, keys: Keys, unread: Collection[str] = ()) -> dict[str, Any]:
    """The parsed values of the file at ``path``; empty if there is no such file.

    ``unread``: those of ``keys`` whose values are left out, whatever they are. Raises InvalidSpec,
    naming the file and the key, for what is not in ``keys``, what has the wrong type, and what is
    not TOML or cannot be read.
    """
    values = table(path)
    return parse_all(keys, {key: values[key] for key in values if key not in unread}, path)


def table(path: Path) -> dict[str, Any]:
    """The file at ``path`` as TOML has it; empty if there is no such file. Raises InvalidSpec."""
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise InvalidSpec(f"{path} cannot be read: {error.strerror}") from error
    return loads(content, path)


def put(path: Path, keys: Keys, key: str, value: str) -> None:
    """Write ``key`` into the file at ``path``; whatever else is in it stays as it is.

    Raises InvalidSpec as ``read`` does, HostUnfit if it cannot be written.
    """
    line = f"{key} = {json.dumps(value)}\n"
    read(path, keys)
    there = path.exists()
    text = texts.decoded(path.read_bytes()) if there else ""
    mode = stat.S_IMODE(path.stat().st_mode) if there else 0o644
    try:
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        with replaced(path, mode) as fresh:
            fresh.write_text(_with_line(text, key, line), encoding="utf-8")
            if read(fresh, keys).get(key) != keys[key].parse(value):
                raise InvalidSpec(f"{path} cannot be changed by a program", hint=f"write: {line}")
    except HostUnfit as error:
        raise HostUnfit(error.what, hint=f"write into it: {line}") from error


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


def loads(content: bytes, path: object) -> dict[str, Any]:
    """The tables of ``content``; raises InvalidSpec, which names ``path``, if it is not TOML."""
    # Costs milliseconds: only when there is a file.
    toml: Any = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        text = texts.decoded(content)
        if _DEEP.search(text.replace(" ", "").replace("\t", "")):
            raise InvalidSpec(f"{path} has a key of more than {_PARTS} parts")
        found: dict[str, Any] = toml.loads(text)
        return found
    except RecursionError:
        raise InvalidSpec(f"{path} is not valid: its tables or lists are nested too deep") from None
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise InvalidSpec(f"{path} is not valid TOML: line {line} is not UTF-8") from error
    except ValueError as error:
        raise InvalidSpec(f"{path} is not valid TOML: {error}") from error

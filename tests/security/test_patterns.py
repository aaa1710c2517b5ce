"""Protects the service: no regular expression takes long, whatever it is searched in.

Python's ``re`` holds the interpreter's lock, so one that backtracks stops every thread. Each
pattern of the program is tried as the program uses it, with 64 KiB of each kind of character,
alone and behind and between the words that the pattern itself has.
"""

from __future__ import annotations

import ast
import importlib
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

_parser = importlib.import_module("re._parser" if hasattr(re, "_parser") else "sre_parse")

ROOT = Path(__file__).resolve().parents[2]
SIZE = 64 << 10
SECONDS = 0.1
"""Of the thread's processor time, below which a pattern need not be looked at.

A slow or busy host lengthens the time of all: one that takes longer is compared with itself on an
eighth of the text, of which it may take four times as much per byte. Those that backtrack take
eight times as much, or more.
"""
GROWTH = 4.0
CHARACTERS = " \t\n\r0a_A-.:*'\"`\\(/;=é\x1b\x00"
METHODS = frozenset({"match", "fullmatch", "search", "findall", "finditer", "sub", "split"})
LEFT_OUT = ("lab.fake", "lab.recipes", "lab.host.zfs", "lab.hypervisor.bhyve.text")
"""Doubles that read what tests write, files of guests, what ZFS and vm-bhyve say of the host."""
BY = {
    ("lab.datasets.dump", name): {"match"}
    for name in ("_SINGLE", "_DOUBLE", "_BACKTICK", "_LINE", "_BLOCK", "_RUN", "_NAMES")
} | {("lab.storage.zfs.faults", "_LINES"): {"fullmatch"}}
"""Patterns that are used by another name."""


@dataclass(frozen=True)
class Use:
    """A pattern, and a method by which the program uses it."""

    place: str
    pattern: str | bytes
    flags: int
    method: str

    def __str__(self) -> str:
        text = self.pattern if isinstance(self.pattern, str) else self.pattern.decode("latin-1")
        return f"{self.place}:{self.method}:{text[:40]}"


def uses() -> Iterator[Use]:
    """Every pattern of the program."""
    for path in sorted((ROOT / "lab").rglob("*.py")) + sorted((ROOT / "api").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        place = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        place = f"lab.{place}" if place.startswith("api.") else place
        if "import re\n" not in text or place.startswith(LEFT_OUT):
            continue
        loaded = importlib.import_module(place)
        for name, value in vars(loaded).items():
            for one in patterns(value):
                for method in BY.get((place, name)) or methods(name) or {"search"}:
                    yield Use(place, one.pattern, one.flags, method)
        yield from inline(place, ast.parse(text))


def patterns(value: object, depth: int = 3) -> Iterator[re.Pattern[str] | re.Pattern[bytes]]:
    """The patterns in a value of a module."""
    if isinstance(value, re.Pattern):
        yield value
    elif depth and isinstance(value, dict):
        for one in (*value.keys(), *value.values()):
            yield from patterns(one, depth - 1)
    elif depth and isinstance(value, tuple | list | frozenset):
        for one in value:
            yield from patterns(one, depth - 1)
    elif depth and is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from patterns(getattr(value, field.name), depth - 1)


@lru_cache(maxsize=1)
def _calls() -> dict[str, frozenset[str]]:
    """The methods that the program calls on each name."""
    places = [path for top in ("lab", "api") for path in sorted((ROOT / top).rglob("*.py"))]
    found: dict[str, set[str]] = {}
    for path in places:
        for name, method in re.findall(r"\b(\w+)\.(\w+)\(", path.read_text(encoding="utf-8")):
            found.setdefault(name, set()).add(method)
    return {name: frozenset(called) & METHODS for name, called in found.items()}


def methods(name: str) -> frozenset[str]:
    """The methods that are called on what is named so."""
    return _calls().get(name, frozenset())


def inline(place: str, tree: ast.AST) -> Iterator[Use]:
    """Patterns that are written where they are used."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if getattr(node.func.value, "id", "") != "re" or node.func.attr not in METHODS:
            continue
        if isinstance(node.args[0], ast.Constant) and isinstance(node.args[0].value, str | bytes):
            flags = sum(
                int(getattr(re, flag))
                for one in (*node.args[2:], *(word.value for word in node.keywords))
                for flag in re.findall(r"re\.([A-Z]+)", ast.unparse(one))
            )
            yield Use(place, node.args[0].value, flags, node.func.attr)


def hostile(pattern: str) -> Iterator[str]:
    """Texts that a pattern may be slow with."""
    plain = re.sub(r"\\[A-Za-z]|\(\?[a-zA-Z:!=<]+", " ", pattern)
    words = re.findall(r"[A-Za-z0-9_@/<-][A-Za-z0-9_ .:@/-]*", plain)
    starts = list(dict.fromkeys(["", *words[:2], "".join(words[:2]), " ".join(words[:2])]))
    for character in CHARACTERS:
        for start in starts:
            yield start + character * (SIZE - len(start))
        yield (starts[-1] + character) * (SIZE // (len(starts[-1]) + 1))
        yield (character + "x") * (SIZE // 2)
    literal = re.findall(r"(?:\\[^A-Za-z0-9]|[^\\.^$*+?{}\[\]|()])+", pattern)
    parts = [re.sub(r"\\(.)", r"\1", one) for one in dict.fromkeys(literal)]
    for part in parts:
        for start in ("", *parts[:2]):
            yield start + (part * (SIZE // len(part)))[: SIZE - len(start)]
    for start in beginnings(pattern):
        yield start * (SIZE // len(start))
        yield (start + "x") * (SIZE // (len(start) + 1))
    for pair in ("\\'", "``", "x`", "\n `", '\\"', "*/", "/*", "A1", "a.", "-0"):
        yield pair * (SIZE // 2)


def beginnings(pattern: str) -> Iterator[str]:
    """What the first parts of a pattern match: each place where one is, is tried to the end."""
    tree = list(_parser.parse(pattern))
    found = [_example(tree[:count]) for count in range(1, len(tree) + 1)]
    yield from dict.fromkeys(text for text in found if text)


def _example(tree: Iterable[tuple[Any, Any]]) -> str:
    """A short text that a parsed pattern matches, but for what it looks ahead or behind for."""
    return "".join(_part(str(kind), value) for kind, value in tree)


def _part(kind: str, value: Any) -> str:
    found = ""
    if kind == "LITERAL":
        found = chr(value)
    elif kind in ("NOT_LITERAL", "ANY"):
        found = "b" if value != ord("b") else "c"
    elif kind == "IN":
        found = _one_of(value)
    elif kind == "BRANCH":
        found = _example(value[1][0])
    elif kind in ("SUBPATTERN", "ATOMIC_GROUP"):
        found = _example(value[-1] if kind == "SUBPATTERN" else value)
    elif kind in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
        found = _example(value[2]) * max(1, value[0])
    return found


def _one_of(items: Sequence[tuple[Any, Any]]) -> str:
    """A character of a set."""
    if str(items[0][0]) == "NEGATE":
        compiled = [_example([one]) for one in items[1:]]
        return next((one for one in "b0 _\n;" if one not in compiled), "é")
    kind, value = items[0]
    if str(kind) == "CATEGORY":
        return {"DIGIT": "1", "SPACE": " ", "WORD": "a"}.get(str(value).split("_")[-1], "-")
    return chr(value[0] if str(kind) == "RANGE" else value)


@pytest.mark.parametrize("use", sorted(set(uses()), key=str), ids=str)
def test_no_pattern_is_slow(use: Use) -> None:
    compiled = re.compile(use.pattern, use.flags)
    is_text = isinstance(use.pattern, str)
    shown = use.pattern if isinstance(use.pattern, str) else use.pattern.decode("latin-1")
    for text in hostile(shown):
        data = text if is_text else text.encode()
        # One that backtracks is found by the first. If time grows with the square of the length,
        # the whole takes 64 times as long as an eighth: what is below a limit then need not be run.
        short = seconds(compiled, use.method, data[: SIZE >> 6]) < SECONDS
        if short and seconds(compiled, use.method, data[: SIZE >> 3]) * 64 < SECONDS:
            continue
        for part in (SIZE >> 6, SIZE >> 3, SIZE):
            assert not slow(compiled, use.method, data[:part]), f"{part} bytes of {text[:60]!r}"


def slow(compiled: re.Pattern[str] | re.Pattern[bytes], method: str, data: str | bytes) -> bool:
    """Whether a pattern takes long, and longer than the length of its text says."""
    if seconds(compiled, method, data) < SECONDS:
        return False
    less = data[: len(data) >> 3]
    whole = min(seconds(compiled, method, data) for _ in range(3))
    eighth = min(seconds(compiled, method, less) for _ in range(3))
    return whole >= SECONDS and whole / len(data) >= GROWTH * eighth / len(less)


def seconds(compiled: re.Pattern[str] | re.Pattern[bytes], method: str, data: object) -> float:
    """How long a pattern takes."""
    began = time.thread_time()
    if method in ("match", "fullmatch", "search"):
        getattr(compiled, method)(data)
    else:
        for _ in getattr(compiled, "finditer")(data):  # noqa: B009  # of either kind
            pass
    return time.thread_time() - began


def test_what_backtracks_is_found() -> None:
    """The trial itself: a pattern that was in use, and stopped the service for a day."""
    compiled = re.compile(r"(?m:^)\s*`[^`]+`\s+json\b")
    text = next(one for one in hostile(compiled.pattern) if one.startswith("\n\n"))
    assert slow(compiled, "search", text[: SIZE // 4])
    assert not slow(compiled, "search", text[: SIZE >> 7]), "what is short takes no time"


def test_what_is_tried_from_each_of_its_beginnings_is_found() -> None:
    """The trial itself: a pattern of this kind read a megabyte for ten seconds."""
    compiled = re.compile(r"SET\s+NAMES\s*=[^;]*;\s*GO")
    assert "SET NAMES =" in set(beginnings(compiled.pattern))
    assert any(slow(compiled, "search", text) for text in hostile(compiled.pattern))

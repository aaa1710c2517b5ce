"""JSON of others is read with all errors that it may cause, not only with the usual ones."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests import ROOT

_OURS = {"fake"}
"""Rooms that read only what they wrote."""
_READERS = {"json.loads", "msgspec.json.decode", "msgspec.yaml.decode", "msgspec.toml.decode"}
_ALL = {"Exception", "BaseException"}
_FEWEST = 10
"""Readings of JSON that the test must find, to be believed."""


def test_who_expects_invalid_json_expects_all_of_it() -> None:
    """Protects from internal errors: bytes that are no UTF-8, and values nested too deeply.

    msgspec reports neither as an error of its own.
    """
    found = 0
    for path in (path for room in ("lab", "api") for path in (ROOT / room).rglob("*.py")):
        if _OURS.isdisjoint(path.relative_to(ROOT).parts):
            for line, handled in _reading(ast.parse(path.read_text(encoding="utf-8"))):
                found += 1
                missing = {"ValueError", "RecursionError"} - handled
                why = f"{path}:{line} handles {handled}, not {missing}"
                assert handled & _ALL or not missing, why
    assert found >= _FEWEST


def _reading(tree: ast.AST) -> Iterator[tuple[int, set[str]]]:
    """The line of each ``try`` or ``with suppress`` in which JSON is read, and what it handles."""
    for block in ast.walk(tree):
        if isinstance(block, ast.Try):
            handled = {name for one in block.handlers if one.type for name in _names(one.type)}
        elif isinstance(block, ast.With):
            handled = {name for one in block.items for name in _suppressed(one.context_expr)}
        else:
            continue
        calls = (node for stmt in block.body for node in ast.walk(stmt))
        if handled and any(
            isinstance(node, ast.Call) and ast.unparse(node.func) in _READERS for node in calls
        ):
            yield block.lineno, handled


def _names(expression: ast.expr) -> Iterator[str]:
    found = expression.elts if isinstance(expression, ast.Tuple) else [expression]
    for one in found:
        yield ast.unparse(one).rpartition(".")[2]


def _suppressed(expression: ast.expr) -> Iterator[str]:
    if isinstance(expression, ast.Call) and ast.unparse(expression.func).endswith("suppress"):
        for one in expression.args:
            yield from _names(one)

"""What a version has at least: an empty source, or one that lost data, replaces nothing unasked."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lab.datasets.survey import Found
from lab.errors import Conflict, InvalidSpec
from lab.lifecycle.images.provenance import TableFacts
from lab.units import format_size

LEAST = 0.5
"""The part of tables, rows and bytes that the next version has at least."""
_FORCE = "--force"

Accept = Callable[[Sequence[TableFacts]], None]
"""Raises unless a version may have these tables, before it is captured."""


def check_source(found: Found, name: str) -> None:
    """Raise InvalidSpec for SQL without any statement, before a guest boots."""
    if not found.statements:
        raise InvalidSpec(
            f"{name} is empty: it has no statement",
            hint="did the dump fail? `set -o pipefail` in its script shows it;"
            f" {_FORCE} makes an empty dataset",
        )


def has_tables(name: str) -> Accept:
    """For a first version: it has a table. ``name``: of the source."""

    def accept(tables: Sequence[TableFacts]) -> None:
        if not tables:
            raise InvalidSpec(
                f"{name}: nothing was loaded: the server has no table",
                hint=f"is it the right source? {_FORCE} makes a dataset without tables",
            )

    return accept


def no_less(at: str, before: Sequence[TableFacts]) -> Accept:
    """For a next version: not much less than ``at``, the latest one, which has ``before``."""

    def accept(tables: Sequence[TableFacts]) -> None:
        counts = (
            ("tables", len(before), len(tables), str),
            ("rows", sum(t.rows for t in before), sum(t.rows for t in tables), str),
            ("bytes", sum(t.size for t in before), sum(t.size for t in tables), format_size),
        )
        less = [
            f"{what}: {text(now)}, {at} has {text(there)}"
            for what, there, now, text in counts
            if now < LEAST * there
        ]
        if less:
            raise Conflict(
                f"the source has less than half of what {at} has",
                hint=f"{at} stays the latest version; if the loss is intended:"
                f" `lab dataset refresh {at.partition('@')[0]} {_FORCE}`",
                details=less,
            )

    return accept


def anything(_: Sequence[TableFacts]) -> None:
    """What was asked for by name, whatever it has."""

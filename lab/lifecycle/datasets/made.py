"""How a version of a dataset was made, as its image's directory has it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from lab.datasets.columns import Column
from lab.datasets.live import Selection
from lab.errors import NotFound
from lab.lifecycle.core.context import Context
from lab.lifecycle.datasets.loader import TableFacts
from lab.paths import writing
from lab.state.records import ImageRecord

INFO = "dataset.json"
"""The name of what is recorded of a version, in the directory of its image."""


@dataclass(frozen=True)
class Made:
    """How a version was made: enough to make the next one.

    ``source``: its text; ``files``: absolute paths of further SQL; ``keep``: how many versions are
    kept, 0 for all.
    """

    source: str
    blueprint: str
    files: tuple[str, ...] = ()
    keep: int = 0
    mask: str = ""
    """The file of masking rules, as it was."""
    selection: Selection = field(default_factory=Selection)
    """Of a live server."""
    loaded: int = 0
    """Bytes of SQL, and of a physical backup."""
    tables: tuple[TableFacts, ...] = field(default_factory=tuple)
    columns: tuple[Column, ...] = field(default_factory=tuple)
    sql: str = ""
    """Further SQL, executed after that of ``files``."""
    lab_project: str = ""
    """Of the lab that it is made from: another lab may have its name later."""
    warm: str = ""
    """Queries whose data labs have in memory; empty: small tables."""


def write_made(ctx: Context, key: str, made: Made) -> None:
    """Record how the image ``key`` was made."""
    path = ctx.home.image(key) / INFO
    with writing(path):
        path.touch(0o600)  # rules and SQL may have secrets
        path.write_text(json.dumps(asdict(made), indent=2) + "\n", encoding="utf-8")


def read_made(ctx: Context, record: ImageRecord) -> Made:
    """How a version was made; raises NotFound if that is lost."""
    path = ctx.home.image(record.key) / INFO
    try:
        values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        values["files"] = tuple(values["files"])
        values["selection"] = _selection(**values.get("selection", {}))
        values["tables"] = tuple(TableFacts(**table) for table in values["tables"])
        values["columns"] = tuple(_column(**column) for column in values["columns"])
        return Made(**values)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise NotFound(
            f"dataset {record.dataset}@{record.version} has lost its {INFO}",
            hint="create it again under another name",
        ) from error


def _selection(*, defaults_file: str = "", **names: Sequence[str]) -> Selection:
    return Selection(defaults_file=defaults_file, **{key: tuple(names[key]) for key in names})


def _column(*, references: Sequence[str] | None, **values: Any) -> Column:
    return Column(**values, references=tuple(references) if references else None)  # type: ignore[arg-type]  # three

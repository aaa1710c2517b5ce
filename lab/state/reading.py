"""Lists of labs without SQLAlchemy, whose import takes longer than all else that ``lab ls`` does.

Only for reading, of a file that this version wrote last: the columns of its tables are the fields
of the records. A test compares each with what ``Store`` returns.
"""

from __future__ import annotations

import json
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar, cast
from urllib.parse import quote

from lab.state.records import Kind, LabRecord, LabWithNodes, NodeRecord, kind_of
from lab.state.revision import REVISION

R = TypeVar("R")
Engines = Mapping[str, tuple[str, str]]
"""The engine and its version in each image, by its key."""

_SECONDS = 10.0
"""Seconds to wait for another process that keeps the file for itself."""
_READ: Mapping[Kind, Callable[[Any], Any]] = {"json": json.loads, "flag": bool}
"""The kinds of fields that SQLite keeps as another type."""


def labs_with_nodes(path: Path) -> list[LabWithNodes] | None:
    """All labs and their nodes, by name, as of one moment.

    None if that file has to be opened by ``Store``: it is not there, of another version, or cannot
    be read, for which there are messages there.
    """
    try:
        with closing(
            sqlite3.connect(f"file:{quote(str(path))}?mode=ro", timeout=_SECONDS, uri=True)
        ) as connection:
            connection.isolation_level = None
            connection.execute("BEGIN")
            found = connection.execute("SELECT version_num FROM alembic_version").fetchone()
            if found != (REVISION,):
                return None
            labs = _records(connection, "SELECT * FROM labs ORDER BY name", LabRecord)
            nodes = _records(connection, "SELECT * FROM nodes ORDER BY lab, idx", NodeRecord)
            rows = connection.execute("SELECT key, engine, engine_version FROM images")
            engines = {key: (engine, version) for key, engine, version in rows}
            ready = "SELECT lab, label FROM standbys WHERE state = 'ready'"
            standbys = dict(connection.execute(ready).fetchall())
    except sqlite3.Error:
        return None
    return together(labs, nodes, engines, standbys)


def together(
    labs: Iterable[LabRecord],
    nodes: Iterable[NodeRecord],
    engines: Engines,
    standbys: Mapping[str, str],
) -> list[LabWithNodes]:
    """Labs, each with its nodes; ``standbys``: the labels of the snapshots that they are for."""
    by_lab: dict[str, list[NodeRecord]] = defaultdict(list)
    for node in nodes:
        by_lab[node.lab].append(node)
    return [
        with_engines(lab, by_lab[lab.name], engines, standbys.get(lab.name, "")) for lab in labs
    ]


def with_engines(
    lab: LabRecord, nodes: Iterable[NodeRecord], engines: Engines, standby: str
) -> LabWithNodes:
    """A lab with its nodes, and what is in those of their images that are not the lab's."""
    found = tuple(nodes)
    others = {node.image for node in found} & engines.keys() - {lab.image}
    return LabWithNodes(lab, found, {key: engines[key] for key in others}, standby)


def _records(connection: sqlite3.Connection, query: str, record: type[R]) -> list[R]:
    rows = connection.execute(query)
    names = [column[0] for column in rows.description]
    kinds = {one.name: kind_of(one)[0] for one in fields(cast("Any", record))}
    read = [(at, _READ[kinds[name]]) for at, name in enumerate(names) if kinds[name] in _READ]
    found = []
    for row in rows:
        values = list(row)
        for at, how in read:
            values[at] = how(values[at])
        found.append(record(**dict(zip(names, values, strict=True))))
    return found

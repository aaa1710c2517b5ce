"""Lists of labs that are read without SQLAlchemy are those that the record has."""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from dataclasses import fields
from pathlib import Path
from typing import Any

from lab.paths import Home
from lab.run import run
from lab.state import open_late
from lab.state.reading import labs_with_nodes
from lab.state.records import LabRecord, NodeRecord
from lab.state.store import Store
from tests import ROOT

_OTHER: dict[str, Any] = {
    "str": "a text", "int": 7, "Large": 1 << 40, "float": 1.5, "bool": True, "float | None": 2.5,
    "str | None": "one",
    "Mapping[str, Any]": {"semi_sync": True, "on": ["n3"]}, "Mapping[str, int]": {"sql": 3306},
    "LabState": "stopped", "Started | None": "warm",
}  # fmt: skip


def _fill(home: Home) -> None:
    """Two labs: one with no field at its default, and one without nodes."""
    lab = {field.name: _OTHER[str(field.type)] for field in fields(LabRecord)}
    size = {"memory": 1 << 30, "cpus": 2, "disk": 3 << 30}
    node = {field.name: _OTHER[str(field.type)] for field in fields(NodeRecord)}
    with Store(home) as store, store.transaction():
        for name in ("shop", "empty"):
            store.labs.add(LabRecord(**{**lab, "name": name}))
        store.nodes.add(
            NodeRecord(**{**node, **size, "lab": "shop", "name": f"n{number}", "idx": number})
            for number in (2, 1)
        )


def test_it_reads_what_the_record_has(tmp_path: Path) -> None:
    """Protects `lab ls`: each field of each record is the same as by the usual way."""
    home = Home(tmp_path)
    home.create()
    _fill(home)
    with Store(home) as store:
        usual = store.labs_with_nodes()
    found = labs_with_nodes(home.database)
    assert found == usual
    assert [one.lab.name for one in usual] == ["empty", "shop"]
    for one, other in zip(found or (), usual, strict=True):
        for a, b in zip((one.lab, *one.nodes), (other.lab, *other.nodes), strict=True):
            assert [(name, type(value)) for name, value in vars(a).items()] == [
                (name, type(value)) for name, value in vars(b).items()
            ]


def test_what_it_cannot_read_is_left_to_the_usual_way(tmp_path: Path) -> None:
    """Protects a record of another version, and one that is not there: there are messages there."""
    home = Home(tmp_path)
    home.create()
    assert labs_with_nodes(home.database) is None
    with open_late(home) as store:
        assert store.labs_with_nodes() == []
    _fill(home)
    with closing(sqlite3.connect(home.database)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '0001'")
    assert labs_with_nodes(home.database) is None
    home.database.write_bytes(b"nothing of the kind" * 100)
    assert labs_with_nodes(home.database) is None


def test_listing_labs_imports_no_sqlalchemy(tmp_path: Path) -> None:
    """Protects the speed of `lab ls`: that import takes longer than all else."""
    home = Home(tmp_path)
    home.create()
    _fill(home)
    program = (
        "import sys\n"
        "from lab.config.settings import load\n"
        "from lab.lifecycle.core.context import open_context\n"
        "from lab.lifecycle.nodes.inspect import labs\n"
        "flags = {'home': sys.argv[1], 'hypervisor': 'fake', 'storage': 'fake'}\n"
        "settings = load(flags, env={}, files=[])\n"
        "with open_context(settings) as ctx:\n"
        "    assert len(labs(ctx)) == 2\n"
        "sys.exit('sqlalchemy' in sys.modules)\n"
    )
    run([sys.executable, "-c", program, tmp_path], timeout=60, cwd=ROOT)

"""Our scripts for sysbench, on a server of this host."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from lab.bench import sysbench, workloads
from lab.bench.sysbench import Measured
from lab.bench.workloads import CHECKS, Scale, WorkloadName
from lab.errors import CommandFailed
from tests import ROOT
from tests.support.mariadb_server import NoServer, Server, server

SCRIPTS = ROOT / "images/client/usr/share/lab"
DATABASE = "lab_bench"
EVENTS = 150
"""Of a workload that has no number of them: a time would be too short on a busy machine."""

pytestmark = pytest.mark.skipif(shutil.which("sysbench") is None, reason="no sysbench here")


@pytest.fixture(scope="module")
def running() -> Iterator[Server]:
    try:
        with server() as found:
            yield found
    except NoServer as why:
        pytest.skip(str(why))


@pytest.fixture
def db(running: Server) -> Server:
    """The server, with an empty database."""
    running.ask(f"DROP DATABASE IF EXISTS {DATABASE}", f"CREATE DATABASE {DATABASE}")
    return running


def sysbench_of(db: Server, where: Path, script: str, command: str, given: Sequence[str]) -> bytes:
    """What it prints, as the guest's program runs it."""
    options = where / "options"
    options.write_text(
        f"mysql-socket={db.socket}\nmysql-user=root\nmysql-db={DATABASE}\n"
        f"mysql-ignore-errors={sysbench.IGNORED}\n"
    )
    argv = ["sysbench", f"--config-file={options}", *given, str(SCRIPTS / f"{script}.lua"), command]
    done = subprocess.run(argv, capture_output=True, timeout=120, check=False)
    return done.stdout + done.stderr


def run(
    db: Server, where: Path, name: WorkloadName, scale: Scale, step: str = "", *, threads: int = 2
) -> Measured:
    work = workloads.workload(name)
    given = sysbench.options(threads, events=work.events(scale) or EVENTS)
    given += work.options(scale, step)
    return sysbench.parse(sysbench_of(db, where, work.script, "run", given), work.script)


def broken(db: Server) -> dict[str, int]:
    """The conditions that do not hold, and how often."""
    found = {what: db.ask(sql.format(db=DATABASE))[0][0] for what, sql in CHECKS}
    return {what: count for what, count in found.items() if count}


def test_tpcc_like_keeps_its_data_consistent(db: Server, tmp_path: Path) -> None:
    """Protects the checks as well: what is broken on purpose is found."""
    given = ["--rand-seed=1", "--warehouses=2"]
    assert b"FATAL" not in sysbench_of(db, tmp_path, "tpcc_like", "prepare", given)
    assert broken(db) == {}
    found = run(db, tmp_path, "tpcc-like", Scale(warehouses=2), threads=4)
    assert found.events == EVENTS
    assert found.latency is not None
    assert broken(db) == {}
    for table in ("orders", "history", "order_line"):
        assert db.ask(f"SELECT COUNT(*) FROM {DATABASE}.{table}")[0][0] > 600
    db.ask(f"DELETE FROM {DATABASE}.order_line WHERE ol_w_id = 1 AND ol_d_id = 1 AND ol_o_id = 1")
    db.ask(f"UPDATE {DATABASE}.warehouse SET w_ytd = w_ytd + 1 WHERE w_id = 2")
    assert {what.partition(":")[0] for what in broken(db)} == {"1", "4", "6", "8"}
    assert b"FATAL" not in sysbench_of(db, tmp_path, "tpcc_like", "cleanup", [])
    assert db.ask(f"SHOW TABLES IN {DATABASE}") == []


def test_tables_are_created_and_dropped(db: Server, tmp_path: Path) -> None:
    """Protects the number of tables, whatever the number of threads."""
    for step, left in (("create", 11), ("drop", 0)):
        assert run(db, tmp_path, "create-tables", Scale(tables=11), step, threads=3).events == 11
        assert len(db.ask(f"SHOW TABLES IN {DATABASE}")) == left


def test_a_dump_is_imported(db: Server, tmp_path: Path) -> None:
    assert b"FATAL" not in sysbench_of(db, tmp_path, "import", "prepare", [])
    assert run(db, tmp_path, "import", Scale(rows=300), threads=3).events == 300
    assert db.ask(f"SELECT COUNT(*) FROM {DATABASE}.imported") == [(300,)]
    assert b"FATAL" not in sysbench_of(db, tmp_path, "import", "cleanup", [])


def test_an_error_of_the_server_is_said(db: Server, tmp_path: Path) -> None:
    output = sysbench_of(db, tmp_path, "import", "run", ["--threads=1", "--events=1"])
    with pytest.raises(CommandFailed) as failed:
        sysbench.parse(output, "import")
    assert "1146" in failed.value.stderr

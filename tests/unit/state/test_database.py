"""Protects: a state that is lost, damaged, newer or out of reach is reported with its remedy."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from lab.errors import Conflict, HostUnfit, LabError, NotFound
from lab.names import Owner
from lab.paths import Home
from lab.state import database
from lab.state.store import Store

PXC = Owner("lab", "pxc")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "home")
    with Store(home) as store:
        store.resources.intend(PXC, "guest", "g")
    return home


def test_only_its_owner_can_read_it(home: Home) -> None:
    with Store(home) as store:
        store.resources.intend(PXC, "guest", "h")
        for path in home.root.glob("state.db*"):
            assert path.stat().st_mode & 0o777 == 0o600


def test_it_is_in_wal_mode_and_keeps_foreign_keys(home: Home) -> None:
    with Store(home) as store, store._database.read() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert connection.exec_driver_sql("PRAGMA foreign_keys").scalar() == 1


def test_what_is_synced_is_there_whether_or_not_there_is_a_journal(home: Home) -> None:
    """Protects the revoking of tokens from an error of its own, also just after a checkpoint."""
    with Store(home) as store:
        store.resources.intend(PXC, "guest", "h")
        assert Path(f"{home.root}/state.db-wal").exists()
        store.sync()
    assert not Path(f"{home.root}/state.db-wal").exists()
    with Store(home) as store:
        store.sync()
        assert len(store.resources.of(PXC)) == 2


def test_an_existing_state_opens_without_alembic(home: Home) -> None:
    """Every command pays for what is imported here."""
    code = (
        "import sys; from pathlib import Path; from lab.paths import Home\n"
        "from lab.state.store import Store\n"
        "with Store(Home(Path(sys.argv[1]))) as s: assert s.resources.all()\n"
        "assert 'alembic' not in sys.modules and 'sqlalchemy.orm' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(home.root)], check=True)


@pytest.mark.parametrize("all_files", [True, False])
def test_a_state_that_is_removed_while_we_run_is_recreated(home: Home, all_files: bool) -> None:
    with Store(home) as store:
        assert store.resources.all()
        for path in home.root.glob("state.db*" if all_files else "state.db"):
            path.unlink()
        assert store.resources.all() == []
        store.resources.intend(PXC, "guest", "new")
        with pytest.raises(NotFound):
            store.labs.update("pxc", state="ready")
    with Store(home) as again:
        assert [thing.ref for thing in again.resources.all()] == ["new"]


def test_a_home_that_is_removed_while_we_run_is_recreated(home: Home) -> None:
    import shutil

    with Store(home) as store:
        assert store.resources.all()
        shutil.rmtree(home.root)
        assert store.resources.all() == []


def test_a_file_that_is_no_database(home: Home) -> None:
    home.database.write_bytes(b"not what you think\n" * 500)
    with Store(home) as store, pytest.raises(LabError) as caught:
        store.labs.all()
    assert caught.value.exit_code == 1
    assert str(home.database) in caught.value.what
    assert "is damaged" in caught.value.what
    assert "move it away" in caught.value.hint


def test_a_damaged_page(home: Home) -> None:
    content = bytearray(home.database.read_bytes())
    content[4096:] = b"\xa5" * (len(content) - 4096)
    home.database.write_bytes(content)
    with Store(home) as store, pytest.raises(LabError, match="is damaged"):
        store.resources.all()


def test_a_state_from_the_future(home: Home) -> None:
    with closing(sqlite3.connect(home.database)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '0999'")
    with Store(home) as store, pytest.raises(HostUnfit, match="newer version of lab") as caught:
        store.labs.all()
    assert "upgrade lab" in caught.value.hint


def test_another_process_that_writes_for_too_long(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "BUSY_TIMEOUT", 0.1)
    with closing(sqlite3.connect(home.database, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with Store(home) as store:
            assert store.resources.all()  # reads still work
            with pytest.raises(Conflict, match="is busy"):
                store.resources.intend(PXC, "guest", "x")


@contextmanager
def nobody() -> Iterator[None]:
    """Without root's powers, as root may write anywhere."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("there", [True, False])
def test_a_directory_that_cannot_be_written(there: bool) -> None:
    from tempfile import TemporaryDirectory

    # Not tmp_path: its parents are closed to others, which is another error.
    with TemporaryDirectory() as name:
        home = Home(Path(name))
        with Store(home) as store:
            store.labs.all()
        if not there:
            home.database.unlink()
        else:
            home.database.chmod(0o444)
        home.root.chmod(0o555)
        try:
            with nobody(), Store(home) as store, pytest.raises(HostUnfit) as caught:
                store.events.add("", "x", "note")
        finally:
            home.root.chmod(0o755)
        assert str(home.root) in caught.value.what
        assert "LAB_HOME" in caught.value.hint


def test_a_reader_cannot_become_a_writer(home: Home) -> None:
    """It would fail at random under load: SQLite cannot wait there."""
    with Store(home) as store, store._database.read(), pytest.raises(RuntimeError):
        store.labs.remove("pxc")


def test_a_transaction_belongs_to_its_thread(home: Home) -> None:
    seen: list[int] = []
    with Store(home) as store:
        with store.transaction():
            store.resources.intend(PXC, "guest", "x")
            thread = threading.Thread(target=lambda: seen.append(len(store.resources.all())))
            thread.start()
            thread.join(10)
        seen.append(len(store.resources.all()))
    assert seen == [1, 2]

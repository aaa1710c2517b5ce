"""Protects: the tables in the code and those that the migrations make are the same."""

from __future__ import annotations

import ast
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import CheckConstraint, Connection, create_engine, inspect, text

from lab.errors import HostUnfit
from lab.paths import Home
from lab.state import migrate, reading
from lab.state.revision import OLDEST, REVISION
from lab.state.schema import metadata
from lab.state.store import Store


@pytest.fixture
def migrated(tmp_path: Path) -> Iterator[Connection]:
    engine = create_engine(f"sqlite:///{tmp_path}/state.db")
    with engine.begin() as connection:
        migrate.upgrade(connection)
        yield connection
    engine.dispose()


def test_migrations_make_what_the_code_expects(migrated: Connection) -> None:
    assert migrate.differences(migrated) == []


def test_check_constraints_agree(migrated: Connection) -> None:
    """Alembic does not compare these."""
    found = inspect(migrated)
    for table in metadata.sorted_tables:
        ours = {str(c.sqltext) for c in table.constraints if isinstance(c, CheckConstraint)}
        assert {c["sqltext"] for c in found.get_check_constraints(table.name)} == ours


def test_a_new_database_is_as_a_migrated_one(migrated: Connection, tmp_path: Path) -> None:
    """Protects the next migration from homes that differ.

    Not in the order of columns, nor in what they are filled with if not given: all are.
    """
    engine = create_engine(f"sqlite:///{tmp_path}/new.db")
    with engine.begin() as connection:
        migrate.create(connection)
        old, new = inspect(migrated), inspect(connection)
        assert sorted(old.get_table_names()) == sorted(new.get_table_names())
        for table in new.get_table_names():
            for what in PARTS:
                found = [getattr(one, f"get_{what}")(table) for one in (old, new)]
                assert alike(found[0]) == alike(found[1]), f"{table}: {what}"
        stored = [
            one.execute(text("SELECT * FROM alembic_version")).all()
            for one in (migrated, connection)
        ]
        assert stored[0] == stored[1]
    engine.dispose()


PARTS = (
    "columns", "indexes", "foreign_keys", "unique_constraints", "check_constraints",
    "pk_constraint",
)  # fmt: skip
"""What a table has, as SQLAlchemy's inspector names it."""


def alike(found: Any) -> list[str] | str:
    """What an inspector found, without order and defaults."""
    if isinstance(found, dict):
        return str(found)
    return sorted(str({**one, "default": None}) for one in found)


def test_the_constant_is_the_head(migrated: Connection) -> None:
    assert migrate.head() == REVISION
    stored = migrated.execute(text("SELECT version_num FROM alembic_version")).scalar()
    assert stored == REVISION


def test_numbers_count_up() -> None:
    files = sorted(path.name for path in (migrate.MIGRATIONS / "versions").glob("0*.py"))
    first = int(OLDEST)
    assert [name[:4] for name in files] == [f"{n:04d}" for n in range(first, first + len(files))]


def test_an_empty_database_is_migrated() -> None:
    assert not migrate.is_current(None, "x")


def test_a_failed_migration_leaves_nothing(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/state.db")
    with engine.connect() as connection:
        connection.connection.dbapi_connection.isolation_level = None  # type: ignore[union-attr]
        connection.execute(text("BEGIN"))
        migrate.upgrade(connection)
        connection.rollback()
        assert inspect(connection).get_table_names() == []
    engine.dispose()


def test_two_files_alone_are_about_one_database() -> None:
    """Pragmas stay in one place; `reading` is of SQLite alone, and reads only."""
    for path in Path(migrate.__file__).parent.glob("*.py"):
        if path.name not in ("database.py", "reading.py"):
            texts = [
                n.value
                for n in ast.walk(ast.parse(path.read_text()))
                if isinstance(n, ast.Constant) and isinstance(n.value, str)
            ]
            assert not [text for text in texts if re.search(r"PRAGMA|BEGIN|pg_", text)]


@pytest.fixture
def before(tmp_path: Path) -> Home:
    """A home that the last revision before the first release made: with `lab serve` and fakes."""
    home = Home(tmp_path / "home")
    home.create()
    with closing(sqlite3.connect(home.database)) as connection:
        connection.executescript(Path(__file__).with_name("home-0021.sql").read_text())
    return home


def test_a_home_of_before_the_first_release_works(before: Home) -> None:
    """Protects labs, images with data, templates, tokens and jobs of those who have one."""
    with Store(before) as store:
        labs = {one.lab.name: one for one in store.labs_with_nodes()}
        assert sorted(labs) == ["plain", "shop", "try", "web"]
        assert [len(labs[name].nodes) for name in sorted(labs)] == [1, 3, 3, 1]
        assert labs["try"].lab.parent.startswith("lab:shop@branch.")
        assert labs["plain"].lab.options == {"set": ["max_connections=50"]}
        assert labs["web"].lab.project == "web"
        assert labs["shop"].nodes[0].services == {"sql": 3306, "ssh": 22}
        templates = {one.key for one in store.templates.all()}
        assert {one.lab.template for one in labs.values()} <= templates
        assert {(one.dataset, one.version) for one in store.images.all()} == {("", 0), ("crm", 1)}
        (token,) = store.tokens.all()
        assert token.name == "ci"
        states = {(one.kind, one.lab): one.state for one in store.jobs.latest()}
        assert states[("create", "later")] == "running"
        (interrupted,) = store.jobs.open()
        assert store.jobs.request(interrupted.id)["nodes"] == 3
        assert store.jobs.by_key(token.id, "one-two-three") is not None
        assert len(store.audit.latest()) == 3
        assert {str(one.owner) for one in store.resources.all()} > {"lab:shop", "lab:web"}
        store.labs.update("shop", protected=True)
        store.labs.remove("try")
        assert store.nodes.of("try") == []
    listed = reading.labs_with_nodes(before.database)
    assert listed is not None
    assert [one.lab.name for one in listed if one.lab.protected] == ["shop"]


def test_a_new_home_is_as_one_of_before_the_first_release(
    before: Home, migrated: Connection
) -> None:
    """Protects the next migration from homes that differ."""
    engine = create_engine(f"sqlite:///{before.database}")
    with engine.begin() as connection:
        migrate.upgrade(connection)
        assert migrate.differences(connection) == []
        old, new = inspect(connection), inspect(migrated)
        assert sorted(old.get_table_names()) == sorted(new.get_table_names())
        for table in new.get_table_names():
            for what in PARTS:
                found = [getattr(one, f"get_{what}")(table) for one in (old, new)]
                assert str(found[0]) == str(found[1]), f"{table}: {what}"
    engine.dispose()


def test_a_home_of_an_earlier_revision_is_refused(before: Home) -> None:
    """Protects its labs: nothing is changed, and the message says what to do."""
    with closing(sqlite3.connect(before.database)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '0018'")
    content = before.database.read_bytes()
    with Store(before) as store, pytest.raises(HostUnfit, match="before the first release") as not_:
        store.labs.all()
    assert "schema 0018" in str(not_.value)
    assert "found again by the tags" in not_.value.hint
    assert before.database.read_bytes() == content

"""Protects: the tables in the code and those that the migrations make are the same."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import (
    CheckConstraint,
    Connection,
    create_engine,
    inspect,
    make_url,
    select,
    text,
)  # fmt: skip
from sqlalchemy.schema import CreateTable

from lab.state import migrate
from lab.state.keyed import as_records
from lab.state.records import NodeRecord, TemplateRecord
from lab.state.revision import REVISION
from lab.state.schema import jobs, metadata, nodes, requests, templates


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


def test_the_constant_is_the_head(migrated: Connection) -> None:
    assert migrate.head() == REVISION
    assert migrate.stored_revision(migrated) == REVISION


def test_nodes_get_what_their_lab_has(tmp_path: Path) -> None:
    """Protects labs of the previous version: their nodes start with the size that they had."""
    engine = create_engine(f"sqlite:///{tmp_path}/state.db")
    with engine.begin() as connection:
        migrate.upgrade(connection, "0010")
        connection.execute(
            text(
                "INSERT INTO labs (name, blueprint, engine, engine_version, image, node_count,"
                " memory, cpus, disk, state, password, user, owner, segment, created_at, why_cold)"
                " VALUES ('shop', 'pxc', 'mariadb', '11.8', 'mariadb-1', 1, 402653184, 2, 7,"
                " 'ready', '', 'lab', 'me', 1, 0, '')"
            )
        )
        connection.execute(
            text(
                "INSERT INTO nodes (lab, name, idx, role, guest, sql_port, ssh_port, extra)"
                " VALUES ('shop', 'n1', 1, 'member', 'lab-shop-n1', 23306, 23307, '{}')"
            )
        )
        migrate.upgrade(connection)
        (node,) = as_records(connection.execute(select(nodes)), NodeRecord)
    assert node == NodeRecord(
        "shop", "n1", 1, "member", "lab-shop-n1", 23306, 23307, {},
        "mariadb-1", 402653184, 2, 7, {"sql": 3306, "ssh": 22},
    )  # fmt: skip
    engine.dispose()


def test_nodes_of_templates_get_what_their_template_has(tmp_path: Path) -> None:
    """Protects templates of the previous version: images that they need are not removed."""
    engine = create_engine(f"sqlite:///{tmp_path}/state.db")
    with engine.begin() as connection:
        migrate.upgrade(connection, "0011")
        connection.execute(
            text(
                "INSERT INTO templates (key, image, blueprint, node_count, memory, cpus, disk,"
                " fingerprint, state, warm, created_at, used_at, size, form_seconds)"
                " VALUES ('abc', 'mariadb-1', 'galera', 2, 402653184, 2, 7, 'abc', 'ready', 1,"
                " 0, 0, 0, 0)"
            )
        )
        migrate.upgrade(connection)
        (template,) = as_records(connection.execute(select(templates)), TemplateRecord)
    own = {"image": "mariadb-1", "memory": 402653184, "cpus": 2, "disk": 7}
    assert template.nodes == {"n1": own, "n2": own}
    assert template.images == {"mariadb-1"}
    engine.dispose()


def test_numbers_count_up() -> None:
    files = sorted(path.name for path in (migrate.MIGRATIONS / "versions").glob("0*.py"))
    assert [name[:4] for name in files] == [f"{n:04d}" for n in range(1, len(files) + 1)]


def test_an_empty_database_has_no_revision() -> None:
    engine = create_engine("sqlite://")
    with engine.connect() as connection:
        assert migrate.stored_revision(connection) is None
        connection.execute(text("SELECT 1"))
    engine.dispose()
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


def test_the_tables_are_fit_for_postgresql() -> None:
    dialect = make_url("postgresql://").get_dialect()()
    made = {t.name: str(CreateTable(t).compile(dialect=dialect)) for t in metadata.sorted_tables}
    assert "memory BIGINT" in made["labs"]  # an INTEGER of PostgreSQL ends at 2 GiB


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


def test_requests_of_jobs_move(tmp_path: Path) -> None:
    """Protects jobs that were accepted before an upgrade; what ended jobs were asked for goes."""
    engine = create_engine(f"sqlite:///{tmp_path}/state.db")
    asked = {"blueprint": "pxc", "any_name": True, "options": {"init": "x" * 9, "proxy": "haproxy"}}
    with engine.begin() as connection:
        migrate.upgrade(connection, "0018")
        for job, state in (("open", "queued"), ("over", "failed")):
            connection.execute(
                text(
                    "INSERT INTO jobs (id, kind, lab, project, token, state, request, digest,"
                    " created_at, cancel) VALUES (:job, 'create', '', '', '', :state, :request,"
                    " '', 0, 0)"
                ),
                {"job": job, "state": state, "request": json.dumps(asked)},
            )
        migrate.upgrade(connection)
        kept = connection.execute(select(requests)).all()
        assert [tuple(row) for row in kept] == [("open", asked)]
        for row in connection.execute(select(jobs.c.id, jobs.c.facts, jobs.c.size)):
            options = {"proxy": "haproxy"}
            assert row.facts == {"blueprint": "pxc", "any_name": True, "options": options}
            assert (row.size > 0) == (row.id == "open")
        assert "request" not in {
            column["name"] for column in inspect(connection).get_columns("jobs")
        }
    engine.dispose()

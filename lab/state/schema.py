"""The tables: a column for each field of a record. A change needs a migration; a test compares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from typing import Any, get_args

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    UniqueConstraint,
    text,
)
from sqlalchemy.schema import SchemaItem
from sqlalchemy.types import TypeEngine

from lab.state.records import (
    BenchKind,
    BenchRecord,
    EventRecord,
    ImageRecord,
    ImageState,
    Kind,
    LabRecord,
    LabState,
    NodeRecord,
    ResourceRecord,
    ResourceState,
    StandbyRecord,
    StandbyState,
    TemplateRecord,
    TemplateState,
    kind_of,
)
from lab.state.service import AuditRecord, JobRecord, JobState, Scope, TokenRecord

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)
_TYPES: Mapping[Kind, TypeEngine[Any]] = {
    "text": String(),
    "whole": Integer(),
    "large": BigInteger(),
    "real": Double(),
    "flag": Boolean(),
    "json": JSON(none_as_null=True),
}


def _table(name: str, record: type, key: str, *more: SchemaItem, **how: Any) -> Table:
    """The table of a ``record``, whose primary key are the fields named in ``key``."""
    keys = key.split()
    columns = [_column(one, primary=one.name in keys) for one in fields(record)]
    return Table(name, metadata, *columns, *more, **how)


def _column(field: Field[Any], *, primary: bool) -> Column[Any]:
    kind, nullable = kind_of(field)
    given = None if primary else _default(field)
    return Column(
        field.name, _TYPES[kind], primary_key=primary, nullable=nullable, server_default=given
    )


def _default(field: Field[Any]) -> Any:
    """What rows of before have in a column that a migration adds."""
    if field.default_factory is not MISSING:
        return text("'{}'")
    if field.default is MISSING or field.default is None:
        return None
    plain = isinstance(field.default, (bool, int, float))
    return text(str(field.default).lower() if plain else f"'{field.default}'")


def _one_of(column: str, states: Any) -> CheckConstraint:
    known = ", ".join(f"'{state}'" for state in get_args(states))
    return CheckConstraint(f"{column} IN ({known})", column)


labs = _table("labs", LabRecord, "name", _one_of("state", LabState))
nodes = _table(
    "nodes",
    NodeRecord,
    "lab name",
    ForeignKeyConstraint(["lab"], ["labs.name"], ondelete="CASCADE"),
)
standbys = _table(
    "standbys",
    StandbyRecord,
    "lab",
    _one_of("state", StandbyState),
    ForeignKeyConstraint(["lab"], ["labs.name"], name="fk_standbys_lab_labs", ondelete="CASCADE"),
)
images = _table("images", ImageRecord, "key", _one_of("state", ImageState))
templates = _table("templates", TemplateRecord, "key", _one_of("state", TemplateState))
resources = _table(
    "resources",
    ResourceRecord,
    "id",
    _one_of("state", ResourceState),
    UniqueConstraint("kind", "ref"),
    # An id that is given once more would let a late ``made(id)`` hit another's thing.
    sqlite_autoincrement=True,
)
Index(None, resources.c.owner)
events = _table("events", EventRecord, "id")
Index(None, events.c.owner)
Index(None, events.c.at)
benches = _table("benches", BenchRecord, "id", _one_of("kind", BenchKind))
Index(None, benches.c.at)
tokens = _table("tokens", TokenRecord, "id", _one_of("scope", Scope))
jobs = _table("jobs", JobRecord, "id", _one_of("state", JobState), UniqueConstraint("token", "key"))
Index(None, jobs.c.state)
Index(None, jobs.c.created_at)

# What was asked for, up to a MiB each: no list of jobs reads it. It goes when its job ends.
requests = Table(
    "requests",
    metadata,
    Column(
        "job",
        String,
        ForeignKey("jobs.id", name="fk_requests_job_jobs", ondelete="CASCADE"),
        primary_key=True,
    ),
    Column("request", JSON, nullable=False),
)
# What became of an upgrade, some hundred KiB: no list of jobs reads it. It stays with its job.
reports = Table(
    "reports",
    metadata,
    Column(
        "job",
        String,
        ForeignKey("jobs.id", name="fk_reports_job_jobs", ondelete="CASCADE"),
        primary_key=True,
    ),
    Column("report", JSON, nullable=False),
)
audit = _table("audit", AuditRecord, "id")
Index(None, audit.c.at)

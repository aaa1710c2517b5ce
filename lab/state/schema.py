"""The tables. A change here needs a migration; a test compares the two."""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    UniqueConstraint,
    text,
)

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def _text(name: str) -> Column[str]:
    return Column(name, String, nullable=False)


def _int(name: str) -> Column[int]:
    return Column(name, Integer, nullable=False)


def _bytes(name: str) -> Column[int]:
    return Column(name, BigInteger, nullable=False)


def _seconds(name: str, *, nullable: bool = False) -> Column[float]:
    return Column(name, Double, nullable=nullable)


labs = Table(
    "labs",
    metadata,
    Column("name", String, primary_key=True),
    _text("blueprint"),
    _text("engine"),
    _text("engine_version"),
    _text("image"),
    Column("template", String),
    _int("node_count"),
    _bytes("memory"),
    _int("cpus"),
    _bytes("disk"),
    _text("state"),
    _text("password"),
    _text("user"),
    _text("owner"),
    _int("segment"),
    _seconds("created_at"),
    _seconds("expires_at", nullable=True),
    _seconds("ready_seconds", nullable=True),
    Column("started", String),
    _text("why_cold"),
    Column("profile", String, nullable=False, server_default="balanced"),
    Column("snapshots", String, nullable=False, server_default=text("''")),
    Column("project", String, nullable=False, server_default=text("''")),
    Column("job", String, nullable=False, server_default=text("''")),
    Column("protected", Boolean, nullable=False, server_default=text("false")),
    Column("heartbeat", Double),
    Column("pool", String, nullable=False, server_default=text("''")),
    Column("address", String, nullable=False, server_default="127.0.0.1"),
    Column("host", String, nullable=False, server_default="127.0.0.1"),
    Column("idle", Double),
    Column("active_at", Double),
    Column("activity", String, nullable=False, server_default=text("''")),
    Column("parent", String, nullable=False, server_default=text("''")),
    Column("at", String, nullable=False, server_default=text("''")),
    Column("identity", BigInteger, nullable=False, server_default=text("0")),
    Column("options", JSON, nullable=False, server_default=text("'{}'")),
    CheckConstraint("state IN ('creating', 'ready', 'stopped', 'failed', 'removing')", "state"),
)

nodes = Table(
    "nodes",
    metadata,
    Column("lab", String, ForeignKey("labs.name", ondelete="CASCADE"), primary_key=True),
    Column("name", String, primary_key=True),
    _int("idx"),
    _text("role"),
    _text("guest"),
    _int("sql_port"),
    _int("ssh_port"),
    Column("extra", JSON, nullable=False),
    Column("image", String, nullable=False, server_default=text("''")),
    Column("memory", BigInteger, nullable=False, server_default=text("0")),
    Column("cpus", Integer, nullable=False, server_default=text("1")),
    Column("disk", BigInteger, nullable=False, server_default=text("0")),
    Column("services", JSON, nullable=False, server_default=text("'{}'")),
    Column("ports", JSON, nullable=False, server_default=text("'{}'")),
    Column("seen", JSON, nullable=False, server_default=text("'{}'")),
)

images = Table(
    "images",
    metadata,
    Column("key", String, primary_key=True),
    _text("recipe"),
    _text("engine"),
    _text("engine_version"),
    _text("state"),
    _seconds("created_at"),
    _seconds("used_at"),
    _seconds("build_seconds"),
    _bytes("size"),
    Column("dataset", String, nullable=False, server_default=text("''")),
    Column("version", Integer, nullable=False, server_default=text("0")),
    Column("parent", String, nullable=False, server_default=text("''")),
    Column("project", String, nullable=False, server_default=text("''")),
    Column("job", String, nullable=False, server_default=text("''")),
    Column("removing", Boolean, nullable=False, server_default=text("false")),
    CheckConstraint("state IN ('building', 'ready')", "state"),
)

templates = Table(
    "templates",
    metadata,
    Column("key", String, primary_key=True),
    _text("image"),
    _text("blueprint"),
    _int("node_count"),
    _bytes("memory"),
    _int("cpus"),
    _bytes("disk"),
    _text("fingerprint"),
    _text("state"),
    Column("warm", Boolean, nullable=False),
    _seconds("created_at"),
    _seconds("used_at"),
    _bytes("size"),
    _seconds("form_seconds"),
    Column("profile", String, nullable=False, server_default="balanced"),
    Column("why", String, nullable=False, server_default=text("''")),
    Column("project", String, nullable=False, server_default=text("''")),
    Column("nodes", JSON, nullable=False, server_default=text("'{}'")),
    Column("source", String, nullable=False, server_default=text("''")),
    Column("options", JSON, nullable=False, server_default=text("'{}'")),
    CheckConstraint("state IN ('building', 'ready', 'broken')", "state"),
)

resources = Table(
    "resources",
    metadata,
    Column("id", Integer, primary_key=True),
    _text("owner"),
    _text("kind"),
    _text("ref"),
    _text("state"),
    _seconds("created_at"),
    _int("pid"),
    CheckConstraint("state IN ('intended', 'made')", "state"),
    UniqueConstraint("kind", "ref"),
    # An id that is given once more would let a late ``made(id)`` hit another's thing.
    sqlite_autoincrement=True,
)
Index(None, resources.c.owner)

events = Table(
    "events",
    metadata,
    Column("id", Integer, primary_key=True),
    _seconds("at"),
    _text("owner"),
    _text("step"),
    _text("state"),
    _text("text"),
    _seconds("seconds"),
)
Index(None, events.c.owner)
Index(None, events.c.at)

tokens = Table(
    "tokens",
    metadata,
    Column("id", String, primary_key=True),
    _text("name"),
    _text("hash"),
    _text("scope"),
    _text("project"),
    _seconds("created_at"),
    _seconds("expires_at", nullable=True),
    _seconds("revoked_at", nullable=True),
    Column("max_labs", Integer),
    Column("max_nodes", Integer),
    Column("max_memory", BigInteger),
    _seconds("max_ttl", nullable=True),
    Column("max_cpus", Integer),
    Column("max_snapshots", Integer),
    Column("max_templates", Integer),
    Column("max_disk", BigInteger),
    _seconds("last_used_at", nullable=True),
    CheckConstraint("scope IN ('read', 'use', 'admin')", "scope"),
)

jobs = Table(
    "jobs",
    metadata,
    Column("id", String, primary_key=True),
    _text("kind"),
    _text("lab"),
    _text("project"),
    _text("token"),
    _text("state"),
    _text("digest"),
    Column("key", String),
    _seconds("created_at"),
    _seconds("started_at", nullable=True),
    _seconds("ended_at", nullable=True),
    Column("error", JSON(none_as_null=True)),
    Column("cancel", Boolean, nullable=False),
    Column("about", String, nullable=False, server_default=text("''")),
    Column("facts", JSON, nullable=False, server_default=text("'{}'")),
    Column("size", BigInteger, nullable=False, server_default=text("0")),
    CheckConstraint("state IN ('queued', 'running', 'succeeded', 'failed', 'cancelled')", "state"),
    UniqueConstraint("token", "key"),
)
Index(None, jobs.c.state)
Index(None, jobs.c.created_at)

# What was asked for, up to a MiB each: no list of jobs reads it. It goes when its job ends.
requests = Table(
    "requests",
    metadata,
    Column("job", String, ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    Column("request", JSON, nullable=False),
)

audit = Table(
    "audit",
    metadata,
    Column("id", Integer, primary_key=True),
    _seconds("at"),
    _text("token"),
    _text("project"),
    _text("action"),
    _text("target"),
    _int("status"),
    _text("request"),
    _text("address"),
)
Index(None, audit.c.at)

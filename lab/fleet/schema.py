"""The tables of a fleet, in the schema ``lab`` of its database. A change needs a migration."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Sequence,
    String,
    Table,
    UniqueConstraint,
    func,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.types import TypeEngine

REVISION = "0001"
"""The head of ``migrations/versions``."""
SCHEMA = "lab"
OPEN = ("queued", "placed", "claimed")
"""The states of placements whose jobs have not ended."""

metadata = MetaData(
    schema=SCHEMA,
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    },
)


def _at(name: str, *, given: bool = False, nullable: bool = False) -> Column[object]:
    kind: TypeEngine[object] = DateTime(timezone=True)  # type: ignore[assignment]
    return Column(name, kind, nullable=nullable, server_default=func.now() if given else None)


hosts = Table(
    "hosts",
    metadata,
    Column("name", String, primary_key=True),
    Column("home", String, nullable=False, unique=True),
    Column("epoch", BigInteger, nullable=False),
    Column("lost", Boolean, nullable=False),
    Column("draining", Boolean, nullable=False),
    Column("url", String, nullable=False),
    Column("labels", JSONB, nullable=False),
    Column("version", String, nullable=False),
    Column("ca", String, nullable=False),
    _at("joined_at", given=True),
)
# An epoch is given once, also after its host was removed.
epochs = Sequence("epochs", metadata=metadata, schema=SCHEMA)
# Written every few seconds: no column of it has an index but the key, and pages have room (its
# migration sets fillfactor), so that PostgreSQL replaces rows in their page (heap-only tuples).
heartbeats = Table(
    "heartbeats",
    metadata,
    Column("host", String, ForeignKey(hosts.c.name, ondelete="CASCADE"), primary_key=True),
    _at("at", given=True),
    Column("facts", JSONB, nullable=False),
)
placements = Table(
    "placements",
    metadata,
    Column("job", String, primary_key=True),
    Column("host", String),
    Column("epoch", BigInteger),
    Column("state", String, nullable=False),
    Column("kind", String, nullable=False),
    Column("lab", String, nullable=False),
    Column("project", String, nullable=False),
    Column("token", String, nullable=False),
    Column("key", String),
    Column("digest", String, nullable=False),
    Column("request", JSONB, nullable=False),
    Column("needs", JSONB, nullable=False),
    Column("again", Boolean, nullable=False),
    Column("error", JSONB),
    _at("created_at", given=True),
    _at("placed_at", nullable=True),
    _at("claimed_at", nullable=True),
    _at("ended_at", nullable=True),
    UniqueConstraint("token", "key"),
    CheckConstraint(
        "state IN ('queued', 'placed', 'claimed', 'ended', 'failed', 'cancelled')", "state"
    ),
)
Index(
    "ix_placements_open", placements.c.host, placements.c.created_at,
    postgresql_where=placements.c.state.in_(OPEN),
)  # fmt: skip
Index(None, placements.c.ended_at)
# One row, whose number grows with each decision: one that was made by an older one is made again.
decisions = Table(
    "decisions",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("number", BigInteger, nullable=False),
    CheckConstraint("id = 1", "one"),
)
labs = Table(
    "labs",
    metadata,
    Column("name", String, primary_key=True),
    Column("host", String, primary_key=True),  # empty: its job waits for a host
    Column("holds", Boolean, nullable=False),
    Column("foreign", Boolean, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("project", String, nullable=False),
    Column("state", String, nullable=False),
    Column("job", String, nullable=False),
    Column("view", JSONB),
    Column("expires_at", Double),
    Column("observed_at", Double),
)
Index("uq_labs_holder", labs.c.name, unique=True, postgresql_where=labs.c.holds)
Index(None, labs.c.host)
tokens = Table(
    "tokens",
    metadata,
    Column("id", String, primary_key=True),
    Column("record", JSONB, nullable=False),
)
authority = Table(
    "authority",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("certificate", LargeBinary, nullable=False),
    Column("key", LargeBinary, nullable=False),
    CheckConstraint("id = 1", "one"),
)


def columns(table: Table, alias: str) -> str:
    """The columns of a table that this version knows, for a statement.

    Never an asterisk: PostgreSQL refuses a statement that a running host has prepared if a newer
    version has added a column to what it returns.
    """
    return ", ".join(f'{alias}."{column.name}"' for column in table.columns)

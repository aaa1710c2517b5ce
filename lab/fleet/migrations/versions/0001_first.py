"""Hosts, placements, what is known of labs, tokens, the authority."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """From ``down_revision`` to ``revision``."""
    op.execute(sa.schema.CreateSequence(sa.Sequence("epochs", schema="lab")))
    op.create_table(
        "authority",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("certificate", sa.LargeBinary(), nullable=False),
        sa.Column("key", sa.LargeBinary(), nullable=False),
        sa.CheckConstraint("id = 1", name=op.f("ck_authority_one")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_authority")),
        schema="lab",
    )
    op.create_table(
        "decisions",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("id = 1", name=op.f("ck_decisions_one")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_decisions")),
        schema="lab",
    )
    op.create_table(
        "hosts",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("home", sa.String(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("lost", sa.Boolean(), nullable=False),
        sa.Column("draining", sa.Boolean(), nullable=False),
        sa.Column("url", sa.String(), nullable=False),
        sa.Column("labels", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("version", sa.String(), nullable=False),
        sa.Column("ca", sa.String(), nullable=False),
        sa.Column(
            "joined_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False
        ),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_hosts")),
        sa.UniqueConstraint("home", name=op.f("uq_hosts_home")),
        schema="lab",
    )
    op.create_table(
        "labs",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("host", sa.String(), nullable=False),
        sa.Column("holds", sa.Boolean(), nullable=False),
        sa.Column("foreign", sa.Boolean(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("project", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("job", sa.String(), nullable=False),
        sa.Column("view", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("expires_at", sa.Double(), nullable=True),
        sa.Column("observed_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("name", "host", name=op.f("pk_labs")),
        schema="lab",
    )
    op.create_index(op.f("ix_labs_host"), "labs", ["host"], unique=False, schema="lab")
    op.create_index(
        "uq_labs_holder", "labs", ["name"], unique=True, schema="lab", postgresql_where="holds"
    )
    op.create_table(
        "placements",
        sa.Column("job", sa.String(), nullable=False),
        sa.Column("host", sa.String(), nullable=True),
        sa.Column("epoch", sa.BigInteger(), nullable=True),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("lab", sa.String(), nullable=False),
        sa.Column("project", sa.String(), nullable=False),
        sa.Column("token", sa.String(), nullable=False),
        sa.Column("key", sa.String(), nullable=True),
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("request", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("needs", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("again", sa.Boolean(), nullable=False),
        sa.Column("error", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column("placed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("claimed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "state IN ('queued', 'placed', 'claimed', 'ended', 'failed', 'cancelled')",
            name=op.f("ck_placements_state"),
        ),
        sa.PrimaryKeyConstraint("job", name=op.f("pk_placements")),
        sa.UniqueConstraint("token", "key", name=op.f("uq_placements_token_key")),
        schema="lab",
    )
    op.create_index(
        op.f("ix_placements_ended_at"), "placements", ["ended_at"], unique=False, schema="lab"
    )
    op.create_index(
        "ix_placements_open",
        "placements",
        ["host", "created_at"],
        unique=False,
        schema="lab",
        postgresql_where=sa.text("state IN ('queued', 'placed', 'claimed')"),
    )
    op.create_table(
        "tokens",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("record", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tokens")),
        schema="lab",
    )
    op.create_table(
        "heartbeats",
        sa.Column("host", sa.String(), nullable=False),
        sa.Column(
            "at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False
        ),
        sa.Column("facts", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.ForeignKeyConstraint(
            ["host"], ["lab.hosts.name"], name=op.f("fk_heartbeats_host"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("host", name=op.f("pk_heartbeats")),
        schema="lab",
    )
    op.execute("INSERT INTO lab.decisions (id, number) VALUES (1, 0)")
    # Room for new versions of rows in their page: see ``schema``.
    for table in ("heartbeats", "decisions"):
        op.execute(f"ALTER TABLE lab.{table} SET (fillfactor = 50)")

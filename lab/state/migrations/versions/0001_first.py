"""The first tables."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """From ``down_revision`` to ``revision``."""
    op.create_table(
        "events",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("step", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("text", sa.String(), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_events")),
    )
    op.create_index(op.f("ix_events_at"), "events", ["at"], unique=False)
    op.create_index(op.f("ix_events_owner"), "events", ["owner"], unique=False)
    op.create_table(
        "images",
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("recipe", sa.String(), nullable=False),
        sa.Column("engine", sa.String(), nullable=False),
        sa.Column("engine_version", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("used_at", sa.Double(), nullable=False),
        sa.Column("build_seconds", sa.Double(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("state IN ('building', 'ready')", name=op.f("ck_images_state")),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_images")),
    )
    op.create_table(
        "labs",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("blueprint", sa.String(), nullable=False),
        sa.Column("engine", sa.String(), nullable=False),
        sa.Column("engine_version", sa.String(), nullable=False),
        sa.Column("image", sa.String(), nullable=False),
        sa.Column("template", sa.String(), nullable=True),
        sa.Column("node_count", sa.Integer(), nullable=False),
        sa.Column("memory", sa.BigInteger(), nullable=False),
        sa.Column("cpus", sa.Integer(), nullable=False),
        sa.Column("disk", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("password", sa.String(), nullable=False),
        sa.Column("user", sa.String(), nullable=False),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("segment", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=True),
        sa.Column("ready_seconds", sa.Double(), nullable=True),
        sa.Column("started", sa.String(), nullable=True),
        sa.Column("why_cold", sa.String(), nullable=False),
        sa.CheckConstraint(
            "state IN ('creating', 'ready', 'stopped', 'failed', 'removing')",
            name=op.f("ck_labs_state"),
        ),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_labs")),
    )
    op.create_table(
        "resources",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("ref", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.CheckConstraint("state IN ('intended', 'made')", name=op.f("ck_resources_state")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_resources")),
        sa.UniqueConstraint("kind", "ref", name=op.f("uq_resources_kind_ref")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_resources_owner"), "resources", ["owner"], unique=False)
    op.create_table(
        "templates",
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("image", sa.String(), nullable=False),
        sa.Column("blueprint", sa.String(), nullable=False),
        sa.Column("node_count", sa.Integer(), nullable=False),
        sa.Column("memory", sa.BigInteger(), nullable=False),
        sa.Column("cpus", sa.Integer(), nullable=False),
        sa.Column("disk", sa.BigInteger(), nullable=False),
        sa.Column("fingerprint", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("warm", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("used_at", sa.Double(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("form_seconds", sa.Double(), nullable=False),
        sa.CheckConstraint(
            "state IN ('building', 'ready', 'broken')", name=op.f("ck_templates_state")
        ),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_templates")),
    )
    op.create_table(
        "nodes",
        sa.Column("lab", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("idx", sa.Integer(), nullable=False),
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("guest", sa.String(), nullable=False),
        sa.Column("sql_port", sa.Integer(), nullable=False),
        sa.Column("ssh_port", sa.Integer(), nullable=False),
        sa.Column("extra", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(
            ["lab"], ["labs.name"], name=op.f("fk_nodes_lab"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("lab", "name", name=op.f("pk_nodes")),
    )

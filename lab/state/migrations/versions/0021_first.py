"""All tables of the first release; the number is that of the homes that were there before it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """From ``down_revision`` to ``revision``."""
    op.create_table(
        "audit",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("token", sa.String(), nullable=False),
        sa.Column("project", sa.String(), nullable=False),
        sa.Column("action", sa.String(), nullable=False),
        sa.Column("target", sa.String(), nullable=False),
        sa.Column("status", sa.Integer(), nullable=False),
        sa.Column("request", sa.String(), nullable=False),
        sa.Column("address", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit")),
    )
    op.create_index(op.f("ix_audit_at"), "audit", ["at"], unique=False)
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
        sa.Column("dataset", sa.String(), server_default=sa.text("''"), nullable=False),
        sa.Column("version", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("parent", sa.String(), server_default=sa.text("''"), nullable=False),
        sa.Column("project", sa.String(), server_default=sa.text("''"), nullable=False),
        sa.Column("job", sa.String(), server_default=sa.text("''"), nullable=False),
        sa.Column("removing", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.CheckConstraint("state IN ('building', 'ready')", name=op.f("ck_images_state")),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_images")),
    )
    op.create_table(
        "jobs",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("lab", sa.String(), nullable=False),
        sa.Column("project", sa.String(), nullable=False),
        sa.Column("token", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("key", sa.String(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=True),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.Column("error", sa.JSON(), nullable=True),
        sa.Column("cancel", sa.Boolean(), nullable=False),
        sa.Column("about", sa.String(), server_default=sa.text("''"), nullable=False),
        sa.Column("facts", sa.JSON(), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("size", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.CheckConstraint(
            "state IN ('queued', 'running', 'succeeded', 'failed', 'cancelled')",
            name=op.f("ck_jobs_state"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
        sa.UniqueConstraint("token", "key", name=op.f("uq_jobs_token_key")),
    )
    op.create_index(op.f("ix_jobs_created_at"), "jobs", ["created_at"], unique=False)
    op.create_index(op.f("ix_jobs_state"), "jobs", ["state"], unique=False)
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
        sa.Column("profile", sa.String(), server_default="balanced", nullable=False),
        sa.Column("snapshots", sa.String(), server_default=sa.text("''"), nullable=False),
        sa.Column("project", sa.String(), server_default=sa.text("''"), nullable=False),
        sa.Column("job", sa.String(), server_default=sa.text("''"), nullable=False),
        sa.Column("protected", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("heartbeat", sa.Double(), nullable=True),
        sa.Column("pool", sa.String(), server_default=sa.text("''"), nullable=False),
        sa.Column("address", sa.String(), server_default="127.0.0.1", nullable=False),
        sa.Column("host", sa.String(), server_default="127.0.0.1", nullable=False),
        sa.Column("idle", sa.Double(), nullable=True),
        sa.Column("active_at", sa.Double(), nullable=True),
        sa.Column("activity", sa.String(), server_default=sa.text("''"), nullable=False),
        sa.Column("parent", sa.String(), server_default=sa.text("''"), nullable=False),
        sa.Column("at", sa.String(), server_default=sa.text("''"), nullable=False),
        sa.Column("identity", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("options", sa.JSON(), server_default=sa.text("'{}'"), nullable=False),
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
        sa.Column("profile", sa.String(), server_default="balanced", nullable=False),
        sa.Column("why", sa.String(), server_default=sa.text("''"), nullable=False),
        sa.Column("project", sa.String(), server_default=sa.text("''"), nullable=False),
        sa.Column("nodes", sa.JSON(), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("source", sa.String(), server_default=sa.text("''"), nullable=False),
        sa.Column("options", sa.JSON(), server_default=sa.text("'{}'"), nullable=False),
        sa.CheckConstraint(
            "state IN ('building', 'ready', 'broken')", name=op.f("ck_templates_state")
        ),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_templates")),
    )
    op.create_table(
        "tokens",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("hash", sa.String(), nullable=False),
        sa.Column("scope", sa.String(), nullable=False),
        sa.Column("project", sa.String(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=True),
        sa.Column("revoked_at", sa.Double(), nullable=True),
        sa.Column("max_labs", sa.Integer(), nullable=True),
        sa.Column("max_nodes", sa.Integer(), nullable=True),
        sa.Column("max_memory", sa.BigInteger(), nullable=True),
        sa.Column("max_ttl", sa.Double(), nullable=True),
        sa.Column("max_cpus", sa.Integer(), nullable=True),
        sa.Column("max_snapshots", sa.Integer(), nullable=True),
        sa.Column("max_templates", sa.Integer(), nullable=True),
        sa.Column("max_disk", sa.BigInteger(), nullable=True),
        sa.Column("last_used_at", sa.Double(), nullable=True),
        sa.CheckConstraint("scope IN ('read', 'use', 'admin')", name=op.f("ck_tokens_scope")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tokens")),
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
        sa.Column("image", sa.String(), server_default=sa.text("''"), nullable=False),
        sa.Column("memory", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("cpus", sa.Integer(), server_default=sa.text("1"), nullable=False),
        sa.Column("disk", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("services", sa.JSON(), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("ports", sa.JSON(), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("seen", sa.JSON(), server_default=sa.text("'{}'"), nullable=False),
        sa.ForeignKeyConstraint(
            ["lab"], ["labs.name"], name=op.f("fk_nodes_lab"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("lab", "name", name=op.f("pk_nodes")),
    )
    op.create_table(
        "requests",
        sa.Column("job", sa.String(), nullable=False),
        sa.Column("request", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(
            ["job"], ["jobs.id"], name=op.f("fk_requests_job_jobs"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job", name=op.f("pk_requests")),
    )

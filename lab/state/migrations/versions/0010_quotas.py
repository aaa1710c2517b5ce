"""Tokens have columns for more quotas, and templates for the project that caused them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """From ``down_revision`` to ``revision``."""
    for name in ("max_cpus", "max_snapshots", "max_templates"):
        op.add_column("tokens", sa.Column(name, sa.Integer(), nullable=True))
    op.add_column("tokens", sa.Column("max_disk", sa.BigInteger(), nullable=True))
    project = sa.Column("project", sa.String(), nullable=False, server_default=sa.text("''"))
    op.add_column("templates", project)

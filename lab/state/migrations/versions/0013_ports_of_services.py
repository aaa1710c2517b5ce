"""Nodes have ports of the host for services other than SQL and SSH."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """From ``down_revision`` to ``revision``."""
    ports = sa.Column("ports", sa.JSON(), nullable=False, server_default=sa.text("'{}'"))
    op.add_column("nodes", ports)

"""Nodes keep the role, and the sources, that they had when they were last asked."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """From ``down_revision`` to ``revision``."""
    default = sa.text("'{}'")
    op.add_column("nodes", sa.Column("seen", sa.JSON(), nullable=False, server_default=default))

"""Requests that another host of a fleet has passed on, in the audit trail."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """From ``down_revision`` to ``revision``."""
    op.add_column(
        "audit", sa.Column("via", sa.String(), server_default=sa.text("''"), nullable=False)
    )

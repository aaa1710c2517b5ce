"""Labs and templates have a profile; those from before are what ``balanced`` became."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """From ``down_revision`` to ``revision``."""
    for table in ("labs", "templates"):
        profile = sa.Column("profile", sa.String(), nullable=False, server_default="balanced")
        op.add_column(table, profile)

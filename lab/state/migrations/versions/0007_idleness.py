"""Labs may end when nobody uses them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """From ``down_revision`` to ``revision``."""
    for column in (
        sa.Column("idle", sa.Double()),
        sa.Column("active_at", sa.Double()),
        sa.Column("activity", sa.String(), nullable=False, server_default=sa.text("''")),
    ):
        op.add_column("labs", column)

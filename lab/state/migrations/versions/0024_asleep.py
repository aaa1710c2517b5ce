"""Labs that sleep while nobody uses them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """From ``down_revision`` to ``revision``."""
    op.add_column("labs", sa.Column("asleep_after", sa.Double(), nullable=True))
    op.add_column("labs", sa.Column("asleep_at", sa.Double(), nullable=True))
    op.add_column("tokens", sa.Column("asleep_after", sa.Double(), nullable=True))

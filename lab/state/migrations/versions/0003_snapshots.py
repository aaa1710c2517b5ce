"""Labs have a schedule of snapshots; those from before have none."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """From ``down_revision`` to ``revision``."""
    snapshots = sa.Column("snapshots", sa.String(), nullable=False, server_default=sa.text("''"))
    op.add_column("labs", snapshots)

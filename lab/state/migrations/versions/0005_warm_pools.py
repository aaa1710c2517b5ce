"""Labs may wait in a warm pool of the service."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """From ``down_revision`` to ``revision``."""
    empty = sa.text("''")
    op.add_column("labs", sa.Column("pool", sa.String(), nullable=False, server_default=empty))

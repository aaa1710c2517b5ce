"""Labs know where their SQL ports are published; those from before have the loopback."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """From ``down_revision`` to ``revision``."""
    for name in ("address", "host"):
        column = sa.Column(name, sa.String(), nullable=False, server_default="127.0.0.1")
        op.add_column("labs", column)

"""Templates have a column for why they are broken, or why their RAM is not restored."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """From ``down_revision`` to ``revision``."""
    why = sa.Column("why", sa.String(), nullable=False, server_default=sa.text("''"))
    op.add_column("templates", why)

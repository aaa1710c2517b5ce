"""Jobs tell what they are about where that is no lab."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """From ``down_revision`` to ``revision``."""
    about = sa.Column("about", sa.String(), nullable=False, server_default=sa.text("''"))
    op.add_column("jobs", about)

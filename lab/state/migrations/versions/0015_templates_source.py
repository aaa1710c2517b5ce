"""Templates may be captured from a lab in use."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """From ``down_revision`` to ``revision``."""
    source = sa.Column("source", sa.String(), nullable=False, server_default=sa.text("''"))
    op.add_column("templates", source)

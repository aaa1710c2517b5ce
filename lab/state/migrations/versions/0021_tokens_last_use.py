"""Tokens keep when they were last used."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """From ``down_revision`` to ``revision``."""
    op.add_column("tokens", sa.Column("last_used_at", sa.Double()))

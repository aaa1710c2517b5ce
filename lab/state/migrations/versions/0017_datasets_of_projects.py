"""Datasets belong to projects, know their job, and may go with the last lab of them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """From ``down_revision`` to ``revision``."""
    for name in ("project", "job"):
        column = sa.Column(name, sa.String(), nullable=False, server_default=sa.text("''"))
        op.add_column("images", column)
    default = sa.text("false")
    op.add_column(
        "images", sa.Column("removing", sa.Boolean(), nullable=False, server_default=default)
    )

"""Images may have data: versions of datasets."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """From ``down_revision`` to ``revision``."""
    empty = sa.text("''")
    op.add_column("images", sa.Column("dataset", sa.String(), nullable=False, server_default=empty))
    op.add_column(
        "images", sa.Column("version", sa.Integer(), nullable=False, server_default=sa.text("0"))
    )
    op.add_column("images", sa.Column("parent", sa.String(), nullable=False, server_default=empty))

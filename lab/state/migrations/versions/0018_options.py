"""Labs and templates have options of their blueprints."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """From ``down_revision`` to ``revision``."""
    for table in ("labs", "templates"):
        default = sa.text("'{}'")
        column = sa.Column("options", sa.JSON(), nullable=False, server_default=default)
        op.add_column(table, column)

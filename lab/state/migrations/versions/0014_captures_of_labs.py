"""Labs may be clones of a lab's capture, and descend from their own."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """From ``down_revision`` to ``revision``."""
    for name in ("parent", "at"):
        column = sa.Column(name, sa.String(), nullable=False, server_default=sa.text("''"))
        op.add_column("labs", column)
    number = sa.Column("identity", sa.BigInteger(), nullable=False, server_default=sa.text("0"))
    op.add_column("labs", number)

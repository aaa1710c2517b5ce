"""Standbys of labs, and the snapshots that these were put back to."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """From ``down_revision`` to ``revision``."""
    op.add_column(
        "labs", sa.Column("reset_to", sa.String(), server_default=sa.text("''"), nullable=False)
    )
    op.create_table(
        "standbys",
        sa.Column("lab", sa.String(), nullable=False),
        sa.Column("label", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("segment", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("fits", sa.String(), server_default=sa.text("''"), nullable=False),
        sa.Column(
            "nodes", sa.JSON(none_as_null=True), server_default=sa.text("'{}'"), nullable=False
        ),
        sa.CheckConstraint("state IN ('making', 'ready')", name=op.f("ck_standbys_state")),
        sa.ForeignKeyConstraint(
            ["lab"], ["labs.name"], name=op.f("fk_standbys_lab_labs"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("lab", name=op.f("pk_standbys")),
    )

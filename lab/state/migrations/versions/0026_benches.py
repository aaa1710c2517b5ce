"""Results of benchmarks."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """From ``down_revision`` to ``revision``."""
    op.create_table(
        "benches",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("workload", sa.String(), nullable=False),
        sa.Column("label", sa.String(), nullable=False),
        sa.Column("lab", sa.String(), nullable=False),
        sa.Column("result", sa.JSON(none_as_null=True), nullable=False),
        sa.CheckConstraint("kind IN ('run', 'compare')", name=op.f("ck_benches_kind")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_benches")),
    )
    op.create_index(op.f("ix_benches_at"), "benches", ["at"])

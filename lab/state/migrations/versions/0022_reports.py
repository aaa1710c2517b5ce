"""Reports of upgrades, by the jobs that made them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """From ``down_revision`` to ``revision``."""
    op.create_table(
        "reports",
        sa.Column("job", sa.String(), nullable=False),
        sa.Column("report", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(
            ["job"], ["jobs.id"], name=op.f("fk_reports_job_jobs"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job", name=op.f("pk_reports")),
    )

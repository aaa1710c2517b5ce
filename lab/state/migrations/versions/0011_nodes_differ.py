"""Nodes have an image, a size and services of their own."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """From ``down_revision`` to ``revision``."""
    columns = (
        sa.Column("image", sa.String(), nullable=False, server_default=sa.text("''")),
        sa.Column("memory", sa.BigInteger(), nullable=False, server_default=sa.text("0")),
        sa.Column("cpus", sa.Integer(), nullable=False, server_default=sa.text("1")),
        sa.Column("disk", sa.BigInteger(), nullable=False, server_default=sa.text("0")),
        sa.Column("services", sa.JSON(), nullable=False, server_default=sa.text("'{}'")),
    )
    for column in columns:
        op.add_column("nodes", column)
    # Until now all nodes of a lab were equal, and had a server and SSH.
    same = ("image", "memory", "cpus", "disk")
    labs = sa.table("labs", *map(sa.column, ("name", *same)))
    nodes = sa.table("nodes", *map(sa.column, ("lab", *same)), sa.column("services", sa.JSON()))
    theirs = {
        name: sa.select(labs.c[name]).where(labs.c.name == nodes.c.lab).scalar_subquery()
        for name in same
    }
    op.execute(nodes.update().values(services={"sql": 3306, "ssh": 22}, **theirs))

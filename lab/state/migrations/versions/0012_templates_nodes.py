"""Templates have the image and the size of each node."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """From ``down_revision`` to ``revision``."""
    nodes = sa.Column("nodes", sa.JSON(), nullable=False, server_default=sa.text("'{}'"))
    op.add_column("templates", nodes)
    # Until now all nodes of a template were equal, and were called n1, n2 and so on.
    own = ("image", "memory", "cpus", "disk")
    templates = sa.table(
        "templates",
        *map(sa.column, ("key", "node_count", *own)),
        sa.column("nodes", sa.JSON()),
    )
    connection = op.get_bind()
    for row in connection.execute(sa.select(templates)).mappings().all():
        same = {name: row[name] for name in own}
        found = {f"n{number}": same for number in range(1, row["node_count"] + 1)}
        connection.execute(
            templates.update().where(templates.c.key == row["key"]).values(nodes=found)
        )

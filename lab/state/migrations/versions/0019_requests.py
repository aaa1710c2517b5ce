"""Requests of jobs have a table of their own; jobs keep the facts that others need of them."""

from __future__ import annotations

import json
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

_OPEN = ("queued", "running")
_LARGE = ("mask", "sql", "warm", "tables", "where", "schema_only", "defaults_file")
_LARGE_OPTIONS = ("set", "my_cnf", "init", "user", "on")


def upgrade() -> None:
    """From ``down_revision`` to ``revision``; the requests of jobs that ended are dropped."""
    op.create_table(
        "requests",
        sa.Column("job", sa.String(), nullable=False),
        sa.Column("request", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("job", name=op.f("pk_requests")),
        sa.ForeignKeyConstraint(
            ["job"], ["jobs.id"], name=op.f("fk_requests_job_jobs"), ondelete="CASCADE"
        ),
    )
    facts = sa.Column("facts", sa.JSON(), nullable=False, server_default=sa.text("'{}'"))
    size = sa.Column("size", sa.BigInteger(), nullable=False, server_default=sa.text("0"))
    op.add_column("jobs", facts)
    op.add_column("jobs", size)
    jobs = sa.table(
        "jobs",
        *map(sa.column, ("id", "state", "size")),
        sa.column("request", sa.JSON()),
        sa.column("facts", sa.JSON()),
    )
    kept = sa.table("requests", sa.column("job"), sa.column("request", sa.JSON()))
    connection = op.get_bind()
    ids = connection.execute(sa.select(jobs.c.id, jobs.c.state)).all()
    for job, state in ids:  # one at a time: each may have a MiB
        request = connection.execute(sa.select(jobs.c.request).where(jobs.c.id == job)).scalar()
        values: dict[str, Any] = {"facts": _facts(request or {})}
        if state in _OPEN:
            connection.execute(kept.insert().values(job=job, request=request))
            values["size"] = len(json.dumps(request))
        connection.execute(jobs.update().where(jobs.c.id == job).values(values))
    op.drop_column("jobs", "request")


def _facts(request: dict[str, Any]) -> dict[str, Any]:
    found = {name: value for name, value in request.items() if name not in _LARGE}
    if "options" in found:
        own = found["options"].items()
        found["options"] = {name: value for name, value in own if name not in _LARGE_OPTIONS}
    return found

"""What Alembic runs: the migrations of a fleet's tables, on the connection it is given."""

from __future__ import annotations

from alembic import context

from lab.fleet.schema import SCHEMA, metadata

given = context.config.attributes
context.configure(
    connection=given["connection"],
    target_metadata=metadata,
    version_table=given["version_table"],
    version_table_schema=SCHEMA,
    include_schemas=True,
)
with context.begin_transaction():
    context.run_migrations()

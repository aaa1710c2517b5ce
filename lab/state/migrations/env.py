"""What Alembic runs: the migrations, on the connection (and in the transaction) it is given."""

from __future__ import annotations

from alembic import context

from lab.state.schema import metadata

connection = context.config.attributes["connection"]
# SQLite cannot alter tables in place: batch mode copies them.
context.configure(connection=connection, target_metadata=metadata, render_as_batch=True)
with context.begin_transaction():
    context.run_migrations()

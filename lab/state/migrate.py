"""Bringing the schema of a database to the one that this program knows.

Alembic costs a quarter of a second to import, so it is imported only when there is
something to migrate: ``REVISION`` says whether there is.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    Column,
    Connection,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    create_engine,
)

from lab.errors import HostUnfit
from lab.state.revision import OLDEST, REVISION

if TYPE_CHECKING:
    from alembic.config import Config

MIGRATIONS = Path(__file__).parent / "migrations"

_REVISION = Table(
    "alembic_version",
    MetaData(),
    Column("version_num", String(32), nullable=False),
    PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)
"""Alembic's own table."""


def is_current(stored: str | None, where: str) -> bool:
    """True if a database at revision ``stored`` (None: empty) needs no migration.

    ``where`` names the database in the message. Raises HostUnfit if it is newer than
    this program, or older than the first release.
    """
    if stored is not None and stored > REVISION:
        raise HostUnfit(
            f"{where} was written by a newer version of lab"
            f" (schema {stored}, this version knows {REVISION})",
            hint="upgrade lab, or set LAB_HOME to use another state",
        )
    if stored is not None and stored < OLDEST:
        raise HostUnfit(
            f"{where} was written by a version of lab before the first release"
            f" (schema {stored}, this version upgrades {OLDEST} and later)",
            hint="set LAB_HOME to use another state; or move the file away, with its -wal and -shm:"
            " labs are found again by the tags on their guests",
        )
    return stored == REVISION


def create(connection: Connection) -> None:
    """Make the tables in an empty database, within the transaction of ``connection``.

    As Alembic's manual advises: no migrations, which take most of the first command of a home. A
    test compares both.
    """
    from lab.state.schema import metadata

    metadata.create_all(connection, checkfirst=False)
    _REVISION.create(connection)
    connection.execute(_REVISION.insert().values(version_num=REVISION))


def upgrade(connection: Connection, to: str = "head") -> None:
    """Bring the database to a revision within the transaction of ``connection``."""
    from alembic import command

    command.upgrade(_config(connection), to)


def differences(connection: Connection) -> list[Any]:
    """How the tables in the database differ from ``schema``, as Alembic says it.

    Not in what they fill columns with that are not given: all are, of a record.
    """
    from alembic.autogenerate import compare_metadata
    from alembic.runtime.migration import MigrationContext

    from lab.state.schema import metadata

    options = {"compare_type": True}
    return list(compare_metadata(MigrationContext.configure(connection, opts=options), metadata))


def head() -> str | None:
    """The number of the last migration there is."""
    from alembic.script import ScriptDirectory

    return ScriptDirectory.from_config(_config(None)).get_current_head()


def draft(message: str, directory: Path) -> None:
    """Write the next migration, from what ``schema`` has that the migrations lack.

    ``directory`` is for a scratch database. What Alembic cannot see, such as a changed
    check constraint, is left to the author.
    """
    from alembic import command

    engine = create_engine(f"sqlite:///{directory}/scratch.db")
    try:
        with engine.begin() as connection:
            config = _config(connection)
            if head() is not None:
                command.upgrade(config, "head")
            number = f"{int(head() or 0) + 1:04d}"
            command.revision(config, message, autogenerate=True, rev_id=number)
    finally:
        engine.dispose()


def _config(connection: Connection | None) -> Config:
    from alembic.config import Config

    config = Config()
    # The option's value is interpolated by ConfigParser.
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


if __name__ == "__main__":
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as scratch:
        draft(sys.argv[1], Path(scratch))

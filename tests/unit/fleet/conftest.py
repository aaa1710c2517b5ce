"""A database of a fleet, empty for each test, in a PostgreSQL that this session has started."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import create_engine, text

from lab.fleet.database import FleetDatabase, migrate
from tests.support.postgres_server import NEEDED, programs, server


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The URL of a server's database."""
    if programs() is None:
        pytest.skip(NEEDED)
    with server() as url:
        migrate(url)
        yield url


@pytest.fixture
def url(postgres: str) -> str:
    """The URL of a database with a fleet's tables, which are empty."""
    engine = create_engine(postgres)
    with engine.begin() as connection:
        connection.execute(
            text("TRUNCATE lab.hosts, lab.heartbeats, lab.placements, lab.labs, lab.tokens,"
                 " lab.authority")
        )  # fmt: skip
    engine.dispose()
    return postgres


@pytest.fixture
def database(url: str) -> Iterator[FleetDatabase]:
    """The database of a fleet without hosts."""
    found = FleetDatabase(url)
    yield found
    found.close()

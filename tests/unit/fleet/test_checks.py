"""What `lab doctor` says of a fleet's database."""

from __future__ import annotations

import pytest

from lab.errors import HostUnfit
from lab.fleet import checks, hosts
from lab.fleet.database import FleetDatabase, parse
from lab.fleet.hosts import Facts, Version
from tests.support.postgres_server import NEEDED, postgres, programs


def test_a_database_that_is_fit(url: str, database: FleetDatabase) -> None:
    """Protects administrators: what will hurt is named before it does."""
    hosts.join(database, "h1", "home", "", (), "1")
    found = {one.topic: one for one in checks.findings(url)}
    assert {one.level for one in found.values()} == {"ok"}
    assert found["fleet connections"].value == "97 for 1 hosts, which use 6 at most"
    for number in range(2, 20):
        hosts.join(database, f"h{number}", f"home{number}", "", (), "1")
    found = {one.topic: one for one in checks.findings(url)}
    assert found["fleet connections"].level == "warn"
    assert "max_connections" in found["fleet connections"].advice


def test_a_dataset_that_differs(url: str, database: FleetDatabase) -> None:
    """Protects who takes a version for the same on all hosts."""
    for name, digest in (("h1", "a"), ("h2", "b"), ("h3", "b")):
        member, _ = hosts.join(database, name, f"home-{name}", "", (), "1")
        shop, same = (Version(n, 1, "", "mariadb", d) for n, d in (("shop", digest), ("same", "c")))
        hosts.beat(database, member, Facts(versions=(shop, same)))
    (found,) = [one for one in checks.findings(url) if one.topic == "fleet datasets"]
    assert (found.level, found.value) == ("warn", "shop@1 differs between h1 and h2 and h3")


@pytest.mark.skipif(programs() is None, reason=NEEDED)
def test_a_database_that_is_not() -> None:
    """Protects who has set a database without tables, that is away, or of another kind."""
    with postgres() as empty:
        (found,) = checks.findings(empty.url)
        assert (found.level, "lab db migrate" in found.advice) == ("fail", True)
        empty.stop()
        (found,) = checks.findings(empty.url)
        assert (found.level, "does not answer" in found.value) == ("fail", True)
        empty.start()
    (found,) = checks.findings("mysql://root@db/lab")
    assert found.level == "fail"


@pytest.mark.parametrize("url", ["", "lab", "mysql://db/lab", "postgresql://db1:5432,db2:5432/lab"])
def test_a_url_of_no_database(url: str) -> None:
    """Protects administrators: PostgreSQL's own form for two servers is answered with ours."""
    with pytest.raises(HostUnfit) as refused:
        parse(url)
    assert "host=db1,db2" in (refused.value.hint or "")

"""Servers of older versions, as their makers built them: all that blueprints say to them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

import pytest

from lab.blueprints import Engine, Release, blueprint_of
from lab.blueprints.dialects import DIALECTS, check_loads, check_version, dialect_of
from lab.blueprints.replication import account
from lab.config.enginefile import DialectName
from lab.config.profile import EngineProfile
from lab.errors import InvalidSpec
from tests.support import upstream_builds
from tests.unit.blueprints import test_accounts as accounts
from tests.unit.blueprints import test_replication as replication
from tests.unit.blueprints import test_switchover as switchover
from tests.unit.blueprints.test_replication import RealCluster, Start, _spec, cluster, spec

__all__ = ["cluster", "spec"]

BUILDS = upstream_builds.builds()


@pytest.fixture(params=list(BUILDS))
def engine(request: pytest.FixtureRequest) -> Engine:
    found: Engine = BUILDS[request.param]
    return found


@pytest.fixture
def starter() -> Callable[[ExitStack, Engine], Start]:
    return lambda _, engine: upstream_builds.starter(engine)


@pytest.mark.rare
def test_a_source_and_its_replica(cluster: RealCluster) -> None:
    replication.test_real_servers(cluster)


@pytest.mark.rare
@pytest.mark.parametrize("spec", [_spec(3, topology="chain")])
def test_links_that_are_fixed(cluster: RealCluster) -> None:
    replication.test_a_node_that_logs_in_as_it_did_before(cluster)


@pytest.mark.rare
@pytest.mark.parametrize("spec", [_spec(3)])
def test_a_failover(cluster: RealCluster) -> None:
    switchover.test_a_failover_of_real_servers(cluster)


@pytest.mark.rare
@pytest.mark.parametrize("spec", [_spec(2, user=accounts.USERS)])
def test_accounts(cluster: RealCluster) -> None:
    accounts.test_accounts_of_real_servers(cluster)


@pytest.mark.parametrize("name", ["mariadb", "mysql"])
def test_the_newest_servers_have_all(name: DialectName) -> None:
    """Protects the keys of templates, which have option files in them."""
    newest = DIALECTS[name]
    for version in ("", "11", "11.8.6", "26.7"):
        assert dialect_of(Release(name, version)) is newest
    text = "[mariadbd]\nssl_cert = x\nbinlog_expire_logs_seconds = 604800\n"
    assert newest.understood(text) == text


def test_a_series_is_its_newest_version() -> None:
    """Protects labs that are being created: their record has the series that was requested."""
    assert dialect_of(Release("mysql", "8.0")) is DIALECTS["mysql"]
    assert dialect_of(Release("mysql", "8.0.15")).tls is False
    assert dialect_of(Release("haproxy", "3.0.11")) is DIALECTS["mysql"], "it is no server"
    assert dialect_of(Release("percona-server", "8.0.45-36")) is DIALECTS["mysql"]


def test_options_of_older_servers(golden: Callable[[str, str], None]) -> None:
    for name, engine in BUILDS.items():
        member, members = replication.N2, replication.MEMBERS
        files = replication.REPLICATION.files(member, members, engine, 768 << 20, EngineProfile())
        golden(f"blueprint/replication-{name}.cnf", files[engine.config_path].content.decode())


@pytest.mark.parametrize(
    ("name", "version", "oldest"),
    [("mariadb", "10.1.48-MariaDB", "10.2"), ("mysql", "5.5.62", "5.6.17")],
)
def test_what_is_too_old(name: DialectName, version: str, oldest: str) -> None:
    with pytest.raises(InvalidSpec, match=f"{version} is too old for labs: it lacks") as raised:
        check_version(name, version)
    assert raised.value.hint == f"the oldest version that works is {oldest}"
    for build in BUILDS.values():
        if build.name == name:
            check_version(name, build.version)


def test_one_that_has_no_channels() -> None:
    fan_in = blueprint_of(_spec(3, topology="fan-in"))
    with pytest.raises(InvalidSpec, match="n3 cannot follow several servers: MySQL has channels"):
        fan_in.files(
            replication.N3, replication.MEMBERS, BUILDS["mysql-5.6.24"], 1 << 30, EngineProfile()
        )


def test_a_server_without_tls_has_the_older_passwords() -> None:
    old = replace(BUILDS["mysql-5.6.24"], version="5.7.44")
    assert "mysql_native_password AS" in account(old, "x")[1]


@pytest.mark.parametrize(
    ("name", "version", "loads"),
    [
        ("mysql", "5.6.24", False),
        ("mysql", "8.0.19", False),
        ("percona-server", "8.0.36", True),
        ("mysql", "9.7.4", True),
        ("mariadb", "10.2.11", False),
        ("mariadb", "10.11.5", True),
    ],
)
def test_what_is_too_old_to_make_datasets(name: str, version: str, loads: bool) -> None:
    """Protects from a syntax error in the middle of a load."""
    server = Engine(name, version, "", "", "mysql", 1, 1)
    if loads:
        check_loads(server)
        return
    with pytest.raises(InvalidSpec, match=f"{version} is too old to make datasets"):
        check_loads(server)


@pytest.mark.parametrize(
    ("name", "version", "synced"),
    [("mariadb", "10.3.39", True), ("mariadb", "10.4.2", False), ("mariadb", "11.8", False),
     ("mysql", "5.7.44", True), ("mysql", "8.0", False)],
)  # fmt: skip
def test_passwords_survive_a_power_loss(name: DialectName, version: str, synced: bool) -> None:
    """Protects clones that are killed: accounts in MyISAM had the template's password again."""
    dialect = dialect_of(Release(name, version))
    around = ["SET GLOBAL flush = ON", "change", "SET GLOBAL flush = OFF"]
    assert dialect.kept(["change"]) == (around if synced else ["change"])
    assert dialect.kept([]) == []

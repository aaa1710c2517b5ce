"""Between the steps of an upgrade each new server replicates in all directions, on the fakes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pymysql
import pytest

from lab.errors import NotReady, StatementRefused
from lab.lifecycle.core.context import Context
from lab.lifecycle.labs import probe
from lab.lifecycle.labs.up import up
from lab.lifecycle.labs.upgrade import upgrade
from lab.lifecycle.nodes import inspect
from lab.observe.account import Account
from lab.observe.ways import Rows, SqlAll
from lab.requests.labs import UpgradeLab
from lab.views.upgrades import UpgradeView
from tests.support import mariadb_server, mysql_server
from tests.support.lifecycle_world import World, lab_request
from tests.support.mariadb_server import NoServer

SERIES = {"mariadb": ("mariadb:10.11", "mariadb:11.8"), "mysql": ("mysql:8.4", "mysql:9.7")}
OLDER, NEWER = SERIES["mariadb"]
Answer = Callable[[int, str], list[Rows] | None]


@pytest.fixture
def ctx(tmp_path: Path) -> Iterator[Context]:
    with World(tmp_path).open() as opened:
        yield opened


def directions(view: UpgradeView) -> dict[str, list[tuple[str, str]]]:
    """From which to which server rows came, by step."""
    assert not view.failed, view.failure
    steps = {step.node: step.replicated or () for step in view.steps}
    assert all(one.seconds is not None for found in steps.values() for one in found)
    return {node: [(one.source, one.target) for one in found] for node, found in steps.items()}


@pytest.mark.rare
@pytest.mark.parametrize(
    ("blueprint", "values", "found"),
    [
        ("single", {"nodes": 1}, {"n1": []}),
        # With one that is not upgraded, while there is one.
        ("galera", {"nodes": 3}, {
            "n3": [("n1", "n3"), ("n3", "n1")],
            "n2": [("n1", "n2"), ("n2", "n1")],
            "n1": [("n2", "n1"), ("n1", "n2")],
        }),
        ("galera-dr", {"nodes": 2, "replicas": 2}, {
            "n4": [("n1", "n4")],
            "n3": [("n1", "n3")],
            "n2": [("n1", "n2"), ("n2", "n1")],
            "n1": [("n2", "n1"), ("n1", "n2")],
        }),
        # n3 is promoted before the turn of n1.
        ("replication", {"nodes": 3}, {
            "n3": [("n1", "n3")], "n2": [("n1", "n2")], "n1": [("n3", "n1")],
        }),
        ("replication", {"nodes": 3, "topology": "ring"}, {
            "n3": [("n1", "n3"), ("n3", "n1")],
            "n2": [("n1", "n2"), ("n2", "n1")],
            "n1": [("n2", "n1"), ("n1", "n2")],
        }),
        ("replication", {"nodes": 3, "topology": "chain"}, {
            "n3": [("n1", "n3")], "n2": [("n1", "n2")], "n1": [("n1", "n2")],
        }),
        # Our table is on n1, from which n2 gets nothing.
        ("replication", {"nodes": 3, "topology": "fan-in"}, {
            "n3": [("n1", "n3")], "n2": [], "n1": [("n1", "n3")],
        }),
        ("replication", {"nodes": 3, "delay": 3600.0, "on": ["n3"]}, {
            "n3": [], "n2": [("n1", "n2")], "n1": [("n2", "n1")],
        }),
        ("replication", {"nodes": 3, "topology": "chain", "delay": 3600.0, "on": ["n2"]}, {
            "n3": [], "n2": [], "n1": [],
        }),
    ],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else value,
)  # fmt: skip
def test_each_direction(
    ctx: Context,
    blueprint: str,
    values: dict[str, object],
    found: dict[str, list[tuple[str, str]]],
) -> None:
    """Protects a lab of two series: rows come to the new server, and from it where it writes."""
    up(ctx, lab_request(blueprint, "shop", engine=OLDER, **values))
    view = upgrade(ctx, UpgradeLab(lab="shop", to=NEWER), timeout=20)
    assert directions(view) == found
    assert view.lost == 0


@pytest.mark.rare
@pytest.mark.parametrize("several", [False, True])
def test_a_group(ctx: Context, several: bool) -> None:
    older, newer = SERIES["mysql"]
    up(ctx, lab_request("group", "shop", nodes=3, engine=older, multi_primary=several))
    view = upgrade(ctx, UpgradeLab(lab="shop", to=newer), timeout=20)
    # n3 is elected when n1 leaves.
    wanted = {"n3": [("n1", "n3")], "n2": [("n1", "n2")], "n1": [("n3", "n1")]}
    if several:
        wanted = {
            "n3": [("n1", "n3"), ("n3", "n1")],
            "n2": [("n1", "n2"), ("n2", "n1")],
            "n1": [("n2", "n1"), ("n1", "n2")],
        }
    assert directions(view) == wanted


def port(ctx: Context, node: str) -> int:
    return inspect.node_of(ctx, "shop", node).sql_port


def answering(ctx: Context, answer: Answer) -> Context:
    """The context, with servers for which ``answer`` answers, unless it returns None."""
    usual: SqlAll = ctx.sql_all

    def ask(
        account: Account,
        port: int,
        statements: Sequence[str],
        *,
        timeout: float,
        whole: bool = False,
    ) -> list[Rows]:
        found = answer(port, statements[0])
        if found is not None:
            return found
        return usual(account, port, statements, timeout=timeout, whole=whole)

    return replace(ctx, sql_all=ask)


@pytest.mark.rare
@pytest.mark.parametrize(("source", "target"), [("n1", "n2"), ("n2", "n1")])
def test_a_direction_that_does_not_replicate(
    ctx: Context, monkeypatch: pytest.MonkeyPatch, source: str, target: str
) -> None:
    """Protects from two clusters of one node: the step goes back, and the report says why."""
    monkeypatch.setattr(probe, "SETTLED", 0.5)
    up(ctx, lab_request("galera", "shop", nodes=2, engine=OLDER))
    deaf = port(ctx, target)

    def answer(port: int, statement: str) -> list[Rows] | None:
        looked_for = statement.startswith("SELECT n FROM lab_upgrade")
        return [Rows(("n",), (), 0)] if port == deaf and looked_for else None

    view = upgrade(answering(ctx, answer), UpgradeLab(lab="shop", to=NEWER), timeout=20)
    [step] = view.steps
    assert (step.node, step.state, step.after) == ("n2", "rolled back", "")
    assert step.why == f"{target} does not have the row that {source} acknowledged 0.5 s before"
    assert step.replicated is not None
    [failed] = [one for one in step.replicated if one.seconds is None]
    assert (failed.source, failed.target, failed.error) == (source, target, step.why)
    assert len(step.replicated) == 2
    assert (step.log, step.locked_out) == ((), ()), "what was observed before is not lost"
    assert inspect.lab(ctx, "shop").state == "ready"
    assert inspect.lab(ctx, "shop").engine_version == "10.11.6"


@pytest.mark.rare
def test_a_replica_that_does_not_answer(ctx: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "SETTLED", 0.5)
    up(ctx, lab_request("replication", "shop", nodes=2, engine=OLDER))
    silent = port(ctx, "n2")

    def answer(port: int, statement: str) -> list[Rows] | None:
        if port == silent and statement.startswith("SELECT n FROM lab_upgrade"):
            raise NotReady("no SQL at port 1")
        return None

    view = upgrade(answering(ctx, answer), UpgradeLab(lab="shop", to=NEWER), timeout=20)
    said = "n2 does not have the row that n1 acknowledged 0.5 s before: no SQL at port 1"
    assert (view.steps[-1].state, view.steps[-1].why) == ("rolled back", said)


@pytest.mark.rare
def test_a_node_that_takes_no_row(ctx: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects who writes through any node of a cluster: that it is Synced is not enough."""
    monkeypatch.setattr(probe, "SETTLED", 0.5)
    up(ctx, lab_request("galera", "shop", nodes=2, engine=OLDER))
    refusing = port(ctx, "n2")

    def answer(port: int, statement: str) -> list[Rows] | None:
        if port == refusing and statement.startswith("INSERT INTO lab_upgrade"):
            raise StatementRefused(1205, "Lock wait timeout exceeded")
        return None

    view = upgrade(answering(ctx, answer), UpgradeLab(lab="shop", to=NEWER), timeout=20)
    [step] = view.steps
    assert (step.state, step.replicated) == ("rolled back", None)
    assert step.why == "no row was taken by n2 within 0.5 s"
    assert step.log == ("ERROR 1205 (HY000): Lock wait timeout exceeded",)


def test_the_provider_of_each_node(ctx: Context) -> None:
    """Protects who reads of a fault of the provider: it comes with the image, as the server does.

    That of the second node does not say after its upgrade.
    """
    up(ctx, lab_request("galera", "shop", nodes=2, engine=OLDER))
    ports, asked = {port(ctx, node): node for node in ("n1", "n2")}, list[str]()

    def answer(port: int, statement: str) -> list[Rows] | None:
        if "wsrep_provider_version" not in statement:
            return None
        asked.append(ports[port])
        if len(asked) == 4:
            raise NotReady("no SQL")
        older = Rows(("Variable_name", "Value"), (("wsrep_provider_version", "26.4.1(r1)"),), 1)
        return [older] if len(asked) == 1 else None

    view = upgrade(answering(ctx, answer), UpgradeLab(lab="shop", to=NEWER), timeout=20)
    assert asked == ["n2", "n2", "n1", "n1"]
    found = [(step.provider_before, step.provider_after, step.provider) for step in view.steps]
    assert found == [
        ("26.4.1(r1)", "26.4.13(r0)", "26.4.1(r1) before, 26.4.13(r0) after"),
        ("26.4.13(r0)", None, "26.4.13(r0) before, unknown after"),
    ]


def test_the_protocol_of_a_cluster(ctx: Context) -> None:
    """Protects the way back: it rises when the last node of the older series has left."""
    up(ctx, lab_request("galera", "shop", nodes=2, engine=OLDER))
    view = upgrade(ctx, UpgradeLab(lab="shop", to=NEWER), timeout=20)
    found = [(step.node, step.protocol_before, step.protocol_after) for step in view.steps]
    assert found == [("n2", 10, 10), ("n1", 10, 11)]
    assert [step.risen for step in view.steps] == [False, True]


def test_what_is_in_no_cluster_has_no_protocol(ctx: Context) -> None:
    up(ctx, lab_request("single", "shop", nodes=1, engine=OLDER))
    [step] = upgrade(ctx, UpgradeLab(lab="shop", to=NEWER), timeout=20).steps
    assert (step.protocol_before, step.protocol_after, step.risen) == (None, None, False)


@pytest.mark.rare
@pytest.mark.parametrize("family", ["mariadb", "mysql"])
def test_how_a_real_server_refuses_rows_that_is_read_only(family: str) -> None:
    """Protects labs with one that writes: the others say so in a way that is known.

    And it says that it has no wsrep provider.
    """
    start = {"mariadb": mariadb_server.server, "mysql": mysql_server.server}[family]
    try:
        with start() as server:
            server.ask(
                "CREATE DATABASE lab_upgrade",
                "CREATE TABLE lab_upgrade.writes (n BIGINT PRIMARY KEY)",
                "CREATE USER app@localhost IDENTIFIED BY 'x'",
                "GRANT ALL ON lab_upgrade.* TO app@localhost",
                "SET GLOBAL read_only = ON",
            )
            rows = server.ask("SHOW GLOBAL STATUS LIKE 'wsrep_provider_version'")
            assert [row[1] for row in rows] in ([], [""])
            connection = pymysql.connect(
                unix_socket=str(server.socket), user="app", password="x",
            )  # fmt: skip
            with connection, connection.cursor() as cursor:
                with pytest.raises(pymysql.err.MySQLError) as refused:
                    cursor.execute("INSERT INTO lab_upgrade.writes VALUES (1)")
                assert refused.value.args[0] in probe.READ_ONLY
    except NoServer as why:
        pytest.skip(str(why))

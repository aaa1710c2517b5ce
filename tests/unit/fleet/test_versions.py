"""Rows of other versions of this program: an older host reads what a newer one writes, and back."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sqlalchemy import create_engine, text

from lab.api.core.fleet import Fleet
from lab.api.core.problem import problem
from lab.api.jobs import placing
from lab.config.servefile import Serve
from lab.config.settings import Settings
from lab.errors import HostUnfit, InvalidSpec
from lab.fleet import hosts, known, placements, tokens
from lab.fleet.choose import Needs
from lab.fleet.database import FleetDatabase, migrate
from lab.fleet.hosts import Facts, Member
from lab.fleet.known import Known
from lab.fleet.placements import Placement
from lab.fleet.schema import REVISION
from lab.paths import Home
from lab.state.service import TokenRecord
from lab.units import GIB
from lab.views.labs import Lab
from tests.support.postgres_server import NEEDED, programs
from tests.support.postgres_server import postgres as pg

FACTS = {
    "memory": 1 << 34, "memory_free": 1 << 33, "cpus": 8, "load": 0.5, "labs": 1, "full": False,
    "jobs": ["j"], "templates": ["single//1/805306368//"], "formed": 1, "datasets": [],
}  # fmt: skip
NEEDS = {"memory": 1 << 30, "on": "", "template": "single//1/805306368//", "dataset": ""}
TOKEN = {
    "id": "t", "name": "ci", "hash": "0" * 64, "scope": "use", "project": "ci",
    "created_at": 1.0, "expires_at": None, "revoked_at": None, "max_labs": 4, "max_nodes": None,
    "max_memory": None, "max_ttl": None, "max_cpus": None, "max_snapshots": None,
    "max_templates": None, "max_disk": None, "last_used_at": None, "asleep_after": None,
}  # fmt: skip
REQUEST = {
    "blueprint": "single", "nodes": 1, "engine": "", "memory": 805306368, "cpus": 1, "disk": None,
    "ttl": 3600.0, "profile": "", "snapshots": "", "image": "", "name": "shop", "any_name": False,
    "cold": False, "heartbeat": None, "idle": None, "protected": False, "keep_failed": False,
    "owner": "admin",
}  # fmt: skip
VIEW = {
    "name": "shop", "blueprint": "single", "engine": "mariadb", "engine_version": "11.8.6",
    "state": "ready", "nodes": [{"name": "n1", "role": "", "state": "ready", "host": "127.0.0.1",
                                 "sql_port": 32000, "ssh_port": 32001, "guest": "lab-shop-n1"}],
}  # fmt: skip


ROOM = Facts(memory=16 * GIB, memory_free=16 * GIB)


def joined(database: FleetDatabase, name: str, facts: Facts) -> Member:
    member, _ = hosts.join(database, name, f"home-{name}", f"https://{name}:7443", (), "1")
    hosts.beat(database, member, facts)
    return member


def wanted(**more: Any) -> Placement:
    given: dict[str, Any] = {
        "job": str(uuid.uuid4()), "kind": "create", "lab": "", "project": "p", "token": "t",
        "key": None, "digest": "d", "request": REQUEST, "needs": Needs(2 * GIB),
    }  # fmt: skip
    return Placement(**given | more)


def place(database: FleetDatabase, one: Placement) -> Placement:
    return placements.place(database, one, "single", queue=10)[0]


def state(database: FleetDatabase, lab: str) -> str:
    ((found,),) = database.run("SELECT state FROM lab.placements WHERE lab = :lab", lab=lab)
    return str(found)


def write(database: FleetDatabase, statement: str, **values: object) -> None:
    plain = {
        name: json.dumps(one) if isinstance(one, dict) else one for name, one in values.items()
    }
    database.run(statement, **plain)


def facts_of(database: FleetDatabase, host: str, facts: dict[str, Any]) -> None:
    write(
        database, "UPDATE lab.heartbeats SET facts = CAST(:facts AS jsonb) WHERE host = :host",
        facts=facts, host=host,
    )  # fmt: skip


def token(database: FleetDatabase, **more: Any) -> None:
    record = {**TOKEN, **more}
    write(
        database,
        "INSERT INTO lab.tokens VALUES (:id, CAST(:record AS jsonb))"
        " ON CONFLICT (id) DO UPDATE SET record = excluded.record",
        id=record["id"], record=record,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("row", "kind"), [(FACTS, Facts), (NEEDS, Needs), (TOKEN, TokenRecord), (VIEW, Lab)]
)
def test_rows_of_the_first_version_are_read(row: dict[str, Any], kind: type) -> None:
    """Protects the hosts that are not upgraded yet: all that is added later has a default."""
    msgspec.convert(row, kind)


def test_requests_of_the_first_version_are_read() -> None:
    placed = wanted(lab="shop", host="h1")
    assert placing.request_of(placed) == placing.spec_of(placed)
    assert placing.spec_of(placed).size.memory == 768 << 20


def test_facts_of_a_newer_host(database: FleetDatabase) -> None:
    """Protects all hosts from one that says more, or otherwise, than they know."""
    for name in ("h1", "h2", "h3"):
        joined(database, name, Facts())
    facts_of(database, "h1", {**FACTS, "temperature": {"cpu": 40}})
    facts_of(database, "h2", {**FACTS, "memory": {"total": 1}})
    h1, h2, _ = hosts.hosts(database)
    assert h1.facts == msgspec.convert(FACTS, Facts)
    assert h2.facts == Facts(), "what it has is not known here"
    assert place(database, wanted()).host == "h1"
    with pytest.raises(HostUnfit) as refused:
        place(database, wanted(needs=Needs(1, "h2")))
    assert refused.value.details == ("h2: has not said yet what it has",)


@pytest.mark.parametrize("more", [{"processor": "epyc"}, {"on": ["h1", "h2"]}])
def test_a_newer_version_needs_more(database: FleetDatabase, more: dict[str, Any]) -> None:
    """Protects a lab from a host that is unfit, and the other jobs from what cannot be read."""
    member = joined(database, "h1", Facts(memory=4 * GIB))
    for lab in ("newer", "older", "claimed"):
        place(database, wanted(lab=lab))
    newer = "UPDATE lab.placements SET needs = needs || CAST(:more AS jsonb) WHERE lab = :lab"
    write(database, newer, more=more, lab="newer")
    hosts.beat(database, member, ROOM)
    placed = [one.lab for one, _ in placements.place_waiting(database, problem)]
    assert placed == ["older", "claimed"]
    write(database, newer, more={"processor": "epyc"}, lab="claimed")
    assert {one.lab for one in placements.claim(database, member)} == {"older", "claimed"}
    place(database, wanted(lab="next"))
    assert placements.place_waiting(database, problem) == []
    assert state(database, "newer") == "queued"
    placements.place_waiting(database, problem, patience=0)
    assert state(database, "newer") == "failed", "no newer host is left"


def test_needs_that_say_nothing_more(database: FleetDatabase) -> None:
    """Protects what newer hosts place from waiting for them without a reason."""
    member = joined(database, "h1", Facts(memory=4 * GIB))
    place(database, wanted(lab="newer"))
    database.run("""UPDATE lab.placements SET needs = needs || '{"processor": ""}'""")
    hosts.beat(database, member, ROOM)
    assert [one.lab for one, _ in placements.place_waiting(database, problem)] == ["newer"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda one: {"request": {**one.request, "encrypted": True, "shards": 0, "tags": []}},
         "encrypted, shards"),
        (lambda _: {"kind": "branch"}, "jobs of the kind branch"),
    ],
)  # fmt: skip
def test_requests_of_a_newer_version_are_refused(
    change: Callable[[Placement], dict[str, Any]], words: str
) -> None:
    """Protects users from a lab that is not what they requested."""
    one = wanted(lab="shop", host="h1")
    with pytest.raises(InvalidSpec, match=f"on the host h1.*: {words}$") as refused:
        placing.request_of(replace(one, **change(one)))
    assert "upgrade lab there" in refused.value.hint


@pytest.mark.parametrize(
    ("more", "nodes"),
    [
        ({"encrypted": True, "nodes": 3, "blueprint": "pxc"}, 3),
        ({"options": {"shards": 2}, "nodes": 3, "blueprint": "pxc"}, 3),
        ({"memory": "all of it"}, 1),
    ],
)
def test_quotas_count_requests_of_newer_versions(more: dict[str, Any], nodes: int) -> None:
    """Protects other requests of the project from one that this host cannot read whole."""
    assert placing.spec_of(wanted(lab="shop", request={**REQUEST, **more})).node_count == nodes


def test_tokens_of_a_newer_version(database: FleetDatabase) -> None:
    """Protects labs from a token whose limits this host does not know, and all other tokens."""
    token(database, id="limited", max_queries=7)
    token(database, id="unlimited", max_queries=None)
    token(database, id="scoped", scope="operate")
    token(database, id="known")
    found = tokens.merged(database, [])
    assert sorted(one.id for one in found.take) == ["known", "unlimited"]
    assert found.unknown == {"limited", "scoped"}


def test_a_newer_version_revokes(database: FleetDatabase) -> None:
    """Protects from a token that was revoked, whatever else is said of it."""
    ours = msgspec.convert(TOKEN, TokenRecord)
    assert tokens.merged(database, [ours]).take == []
    token(database, revoked_at=9, why="leaked")
    (taken,) = tokens.merged(database, [ours]).take
    assert (taken.id, taken.revoked_at, taken.hash) == ("t", 9.0, ours.hash)
    assert tokens.merged(database, [taken]).take == []


def test_an_older_version_revokes(database: FleetDatabase) -> None:
    """Protects what newer hosts say of a token from being lost."""
    ours = msgspec.convert({**TOKEN, "revoked_at": time.time()}, TokenRecord)
    token(database, max_queries=7)
    tokens.merged(database, [msgspec.convert(TOKEN, TokenRecord)])
    (row,) = database.run("SELECT record FROM lab.tokens")
    assert (row.record["max_queries"], row.record["revoked_at"]) == (7, None)
    tokens.merged(database, [ours])
    (row,) = database.run("SELECT record FROM lab.tokens")
    assert (row.record["max_queries"], row.record["revoked_at"]) == (7, ours.revoked_at)


@pytest.mark.parametrize(
    ("revision", "hint"), [("0000", "`lab db migrate`"), ("9999", "upgrade lab on this host")]
)
def test_tables_of_another_version(database: FleetDatabase, revision: str, hint: str) -> None:
    """Protects the tables: who starts on those of another version learns which side is older."""
    engine = create_engine(database.url)
    change = text("UPDATE lab.fleet_version SET version_num = :to")
    with engine.begin() as connection:
        before = connection.execute(text("SELECT version_num FROM lab.fleet_version")).scalar()
        connection.execute(change, {"to": revision})
    try:
        with pytest.raises(HostUnfit, match=f"schema {revision}, this program knows") as refused:
            database.check()
        assert hint in refused.value.hint
        if revision == "9999":
            with pytest.raises(HostUnfit, match="this program knows"):
                migrate(database.url.render_as_string(hide_password=False))
    finally:
        with engine.begin() as connection:
            connection.execute(change, {"to": before})
        engine.dispose()


def test_a_column_more_while_a_host_runs(database: FleetDatabase) -> None:
    """Protects hosts that run from `lab db migrate`: PostgreSQL keeps what they prepared.

    It refuses a prepared statement whose columns have changed, such as one with an asterisk.
    """
    facts = replace(ROOM, memory_free=8 * GIB)
    member = joined(database, "h1", facts)

    def work() -> None:
        placed = place(database, wanted())
        assert [one.job for one in placements.claim(database, member)] == [placed.job]
        view = Known(placed.lab, "p", "ready", placed.job, VIEW, None, 1.0)
        known.publish(database, member, [view])
        assert placements.find(database, placed.job)
        assert placements.claimed(database, member)
        assert known.labs(database)
        assert known.of_host(database, "h1")
        assert known.holder(database, placed.lab)
        assert hosts.hosts(database)[0].name == "h1"
        assert placements.not_ours(database, "h1", [placed.job]) == []
        placements.end(database, member, [placed.job])
        tokens.merged(database, [])
        hosts.beat(database, member, facts)
        waits = place(database, wanted(needs=Needs(ROOM.memory)))
        assert not waits.host
        assert placements.place_waiting(database, problem) == []
        assert placements.cancel(database, waits.job)
        known.drop_reserved(database, member, [])

    for _ in range(8):  # psycopg prepares what it has executed five times
        work()
    tables = ("hosts", "heartbeats", "placements", "labs", "tokens", "decisions")
    engine = create_engine(database.url)
    try:
        with engine.begin() as connection:
            for name in tables:
                connection.execute(text(f"ALTER TABLE lab.{name} ADD COLUMN further text"))
        work()
        joined(database, "h1", ROOM)
    finally:
        with engine.begin() as connection:
            for name in tables:
                connection.execute(text(f"ALTER TABLE lab.{name} DROP COLUMN further"))
        engine.dispose()


@pytest.mark.skipif(programs() is None, reason=NEEDED)
def test_tables_are_checked_as_soon_as_they_can_be_read(tmp_path: Path) -> None:
    """Protects newer tables from an older program that was started while they could not be read."""
    with pg() as server:
        migrate(server.url)
        serve = Serve(database=server.plain, host_name="h1")
        settings = Settings(home=Home(tmp_path), owner="tester", serve=serve)
        first = Fleet(settings)
        first.open()
        first.close()
        server.stop("fast")
        later = Fleet(settings)
        later.open()  # by the certificate of before
        server.start()
        change = FleetDatabase(server.url)
        change.run("UPDATE lab.fleet_version SET version_num = '9999'")
        with pytest.raises(HostUnfit, match="schema 9999, this program knows") as refused:
            later.announce("https://127.0.0.1:1", "")
        assert refused.value.hint == "upgrade lab on this host"
        assert hosts.hosts(change) == []
        change.run("UPDATE lab.fleet_version SET version_num = :it", it=REVISION)
        later.announce("https://127.0.0.1:1", "")
        assert [one.name for one in hosts.hosts(change)] == ["h1"]
        change.run("UPDATE lab.fleet_version SET version_num = '9999'")
        later.join()  # it runs already
        for one in (change, later):
            one.close()

"""Where jobs go, on a real PostgreSQL: each is run by one host, and by no other."""

from __future__ import annotations

import os
import signal
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import text

from lab.api.core.problem import problem
from lab.errors import Conflict, HostUnfit
from lab.fleet import hosts, known, placements
from lab.fleet.choose import Needs
from lab.fleet.database import Fenced, FleetDatabase, Unreachable
from lab.fleet.hosts import Facts, Member
from lab.fleet.known import Known
from lab.fleet.placements import Placement
from lab.units import GIB

ROOM = Facts(memory=16 * GIB, memory_free=16 * GIB)


def joined(database: FleetDatabase, name: str, facts: Facts = ROOM) -> Member:
    member, _ = hosts.join(database, name, f"home-{name}", f"https://{name}:7443", (), "1")
    hosts.beat(database, member, facts)
    return member


def wanted(**more: Any) -> Placement:
    given: dict[str, Any] = {
        "job": str(uuid.uuid4()), "kind": "create", "lab": "", "project": "p", "token": "t",
        "key": None, "digest": "d", "request": {"blueprint": "pxc"}, "needs": Needs(2 * GIB),
    }  # fmt: skip
    return Placement(**given | more)


def place(database: FleetDatabase, one: Placement) -> Placement:
    return placements.place(database, one, "pxc", queue=10)[0]


def silent(database: FleetDatabase, name: str) -> None:
    """Have a host's heartbeat be a minute old."""
    database.run("UPDATE lab.heartbeats SET at = now() - interval '60 s' WHERE host = :n", n=name)


def states(database: FleetDatabase) -> dict[str, tuple[str, str]]:
    found = database.run("SELECT lab, state, COALESCE(host, '') FROM lab.placements")
    return {lab: (state, host) for lab, state, host in found}


def test_a_job_is_claimed_once(database: FleetDatabase) -> None:
    """Protects a lab from being created twice, whoever wakes whom."""
    member = joined(database, "h1")
    placed = [place(database, wanted()) for _ in range(5)]
    with ThreadPoolExecutor(5) as threads:
        got = list(threads.map(lambda _: placements.claim(database, member), range(5)))
    claimed = [one.job for some in got for one in some]
    assert sorted(claimed) == sorted(one.job for one in placed)
    assert placements.claim(database, member) == []
    assert {one.job for one in placements.claimed(database, member)} == set(claimed)
    placements.end(database, member, claimed)
    assert placements.claimed(database, member) == []


def test_labs_without_a_name_get_one_of_the_fleet(database: FleetDatabase) -> None:
    """Protects names: two hosts would call their first lab the same."""
    for name in ("h1", "h2"):
        joined(database, name)
    with ThreadPoolExecutor(4) as threads:
        placed = list(threads.map(lambda _: place(database, wanted()), range(6)))
    assert {one.lab for one in placed} == {"pxc", *(f"pxc-{n}" for n in range(2, 7))}
    assert {one.host for one in placed} == {"h1", "h2"}, "what is promised counts"
    with pytest.raises(Conflict, match="lab pxc exists already, on the host h"):
        place(database, wanted(lab="pxc"))


def test_a_key_gives_the_job_of_before(database: FleetDatabase) -> None:
    """Protects clients that repeat a request because its answer was lost."""
    joined(database, "h1")
    first = place(database, wanted(key="k"))
    again, host = placements.place(database, wanted(key="k"), "pxc", queue=10)
    assert (again.job, host) == (first.job, None)
    assert first.created_at == pytest.approx(again.created_at)
    assert again.created_at > time.time() - 3600


def test_what_has_no_room_waits_and_is_placed_fairly(database: FleetDatabase) -> None:
    """Protects a project from another one that asks for much at once."""
    member = joined(database, "h1", Facts(memory=4 * GIB, memory_free=4 * GIB))
    for number in range(4):
        place(database, wanted(lab=f"a{number}", project="a"))
    place(database, wanted(lab="b0", project="b"))
    assert states(database) == {
        "a0": ("placed", "h1"), "a1": ("placed", "h1"), "a2": ("queued", ""),
        "a3": ("queued", ""), "b0": ("queued", ""),
    }  # fmt: skip
    with pytest.raises(HostUnfit, match="3 jobs wait"):
        placements.place(database, wanted(), "pxc", queue=3)
    assert placements.place_waiting(database, problem) == []
    jobs = tuple(one.job for one in placements.claim(database, member))
    room = Facts(memory=4 * GIB, memory_free=2 * GIB, jobs=jobs)  # one of the two has gone
    hosts.beat(database, member, room)
    assert [one.lab for one, _ in placements.place_waiting(database, problem)] == ["b0"]
    hosts.beat(database, member, replace(room, memory_free=4 * GIB))
    assert [one.lab for one, _ in placements.place_waiting(database, problem)] == ["a2"]


def test_a_host_is_lost(database: FleetDatabase) -> None:
    """Protects who waits for a job of a host that is gone, and the names of its labs."""
    dead, alive = joined(database, "h1"), joined(database, "h2", Facts(memory=16 * GIB))
    run = place(database, wanted(lab="runs"))
    again = place(database, wanted(lab="again", again=True))
    assert len(placements.claim(database, dead)) == 2
    place(database, wanted(lab="waits"))
    known.publish(database, dead, [Known("old", "p", "ready", "", {"name": "old"}, None, 1.0)])
    assert placements.lose(database, problem) == []
    silent(database, "h1")
    assert placements.lose(database, problem) == ["h1"]
    assert placements.lose(database, problem) == []
    found = states(database)
    assert found == {"runs": ("failed", "h1"), "again": ("queued", ""), "waits": ("queued", "")}
    failed = placements.find(database, run.job)
    assert failed is not None
    assert failed.error is not None
    assert failed.error["detail"] == "the host h1 was lost while the job ran"
    hosts.beat(database, alive, ROOM)
    assert {one.lab for one, _ in placements.place_waiting(database, problem)} == {"again", "waits"}
    assert place(database, wanted(lab="old")).host == "h2", "its name is free"
    # What it does later does nothing.
    assert placements.claim(database, dead) == []
    with pytest.raises(Fenced):
        hosts.beat(database, dead, ROOM)
    with pytest.raises(Fenced):
        placements.end(database, dead, [run.job, again.job])
    with pytest.raises(Fenced):
        known.publish(database, dead, [], ["old"])


def test_a_host_that_was_lost_comes_back(database: FleetDatabase) -> None:
    """Protects its labs: they are neither duplicated nor destroyed unasked."""
    member = joined(database, "h1")
    joined(database, "h2")
    mine = [Known(name, "p", "ready", "", {}, None, 1.0) for name in ("taken", "free")]
    known.publish(database, member, mine)
    silent(database, "h1")
    placements.lose(database, problem)
    assert place(database, wanted(lab="taken")).host == "h2"
    back, was_lost = hosts.join(database, "h1", "home-h1", "https://h1:7443", (), "1")
    assert was_lost
    assert back.epoch > member.epoch
    with pytest.raises(HostUnfit):  # not before it has said what it has
        place(database, wanted(needs=Needs(2 * GIB, "h1")))
    late = Known("late", "p", "ready", "", {}, None, 1.0)  # made when nobody saw it
    assert known.publish(database, back, [*mine, late], foreign=True)["late"]
    hosts.returned(database, back)
    known.publish(database, back, mine)
    found = {one.name: (one.state, one.foreign, one.holds) for one in known.of_host(database, "h1")}
    assert found == dict.fromkeys(("taken", "free", "late"), ("ready", True, False))
    holder = known.holder(database, "taken")
    assert holder is not None
    assert holder.host == "h2"
    with pytest.raises(Conflict, match="held by a lab of another host"):
        known.adopt(database, back, "taken")
    known.adopt(database, back, "free")
    assert {one.name: one.foreign for one in known.of_host(database, "h1")} == {
        "taken": True, "free": False, "late": True,
    }  # fmt: skip


def test_a_restart_keeps_its_jobs(database: FleetDatabase) -> None:
    """Protects jobs from a host that was restarted: they are its own."""
    before = joined(database, "h1")
    one = place(database, wanted())
    placements.claim(database, before)
    two = place(database, wanted())
    after, was_lost = hosts.join(database, "h1", "home-h1", "https://h1:7443", (), "1")
    assert not was_lost
    assert placements.claim(database, before) == [], "the process of before is over"
    assert [found.job for found in placements.claimed(database, after)] == [one.job]
    assert [found.job for found in placements.claim(database, after)] == [two.job]


def test_names_and_homes_of_hosts(database: FleetDatabase) -> None:
    """Protects a host's labs from a second machine that was given its name."""
    joined(database, "h1")
    with pytest.raises(Conflict, match="has a host h1 already"):
        hosts.join(database, "h1", "another", "", (), "1")
    with pytest.raises(Conflict, match="this home is the host h1"):
        hosts.join(database, "h2", "home-h1", "", (), "1")
    hosts.drain(database, "h1", draining=True)
    with pytest.raises(HostUnfit):
        place(database, wanted())
    hosts.drain(database, "h1", draining=False)
    place(database, wanted(lab="here"))
    with pytest.raises(Conflict, match="the service of the host h1 runs"):
        hosts.remove(database, "h1")
    silent(database, "h1")
    with pytest.raises(Conflict, match="1 labs and 1 jobs"):
        hosts.remove(database, "h1")


def test_a_host_that_was_removed_is_fenced(database: FleetDatabase) -> None:
    """Protects its successor of the same name: an epoch is given once."""
    before = joined(database, "h2")
    silent(database, "h2")
    placements.lose(database, problem)
    hosts.remove(database, "h2")
    after, _ = hosts.join(database, "h2", "another home", "", (), "1")
    hosts.beat(database, after, ROOM)
    place(database, wanted(needs=Needs(2 * GIB, "h2")))
    with pytest.raises(Fenced):
        hosts.beat(database, before, ROOM)
    assert placements.claim(database, before) == []
    assert len(placements.claim(database, after)) == 1


def test_a_foreign_name_blocks_nobody(database: FleetDatabase) -> None:
    """Protects a queue in which one lab's name is that of a foreign one."""
    away = joined(database, "h2")
    known.publish(database, away, [Known("shop", "p", "ready", "", {}, None, 1.0)])
    silent(database, "h2")
    placements.lose(database, problem)
    joined(database, "h1", Facts(memory=16 * GIB))
    for name in ("shop", "other"):
        assert place(database, wanted(lab=name)).state == "queued"
    back, _ = hosts.join(database, "h2", "home-h2", "", (), "1")
    known.publish(database, back, [Known("shop", "p", "ready", "", {}, None, 1.0)], foreign=True)
    hosts.returned(database, back)
    hosts.beat(database, back, ROOM)
    assert [one.lab for one, _ in placements.place_waiting(database, problem)] == ["other"]
    with pytest.raises(Conflict, match="exists already"):  # the job that waits has it
        place(database, wanted(lab="shop", needs=Needs(2 * GIB, "h2")))


def test_a_job_that_waits_is_cancelled(database: FleetDatabase) -> None:
    """Protects who has cancelled: the job is not placed after it."""
    member = joined(database, "h1", Facts(memory=16 * GIB))
    one = place(database, wanted(lab="shop"))
    assert placements.cancel(database, one.job)
    hosts.beat(database, member, ROOM)
    assert placements.place_waiting(database, problem) == []
    assert known.holder(database, "shop") is None
    assert not placements.cancel(database, one.job)


def test_a_job_waits_for_a_host_that_is_away(database: FleetDatabase) -> None:
    """Protects what waits from a restart of its host; but not without end."""
    member = joined(database, "h1", Facts(memory=16 * GIB))
    one = place(database, wanted(lab="shop", needs=Needs(2 * GIB, "h1")))
    silent(database, "h1")
    assert placements.place_waiting(database, problem) == []
    assert states(database)["shop"] == ("queued", "")
    hosts.beat(database, member, ROOM)
    assert [two.job for two, _ in placements.place_waiting(database, problem)] == [one.job]
    two = place(database, wanted(lab="big", needs=Needs(15 * GIB)))
    assert placements.place_waiting(database, problem, patience=0.0) == []
    failed = placements.find(database, two.job)
    assert failed is not None
    assert failed.error is not None
    assert "had room within" in failed.error["detail"]
    assert known.holder(database, "big") is None


def test_who_is_declared_lost_claims_nothing(database: FleetDatabase) -> None:
    """Protects a job from a host that comes back at the moment at which it is lost."""
    member = joined(database, "h1")
    place(database, wanted(lab="shop"))
    with ThreadPoolExecutor(1) as threads:
        with database.transaction() as connection:
            connection.execute(
                text("UPDATE lab.hosts SET lost = true, epoch = nextval('lab.epochs')")
            )
            claims = threads.submit(placements.claim, database, member)
            time.sleep(0.3)
            assert not claims.done(), "it does not wait for who decides"
        assert claims.result(5) == []
    assert states(database)["shop"] == ("placed", "h1")


def test_names_are_reserved(database: FleetDatabase) -> None:
    """Protects a branch from the name of another host's lab, and names from jobs that failed."""
    one, two = joined(database, "h1"), joined(database, "h2")
    known.reserve(database, one, ["limb"], "p", "job")
    known.reserve(database, one, ["limb"], "p", "job")
    with pytest.raises(Conflict, match="limb"):
        known.reserve(database, two, ["free", "limb"], "p", "job 2")
    known.drop_reserved(database, one, ["job"])
    assert known.holder(database, "limb") is not None
    known.drop_reserved(database, one, [])
    assert known.holder(database, "limb") is None
    assert known.holder(database, "free") is None


def test_a_server_that_hangs(database: FleetDatabase) -> None:
    """Protects requests from a server that neither answers nor ends."""
    ((server,),) = database.run("SELECT pg_backend_pid()")
    os.kill(server, signal.SIGSTOP)
    try:
        began = time.monotonic()
        with pytest.raises(Unreachable):
            database.run("SELECT 1")
        assert time.monotonic() - began < 8
    finally:
        os.kill(server, signal.SIGCONT)
    assert database.run("SELECT 1") == [(1,)]


def test_a_server_that_was_restarted(database: FleetDatabase, url: str) -> None:
    """Protects the first requests after an outage: connections that were kept are over."""
    with ExitStack() as held:
        for _ in range(3):
            held.enter_context(database.transaction()).execute(text("SELECT 1"))
    other = FleetDatabase(url)
    try:
        ended = other.run(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
            " WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
        )
    finally:
        other.close()
    assert len(ended) >= 3
    assert database.run("SELECT 1") == [(1,)]
    with database.transaction() as connection:
        assert connection.execute(text("SELECT 2")).scalar() == 2


def test_what_waits_is_listed_and_counted(database: FleetDatabase) -> None:
    """Protects who looks at a queue: it has what no host has begun, of whom may see it."""
    member = joined(database, "h1")
    first = place(database, wanted(needs=Needs(10 * GIB)))
    second = place(database, wanted(needs=Needs(10 * GIB), project="q"))
    assert [(one.job, one.host) for one in placements.waiting(database, None, 9)] == [
        (first.job, "h1"), (second.job, "")
    ]  # fmt: skip
    assert [one.job for one in placements.waiting(database, "q", 9)] == [second.job]
    assert [one.job for one in placements.waiting(database, None, 1)] == [first.job]
    assert placements.counted(database) == {"queued": 1, "placed": 1, "claimed": 0}
    (taken,) = placements.claim(database, member)
    assert taken.claimed_at is not None
    assert 0 <= taken.claimed_at - taken.created_at < 60
    assert placements.counted(database) == {"queued": 1, "placed": 0, "claimed": 1}
    assert [one.job for one in placements.waiting(database, None, 9)] == [second.job]
    placements.end(database, member, [taken.job])
    assert placements.counted(database)["claimed"] == 0, "ended ones are not counted"


def test_a_key_finds_a_job_that_was_claimed(database: FleetDatabase) -> None:
    """Protects a request that is repeated: rows come as JSON there, with times as numbers."""
    member = joined(database, "h1")
    asked = wanted(key="once")
    place(database, asked)
    (taken,) = placements.claim(database, member)
    again = place(database, replace(asked, job=str(uuid.uuid4())))
    assert again.job == asked.job
    assert again.claimed_at == pytest.approx(taken.claimed_at, abs=0.001)

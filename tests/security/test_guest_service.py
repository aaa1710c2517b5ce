"""A hostile guest is its own lab's matter: others' leases, slots, rounds and requests continue."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from lab.api.background.periodic import isolated
from lab.config.settings import Settings
from lab.errors import Interrupted, NotReady
from lab.lifecycle.core.context import Context, open_context
from lab.lifecycle.labs import power
from lab.lifecycle.labs.start import start
from lab.lifecycle.labs.up import up
from lab.lifecycle.labs.wait import wait
from lab.lifecycle.nodes import start_slots
from lab.lifecycle.nodes.recovery import Pace
from lab.lifecycle.snapshots import snapshot
from lab.locks.named import lock
from lab.locks.queue import take_free
from lab.progress import Progress
from lab.requests.snapshots import TakeSnapshot
from lab.wait import Deadline, until
from tests.security.guest import EVIL, behaving, infested
from tests.support.lifecycle_world import World, named
from tests.support.serve_world import Site, site


@dataclass
class Host:
    """A service on the fakes; the guests of ``EVIL`` are hostile once ``turned`` is set."""

    site: Site
    turned: threading.Event

    def job(self, kind: str, lab: str) -> dict[str, object]:
        """The latest job of a kind for a lab, once there is one."""

        def find() -> dict[str, object] | None:
            found = self.site.ask("GET", f"/v1/jobs?kind={kind}&lab={lab}").json()["items"]
            return found[0] if found else None

        found = until(find, Deadline.after(10), first=0.02)
        assert found, f"no job {kind} for {lab}"
        return found


@contextmanager
def hosting(root: Path, behaviour: str, sql: str = "silent", **changes: Any) -> Iterator[Host]:
    with ExitStack() as stack:
        port = stack.enter_context(behaving(sql, "tcp:0"))
        path = root / "port"
        stack.enter_context(behaving(behaviour, f"unix:{path}"))
        turned = threading.Event()

        @contextmanager
        def opener(settings: Settings) -> Iterator[Context]:
            with open_context(settings) as ctx:
                yield infested(ctx, path, port, turned)

        here = stack.enter_context(site(root / "home", opener, **changes))
        yield Host(here, turned)


def rotate(host: Host) -> None:
    """Have the sweeper look at schedules at once."""
    host.site.later(60.0)


@pytest.mark.rare
def test_leases_end_whatever_guests_do(short: Path) -> None:
    """Protects the host, and every project: a lab that snapshots itself keeps no lease alive."""
    with hosting(short, "drip") as host:
        here = host.site
        here.make(EVIL, snapshots="hourly:2")
        here.make("other")
        host.turned.set()
        rotate(host)
        job = host.job("snapshot", EVIL)
        here.service.core.store.labs.update("other", expires_at=time.time())
        here.until_gone("other", 10)
        assert here.ask("GET", f"/v1/jobs/{job['id']}").json()["state"] == "running"
        here.service.core.store.labs.update(EVIL, expires_at=time.time())
        here.until_gone(EVIL, 20)
        assert here.ask("GET", f"/v1/jobs/{job['id']}?wait=20").json()["state"] != "running"
        assert here.make("after")["state"] == "ready"


@pytest.mark.rare
def test_a_lab_can_be_deleted_whatever_its_guests_do(short: Path) -> None:
    """Protects who pays for the host: a job that hangs on a guest is no reason for 409."""
    with hosting(short, "silent") as host:
        here = host.site
        here.make(EVIL)
        host.turned.set()
        job = here.ask("POST", f"/v1/labs/{EVIL}/snapshots", {"name": "mine"}).json()
        end = Deadline.after(5)
        while here.ask("GET", f"/v1/jobs/{job['id']}").json()["state"] == "queued":
            assert not end.passed
        began = time.monotonic()
        assert here.ask("DELETE", f"/v1/labs/{EVIL}?wait=30").status_code == 204
        assert time.monotonic() - began < 20
        ended = here.ask("GET", f"/v1/jobs/{job['id']}?wait=20").json()["state"]
        assert ended in ("cancelled", "failed", "succeeded")


@pytest.mark.rare
def test_a_job_that_hangs_is_cancelled(short: Path) -> None:
    """Protects a user after a mistake: a start that waits for a guest ends when it is cancelled."""
    with hosting(short, "drip", "http") as host:
        here = host.site
        here.make(EVIL)
        here.ask("POST", f"/v1/labs/{EVIL}/stop?wait=20")
        host.turned.set()
        job = here.ask("POST", f"/v1/labs/{EVIL}/start").json()
        time.sleep(1.0)
        here.ask("POST", f"/v1/jobs/{job['id']}/cancel")
        assert here.ask("GET", f"/v1/jobs/{job['id']}?wait=10").json()["state"] == "cancelled"


@pytest.mark.parametrize("sql", ["sql-file", "sql-drip"])
def test_others_are_looked_at(short: Path, sql: str) -> None:
    """Protects labs that are used, and the host from those that are not: a round sees all."""
    with hosting(short, "wrong", sql) as host:
        here = host.site
        for name in (EVIL, "later"):  # by name, so that the other comes after it
            here.make(name, nodes=1, idle=60)
        here.service.idle.check()
        host.turned.set()
        here.service.core.store.labs.update("later", active_at=time.time() - 61)
        began = time.monotonic()
        here.service.idle.check()
        assert time.monotonic() - began < 10
        here.until_gone("later")


def test_one_lab_s_error_does_not_end_a_round(caplog: pytest.LogCaptureFixture) -> None:
    """Protects from what nobody thought of: it is logged with the lab, and the next one's turn."""
    seen = []
    for name, error in (("a", ZeroDivisionError("oops")), ("b", NotReady("silent")), ("c", None)):
        with isolated("test", name):
            if error:
                raise error
            seen.append(name)
    assert seen == ["c"]
    logged = [(one.__dict__["lab"], one.levelname) for one in caplog.records]
    assert logged == [("a", "ERROR"), ("b", "WARNING")]


def test_leases_do_not_end_because_the_clock_was_set(short: Path) -> None:
    """Protects all labs from a wrong hardware clock, and from its correction."""
    day, ahead = 86400.0, 0.0
    with site(short, sweep=3600.0) as here:
        here.make("long", ttl=3600)
        sweeper, labs = here.service.sweeper, here.service.core.store.labs
        sweeper.wall = lambda: time.time() + ahead
        sweeper.sweep()
        before = labs.get("long").expires_at or 0.0
        ahead = day
        sweeper.sweep()
        assert labs.get("long").expires_at == pytest.approx(before + day, abs=5)
        sweeper.sweep()
        assert labs.get("long").expires_at == pytest.approx(before + day, abs=5)
        assert here.ask("GET", "/v1/labs/long").json()["state"] == "ready"
        ahead += 60  # a correction
        sweeper.sweep()
        assert labs.get("long").expires_at == pytest.approx(before + day, abs=5)
        ahead = 0.0  # set back by a day, and a heartbeat came since
        labs.update("long", expires_at=time.time() + 600)
        sweeper.sweep()
        assert labs.get("long").expires_at == pytest.approx(time.time() + 600, abs=5)


@pytest.mark.parametrize("why", ["extended", "made"])
def test_guests_of_a_lab_whose_lease_is_still_valid_are_not_ended(short: Path, why: str) -> None:
    """Protects who extends a lease at the last moment, and a long `lab up` with a short lease."""
    with site(short) as here:
        here.make("mine", ttl=3600)
        store = here.service.core.store

        def job() -> str:
            there = here.ask("GET", "/v1/jobs?kind=expire&lab=mine").json()["items"]
            return str(there[0]["id"]) if there else ""

        with here.service.core.contexts.use() as ctx, lock(ctx.home, "lab", "mine"):
            state = "creating" if why == "made" else "ready"
            store.labs.update("mine", state=state, expires_at=time.time())
            found = until(job, Deadline.after(10))
            if why == "extended":
                store.labs.update("mine", expires_at=time.time() + 600)
            ended = here.ask("GET", f"/v1/jobs/{found}?wait=20").json()
            assert ended["state"] in ("failed", "succeeded"), ended
            store.labs.update("mine", state="ready", expires_at=time.time() + 600)
            assert ctx.hypervisor.guests()
        assert here.ask("GET", "/v1/labs/mine").json()["state"] == "ready"


def free_slot(ctx: Context) -> bool:
    with ExitStack() as held:
        taken = [take_free(ctx.home, "boot", 1, held) for _ in range(start_slots.slots_here())]
        return all(taken[:1])


@pytest.mark.parametrize("sql", ["http"])
def test_a_broken_lab_keeps_no_start_slot(short: Path, sql: str) -> None:
    """Protects everybody's `lab up`: a lab whose server is broken boots, and then only waits."""
    world = World(short / "home")
    with behaving(sql, "tcp:0") as port, world.open() as ctx, ThreadPoolExecutor(1) as pool:
        up(ctx, named(EVIL, nodes=1))
        power.stop(ctx, EVIL)
        end = threading.Event()

        def halt() -> None:
            if end.is_set():
                raise Interrupted("the test is over")

        broken = infested(ctx, short / "port", port)
        broken = replace(broken, hypervisor=ctx.hypervisor, progress=Progress(halt=halt))
        pace = Pace(interval=0.1, patience=60, boot=0.3)
        started = pool.submit(start, broken, EVIL, timeout=60, pace=pace)
        assert until(lambda: (ctx.hypervisor.guests() and not free_slot(ctx)),
                     Deadline.after(10), first=0.01)  # fmt: skip
        try:
            assert until(lambda: free_slot(ctx), Deadline.after(20), first=0.05)
            assert not started.done()
        finally:
            end.set()
        assert isinstance(started.exception(30), Interrupted)


def test_a_slot_has_an_end(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects from guests that say nothing at all: a slot is not theirs forever."""
    monkeypatch.setattr(start_slots, "LONGEST", {"boot": 0.3, "restore": 0.3})
    with World(short).open() as ctx:
        with start_slots.start_slot(ctx):
            assert not free_slot(ctx) or start_slots.slots_here() > 1
            assert until(lambda: free_slot(ctx), Deadline.after(10), first=0.05)
        with start_slots.start_slot(ctx) as give_back:
            give_back()
            assert free_slot(ctx)
            give_back()


def test_a_snapshot_of_a_hostile_lab_has_an_end(short: Path) -> None:
    """Protects `lab snapshot take`: answers of a guest are not needed, nor waited for."""
    world = World(short / "home")
    with behaving("endless", f"unix:{short}/port"), world.open() as ctx:
        up(ctx, named(EVIL, nodes=2))
        bad = infested(ctx, short / "port", 0)
        began = time.monotonic()
        assert snapshot.take(bad, TakeSnapshot(lab=EVIL, name="mine")).name == "mine"
        assert time.monotonic() - began < 10


def test_a_port_of_a_node_that_does_not_run_is_not_asked(short: Path) -> None:
    """Protects the password: another user of the host may listen there."""
    from lab.errors import LabError
    from lab.lifecycle.labs.query import query
    from lab.lifecycle.nodes.inspect import lab, labs, status
    from lab.lifecycle.service.activity import activity
    from lab.observe.ways import Rows

    asked: list[int] = []

    with World(short).open() as ctx:
        up(ctx, named("shop", nodes=1))

        def sql(*_: object, **__: object) -> list[Rows]:
            asked.append(1)
            raise NotReady("a stranger")

        watched = replace(ctx, sql_all=sql)
        lab(watched, "shop")
        assert asked
        asked.clear()
        power.stop(ctx, "shop", node="n1", force=True)
        for recorded in ("ready", "stopped"):
            ctx.store.labs.update("shop", state=recorded)
            lab(watched, "shop")
            labs(watched)
            status(watched, "shop")
            for act in (
                lambda: wait(watched, "shop", timeout=0.5),
                lambda: activity(watched, "shop", patience=1.0),
                lambda: query(watched, "shop", None, "SELECT 1"),
            ):
                with pytest.raises(LabError):
                    act()
    assert asked == []

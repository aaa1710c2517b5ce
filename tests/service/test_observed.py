"""One observer for all who read: what a lab costs does not depend on how many look at it."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import cast

import httpx
import pytest

from lab.api.core.observing import Observing
from lab.api.http.auth import Caller
from lab.api.routes.labs import seen
from lab.config.settings import Settings
from lab.errors import HostUnfit, NotFound
from lab.hypervisor import Guest, Hypervisor, Unanswered
from lab.lifecycle.core.context import Context, open_context
from lab.lifecycle.service import token as tokens
from lab.locks.named import lock
from lab.names import GuestName, Owner
from lab.observe.account import Account
from lab.observe.sql import KeptConnections
from lab.observe.ways import Rows
from lab.state.records import LabWithNodes
from lab.units import parse_time
from lab.wait import Deadline, until
from tests.support.asking import Servers
from tests.support.serve_world import Site, site

LATE = 2.0
"""Seconds for which a server is waited for that does not answer."""


@pytest.fixture(scope="module")
def servers() -> Servers:
    return Servers(LATE)


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory, servers: Servers) -> Iterator[Site]:
    with site(tmp_path_factory.mktemp("observed"), servers.opener) as found:
        yield found


@pytest.fixture(autouse=True)
def clean(here: Site, servers: Servers) -> Iterator[None]:
    yield
    servers.silent.clear()
    for lab in here.ask("GET", "/v1/labs").json()["items"]:
        here.ask("DELETE", f"/v1/labs/{lab['name']}?wait=30&force=true")


def seconds(here: Site, path: str, token: str) -> float:
    began = time.monotonic()
    assert here.ask("GET", path, token=token).status_code == 200
    return time.monotonic() - began


def test_answers_say_when_they_were_observed(here: Site) -> None:
    """Protects readers from taking what was for what is."""
    before = time.time()
    made = here.make("shop")
    assert made["observed_at"] is not None
    listed = here.ask("GET", "/v1/labs").json()["items"][0]
    assert listed["nodes"][0]["observed_at"] == listed["observed_at"]
    known = here.service.core.observing.seen("shop")
    assert known is not None
    assert (known.view.observed_at or 0.0) >= before
    nodes = here.ask("GET", "/v1/labs/shop/nodes").json()
    assert [node["state"] for node in nodes] == ["ready", "ready"]


def test_a_verb_s_answer_is_followed_by_what_it_did(here: Site) -> None:
    """Protects scripts: stop, then look."""
    here.make("shop")
    for verb, state in (("stop", "stopped"), ("start", "ready"), ("nodes/n2/kill", "not-primary")):
        assert here.ask("POST", f"/v1/labs/shop/{verb}?wait=60").status_code == 200
        assert here.ask("GET", "/v1/labs/shop").json()["state"] == state
        assert here.ask("GET", "/v1/labs").json()["items"][0]["state"] == state


def test_many_readers_ask_a_lab_s_servers_no_more_than_one(here: Site, servers: Servers) -> None:
    """Protects guests: 20 programs that poll, and 50 open pages, starved them."""
    shop = here.make("shop", token=here.token("reader", scope="use"))
    port = shop["nodes"][0]["sql_port"]
    token = here.token("poller", scope="read")
    servers.asked.clear()
    began = time.monotonic()
    with ThreadPoolExecutor(20) as pool:
        paths = ["/v1/labs", "/v1/labs/shop"] * 100
        list(pool.map(lambda path: here.ask("GET", path, token=token), paths))
    assert servers.asked[port] <= 3 + (time.monotonic() - began)  # one a second


def test_a_silent_lab_of_others_delays_no_list(here: Site, servers: Servers) -> None:
    """Protects tenants from each other: what another project's guests do is not asked for them."""
    alpha, beta = here.token("a", project="alpha"), here.token("b", project="beta")
    evil = here.make("evil", token=alpha)
    here.make("good", token=beta)
    servers.silence(evil)
    time.sleep(1.1)
    assert min(seconds(here, "/v1/labs", beta) for _ in range(3)) < LATE / 4
    # Its own project waits for it once, then gets what is known.
    here.ask("GET", "/v1/labs", token=alpha)
    assert min(seconds(here, "/v1/labs", alpha) for _ in range(3)) < LATE / 4


def test_labs_that_come_and_go_delay_no_list(here: Site) -> None:
    """Protects who polls: each creation and removal was a wait for what nobody looked at."""
    here.make("shop")
    over, took = threading.Event(), list[float]()

    def poll() -> None:
        with httpx.Client(base_url=here.client.base_url, timeout=60) as client:
            while not over.is_set():
                began = time.monotonic()
                client.get("/v1/labs", headers={"Authorization": f"Bearer {here.admin}"})
                took.append(time.monotonic() - began)

    with ThreadPoolExecutor(8) as pool:
        polled = [pool.submit(poll) for _ in range(8)]
        try:
            for number in range(6):
                here.make(f"brief{number}", nodes=1, blueprint="single")
                here.ask("DELETE", f"/v1/labs/brief{number}?wait=30")
        finally:
            over.set()
        for one in polled:
            one.result()
    assert max(took) < here.service.core.settings.answer_timeout


def test_a_lab_that_was_replaced_meanwhile_is_not_shown(here: Site) -> None:
    """Protects passwords: its name may be of another project's lab once it was looked at."""
    token = here.token("former", project="alpha")
    here.make("shop", token=token)
    core = here.service.core

    class Replaced(Observing):
        def fresh(self, labs: Iterable[LabWithNodes]) -> bool:
            found = super().fresh(labs)
            core.store.labs.update("shop", project="beta")
            return found

    observing = Replaced(replace(core.settings, answer_timeout=0.0), core.store, core.contexts)
    with pytest.raises(NotFound):
        seen(replace(core, observing=observing), Caller(tokens.check(core.store, token)), "shop")


def test_what_is_left_of_a_lab_is_listed_until_it_is_removed(here: Site) -> None:
    """Protects lists from showing it seconds later, and instead of a new lab of the name."""

    def states() -> list[str]:
        return [lab["state"] for lab in here.ask("GET", "/v1/labs").json()["items"]]

    here.make("shop")
    store = here.service.core.store
    with store.transaction():  # the sweeper takes one that still has resources
        store.labs.remove("shop")
        store.resources.all_gone(Owner("lab", "shop"))
    here.service.core.observing._lost = (float("-inf"), {})  # it is looked up now
    assert states() == ["unrecorded"]
    answer = here.ask("DELETE", "/v1/labs/shop?wait=30&force=true")
    assert answer.status_code == 204, answer.text
    assert states() == []
    here.make("shop")
    assert states() == ["ready"]


@pytest.mark.rare
def test_only_the_labs_of_a_page_are_watched(here: Site) -> None:
    """Protects a host with many labs from the readers of a few."""
    for name in ("a1", "a2", "a3"):
        here.make(name, nodes=1, blueprint="single")
    observer = here.service.core.observing.observer
    time.sleep(3.2)  # nobody reads them any more
    page = here.ask("GET", "/v1/labs?limit=1").json()
    assert [lab["name"] for lab in page["items"]] == ["a1"]
    assert page["next"] == "a1"
    assert observer.watched() == {"a1"}


class Counted(KeptConnections):
    """Connections to the fakes' servers; what is done with them is counted."""

    def __init__(self, ctx: Context, done: Counter[str]) -> None:
        super().__init__()
        self._ctx, self._done = ctx, done

    def __call__(
        self,
        account: Account,
        port: int,
        statements: Sequence[str],
        *,
        timeout: float,
        whole: bool = False,
    ) -> list[Rows]:
        self._done["asked"] += 1
        return self._ctx.sql_all(account, port, statements, timeout=timeout, whole=whole)

    def close(self) -> None:
        self._done["closed"] += 1
        super().close()


def test_connections_are_closed_while_a_job_works_on_a_lab(tmp_path: Path) -> None:
    """Protects captures, promotions and removals: a session of ours is in none of them."""
    done: Counter[str] = Counter()

    @contextmanager
    def opener(settings: Settings) -> Iterator[Context]:
        with open_context(settings) as ctx:
            yield replace(ctx, kept=lambda: Counted(ctx, done))

    with site(tmp_path, opener) as here:
        here.make("shop")
        assert here.ask("GET", "/v1/labs/shop").json()["state"] == "ready"
        before, closed = done["asked"], done["closed"]
        assert before
        with here.service.core.observing.working("shop"):
            assert done["closed"] == closed + 1
            here.service.core.observing.observer.changed("shop")
            assert here.ask("GET", "/v1/labs/shop").json()["state"] == "ready"
            assert done["asked"] == before  # each question on a connection of its own
        assert here.ask("GET", "/v1/labs/shop").json()["state"] == "ready"
        assert done["asked"] > before
        with here.service.core.contexts.use() as ctx, lock(ctx.home, "lab", "shop"):
            before = done["asked"]  # as of `lab snapshot` on the host
            here.service.core.observing.observer.changed("shop")
            assert here.ask("GET", "/v1/labs/shop").json()["state"] == "ready"
            assert done["asked"] == before
        here.service.core.observing.observer.changed("shop")
        assert here.ask("GET", "/v1/labs/shop").json()["state"] == "ready"
        assert done["asked"] > before
        closed = done["closed"]
        assert here.ask("DELETE", "/v1/labs/shop?wait=30").status_code == 204
        assert until(lambda: done["closed"] > closed, Deadline.after(10))


def test_labs_are_shown_while_the_hypervisor_is_silent(tmp_path: Path) -> None:
    """Protects from a list that fails, or calls labs stopped, whose servers answer."""
    gone = threading.Event()
    lent: list[Context] = []

    class Leaving:
        """A hypervisor whose connections break when it goes, and stay broken."""

        def __init__(self, there: Hypervisor) -> None:
            self.there, self.broken = there, False

        def __getattr__(self, name: str) -> object:
            self.broken = self.broken or gone.is_set()
            if self.broken:
                raise HostUnfit("listing guests: libvirt reports an error")
            return getattr(self.there, name)

    @contextmanager
    def opener(settings: Settings) -> Iterator[Context]:
        if gone.is_set():
            raise Unanswered("libvirt does not answer")
        with open_context(settings) as ctx:
            lent.append(ctx)
            yield replace(ctx, hypervisor=cast("Hypervisor", Leaving(ctx.hypervisor)))

    with site(tmp_path, opener) as here:
        lab = here.make("shop")
        observer = here.service.core.observing.observer
        gone.set()
        for _ in range(3):  # also when nothing can be opened any more
            observer.changed("shop")
            (shown,) = here.ask("GET", "/v1/labs").json()["items"]
            assert (shown["state"], shown["name"]) == ("ready", lab["name"])
        opened = len(lent)
        gone.clear()
        for _ in range(2):
            observer.changed("shop")
            assert here.ask("GET", "/v1/labs/shop").json()["state"] == "ready"
        assert len(lent) > opened  # a broken connection is not lent again
        assert here.ask("DELETE", "/v1/labs/shop?wait=30").status_code == 204


def test_labs_are_shown_while_the_hypervisor_hangs(tmp_path: Path) -> None:
    """Protects from an observer that waits for libvirt without end: its daemon may be stopped."""
    hangs, over = threading.Event(), threading.Event()

    class Hanging:
        """A hypervisor that answers nothing while ``hangs`` is set."""

        def __init__(self, there: Hypervisor) -> None:
            self.there = there

        def __getattr__(self, name: str) -> object:
            return getattr(self.there, name)

        def guests(self) -> Mapping[GuestName, Guest]:
            if hangs.is_set():
                over.wait(60)
            return self.there.guests()

    @contextmanager
    def opener(settings: Settings) -> Iterator[Context]:
        with open_context(replace(settings, answer_timeout=1.0)) as ctx:
            yield replace(ctx, hypervisor=cast("Hypervisor", Hanging(ctx.hypervisor)))

    with site(tmp_path, opener) as here:
        here.make("shop")
        observer = here.service.core.observing.observer
        hangs.set()
        try:
            before = threading.active_count()
            for _ in range(4):
                observer.changed("shop")
                began = time.time()
                assert until(
                    lambda began=began: _later(here, began),  # type: ignore[misc]
                    Deadline.after(20),
                )
                (shown,) = here.ask("GET", "/v1/labs").json()["items"]
                assert (shown["name"], shown["state"]) == ("shop", "ready")
            assert threading.active_count() < before + 12
        finally:
            hangs.clear()
            over.set()
        observer.changed("shop")
        assert here.ask("GET", "/v1/labs/shop").json()["state"] == "ready"


def _later(here: Site, began: float) -> bool:
    """Whether the lab was observed after that time."""
    at = here.ask("GET", "/v1/labs/shop").json()["observed_at"]
    return at is not None and parse_time(at) >= began

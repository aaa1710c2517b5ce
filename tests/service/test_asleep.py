"""Labs that sleep while nobody uses them: who puts them to sleep, and what wakes them."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from lab.client import Client
from lab.lifecycle.nodes.connection import account_of
from lab.lifecycle.service import token as tokens
from lab.names import GuestName
from lab.requests.labs import SleepLab
from lab.requests.snapshots import TakeSnapshot
from lab.requests.tokens import CreateToken
from lab.state.records import LabRecord
from lab.wait import Deadline, until
from tests.support.serve_world import Site, site


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site(tmp_path_factory.mktemp("asleep")) as found:
        yield found


def record(here: Site, name: str) -> LabRecord:
    return here.service.core.store.labs.get(name)


def states(here: Site, name: str) -> set[str]:
    """Of its guests."""
    with here.service.core.contexts.use() as ctx:
        guests = ctx.hypervisor.guests()
        return {guests[GuestName(node.guest)].state for node in ctx.store.nodes.of(name)}


def shown(here: Site, name: str) -> str:
    return str(here.ask("GET", f"/v1/labs/{name}").json()["state"])


def unused(here: Site, name: str, seconds: float) -> None:
    """Let it be so long since the lab was seen used, and look."""
    here.service.idle.check()  # what its servers have counted so far
    here.service.core.store.labs.update(name, active_at=time.time() - seconds)
    here.service.idle.check()


def use(here: Site, name: str) -> None:
    """What a user of the lab does."""
    with here.service.core.contexts.use() as ctx:
        found = ctx.store.lab_with_nodes(name)
        account = account_of(ctx.home, found.lab)
        ctx.sql(account, found.nodes[0].sql_port, "SELECT 1", timeout=5.0)


@pytest.fixture
def ports(here: Site) -> Iterator[Listening]:
    with ExitStack() as stack:
        yield Listening(here, stack)


class Listening:
    """Listens at the ports of labs, where QEMU would: a fake guest has none."""

    def __init__(self, here: Site, stack: ExitStack) -> None:
        self._here, self._stack = here, stack

    def of(self, name: str) -> list[int]:
        """The SQL ports of a lab, whose ports are listened at from now on."""
        nodes = self._here.service.core.store.nodes.of(name)
        for node in nodes:
            for port in node.all_ports.values():
                server = socket.create_server(("127.0.0.1", port), reuse_port=False)
                self._stack.enter_context(server)
        return [node.sql_port for node in nodes]


def until_awake(here: Site, name: str) -> None:
    awake = lambda: record(here, name).asleep_at is None or None  # noqa: E731
    assert until(awake, Deadline.after(10), most=0.02), "nobody woke it"
    assert states(here, name) == {"running"}
    assert until(lambda: shown(here, name) == "ready" or None, Deadline.after(10))


# The test with services of its own comes first: a process has one at a time.
def test_who_connected_while_the_service_was_away(tmp_path: Path) -> None:
    """Protects a client from waiting for ever: a service that starts sees who came before."""
    with site(tmp_path) as before:
        before.make("away")
        assert before.ask("POST", "/v1/labs/away/sleep?wait=20").json()["state"] == "succeeded"
    with ExitStack() as stack, site(tmp_path) as after:
        (first, _) = Listening(after, stack).of("away")
        time.sleep(1.2)
        assert states(after, "away") == {"paused"}
        stack.enter_context(socket.create_connection(("127.0.0.1", first)))
        until_awake(after, "away")


def test_a_lab_that_is_not_used_sleeps(here: Site, ports: Listening) -> None:
    made = here.make("quiet", asleep_after=60)
    ports.of("quiet")
    assert made["asleep_after"] == 60
    unused(here, "quiet", 59)
    assert states(here, "quiet") == {"running"}
    use(here, "quiet")
    unused(here, "quiet", 61)
    assert states(here, "quiet") == {"paused"}, "what was used before does not count"
    found = here.ask("GET", "/v1/labs/quiet").json()
    assert found["state"] == "asleep"
    assert found["asleep_at"] is not None
    assert {node["state"] for node in found["nodes"]} == {"paused"}
    here.service.idle.check()
    assert states(here, "quiet") == {"paused"}
    assert here.ask("GET", "/v1/labs").status_code == 200
    assert states(here, "quiet") == {"paused"}, "who looks does not wake it"


def test_a_use_since_the_last_look_keeps_it_awake(here: Site, ports: Listening) -> None:
    here.make("used", asleep_after=60)
    ports.of("used")
    here.service.idle.check()
    here.service.core.store.labs.update("used", active_at=time.time() - 61)
    use(here, "used")
    here.service.idle.check()
    assert states(here, "used") == {"running"}


def test_who_connects_or_sends_wakes_it(here: Site, ports: Listening) -> None:
    """The connection that was open before is open after, and what came on it wakes the lab."""
    here.make("woken", asleep_after=60)
    first, second = ports.of("woken")
    with socket.create_connection(("127.0.0.1", first)) as old:
        time.sleep(0.05)
        unused(here, "woken", 61)
        assert states(here, "woken") == {"paused"}
        time.sleep(1.5)  # as long as the service takes to notice, and longer
        assert states(here, "woken") == {"paused"}, "an open connection is no use"
        began = time.monotonic()
        with socket.create_connection(("127.0.0.1", second)):
            until_awake(here, "woken")
        assert time.monotonic() - began < 5
        unused(here, "woken", 61)
        assert states(here, "woken") == {"paused"}
        time.sleep(1.2)
        old.send(b"x")
        until_awake(here, "woken")
        assert record(here, "woken").active_at == pytest.approx(time.time(), abs=10)


def test_by_hand(here: Site) -> None:
    """A job each; a verb that needs the nodes wakes it, and says so by the lab's state."""
    here.make("hand")
    for action, state in (("sleep", "asleep"), ("sleep", "asleep"), ("wake", "ready")):
        done = here.ask("POST", f"/v1/labs/hand/{action}?wait=20").json()
        assert (done["kind"], done["state"]) == (action, "succeeded"), done
        assert shown(here, "hand") == state
    assert here.ask("POST", "/v1/labs/hand/nodes/n1/sleep").status_code == 422
    with Client(str(here.client.base_url), here.admin) as client:
        assert client.power("sleep", "hand").state == "asleep"
        client.run(TakeSnapshot(lab="hand", name="later"))
        assert shown(here, "hand") == "ready"
        assert client.run(SleepLab(lab="hand")).asleep_at is not None
    here.ask("DELETE", "/v1/labs/hand?wait=20")


def test_what_says_when(here: Site) -> None:
    """The lab's own word, else the token's, else the service's; 0 is never."""
    asked = CreateToken(name="sleepy", project="shop", asleep_after=120.0)
    mine = tokens.create(here.service.core.store, asked).text
    here.make("own", asleep_after=0, token=mine)
    here.make("tokens", token=mine)
    here.make("service", token=here.token("plain"))
    after = here.service.sleeper.after
    here.change(asleep_after=300.0)
    try:
        assert [after(record(here, name)) for name in ("own", "tokens", "service")] == [0, 120, 300]
        changed = here.ask("PATCH", "/v1/labs/own", {"asleep_after": 90})
        assert (changed.status_code, after(record(here, "own"))) == (200, 90)
        assert here.ask("PATCH", "/v1/labs/own", {"asleep_after": -1}).status_code == 422
    finally:
        here.change(asleep_after=0.0)
    for name in ("own", "tokens", "service"):
        here.ask("DELETE", f"/v1/labs/{name}?wait=20")


def test_an_open_session_of_ssh_keeps_it_awake(here: Site, ports: Listening) -> None:
    """Protects a program that runs in a node, and asks no server."""
    here.make("shell", asleep_after=60)
    ports.of("shell")
    port = here.service.core.store.nodes.of("shell")[1].ssh_port
    with socket.create_connection(("127.0.0.1", port)):
        unused(here, "shell", 61)
        assert states(here, "shell") == {"running"}
    here.service.core.store.labs.update("shell", active_at=time.time() - 61)
    here.service.idle.check()
    assert states(here, "shell") == {"paused"}


def test_ports_of_another_network(here: Site) -> None:
    """Protects clients that nobody would see: a lab whose ports are elsewhere does not sleep."""
    here.make("elsewhere", asleep_after=60)
    unused(here, "elsewhere", 61)
    assert states(here, "elsewhere") == {"running"}


def test_leases_end_while_labs_sleep(here: Site, ports: Listening) -> None:
    here.make("ends", asleep_after=60, idle=120)
    ports.of("ends")
    unused(here, "ends", 61)
    assert states(here, "ends") == {"paused"}
    here.service.core.store.labs.update("ends", active_at=time.time() - 121)
    here.service.idle.check()
    here.until_gone("ends")


def test_what_it_counts(here: Site) -> None:
    """A lab that is asleep takes memory and no processors, of the host's and of a quota."""
    core = here.service.core
    token = here.token("few", project="few", cpus=2)
    here.make("first", token=token)
    before = core.admission.used()
    body = {"blueprint": "galera", "nodes": 2, "memory": 384 << 20, "name": "second"}
    assert here.ask("POST", "/v1/labs", body, token=token).status_code == 429
    assert here.ask("POST", "/v1/labs/first/sleep?wait=20").json()["state"] == "succeeded"
    after = core.admission.used()
    assert (before.memory, before.cpus - 2) == (after.memory, after.cpus)
    here.make("second", token=token)
    assert here.ask("POST", "/v1/labs/first/wake?wait=20").json()["state"] == "succeeded"
    for name in ("first", "second"):
        here.ask("DELETE", f"/v1/labs/{name}?wait=20")

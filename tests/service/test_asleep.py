"""Labs that sleep while nobody uses them: who puts them to sleep, and what wakes them."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Set
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from lab.cli.backend.remote import RemoteSession
from lab.client import Client
from lab.host import sockets
from lab.lifecycle.nodes.connection import account_of
from lab.lifecycle.service import token as tokens
from lab.locks.named import lock
from lab.names import GuestName
from lab.observe.ways import Rows
from lab.requests.labs import SleepLab
from lab.requests.snapshots import TakeSnapshot
from lab.requests.tokens import CreateToken
from lab.state.records import LabRecord
from lab.wait import Deadline, until
from tests.support.page_visit import visit
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


@contextmanager
def client_process(port: int) -> Iterator[Callable[[], None]]:
    """A client in another process than the service's; what is yielded has it send a byte."""
    code = "import socket, sys\ns = socket.create_connection(('127.0.0.1', int(sys.argv[1])))\n"
    code += "print(flush=True)\nfor _ in sys.stdin: s.send(b'x')"
    argv = [sys.executable, "-c", code, str(port)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as client:
        asked, said = client.stdin, client.stdout
        assert asked is not None
        assert said is not None

        def send() -> None:
            asked.write("\n")
            asked.flush()

        said.readline()
        try:
            yield send
        finally:
            client.kill()


def until_awake(here: Site, name: str) -> None:
    awake = lambda: record(here, name).asleep_at is None  # noqa: E731
    assert until(awake, Deadline.after(10), most=0.02), "nobody woke it"
    assert states(here, name) == {"running"}
    assert until(lambda: shown(here, name) == "ready", Deadline.after(10))


# The test with services of its own comes first: a process has one at a time.
def test_who_connected_while_the_service_was_away(tmp_path: Path) -> None:
    """Protects a client from waiting without end: a service that starts sees who came before."""
    with ExitStack() as stack:
        with site(tmp_path) as before:
            before.make("away")
            first, second = Listening(before, stack).of("away")
            stack.enter_context(client_process(second))
            time.sleep(0.1)
            assert before.ask("POST", "/v1/labs/away/sleep?wait=20").json()["state"] == "succeeded"
        stack.enter_context(client_process(first))
        with site(tmp_path) as after:
            until_awake(after, "away")
            assert after.ask("POST", "/v1/labs/away/sleep?wait=20").json()["state"] == "succeeded"
        with site(tmp_path) as again:
            time.sleep(1.5)
            assert states(again, "away") == {"paused"}, "those connections are older"


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
    with client_process(first) as send:
        time.sleep(0.05)
        unused(here, "woken", 61)
        assert states(here, "woken") == {"paused"}
        time.sleep(1.5)  # as long as the service takes to notice, and longer
        assert states(here, "woken") == {"paused"}, "an open connection is no use"
        began = time.monotonic()
        with client_process(second):
            until_awake(here, "woken")
        assert time.monotonic() - began < 5
        assert here.ask("POST", "/v1/labs/woken/sleep?wait=20").json()["state"] == "succeeded"
        time.sleep(1.2)
        send()
        until_awake(here, "woken")


def test_what_nobody_comes_to_costs_little(
    here: Site, ports: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects a host with labs that are asleep: a list of connections costs twenty looks."""
    arrived, looks, lists = [(1, 1)], list[int](), list[int]()
    listed = sockets.connections

    def connections(of: Set[int]) -> list[sockets.Connection]:
        lists.append(1)
        return listed(of)

    def arrivals() -> tuple[int, int]:
        looks.append(1)
        return arrived[0]

    def looked(times: int) -> int:
        """Lists while it looked that often."""
        monkeypatch.setattr(sockets, "connections", connections)
        monkeypatch.setattr(sockets, "arrivals", arrivals)
        before, first = len(lists), len(looks)
        assert until(lambda: len(looks) >= first + times, Deadline.after(60), most=0.02)
        return len(lists) - before

    here.make("alone")
    first, _ = ports.of("alone")
    assert here.ask("POST", "/v1/labs/alone/sleep?wait=20").json()["state"] == "succeeded"
    assert looked(20) < 15
    arrived[0] = (1, 2)  # data on other connections: there is none to this lab
    assert looked(20) < 15
    arrived[0] = (2, 2)
    with client_process(first):
        until_awake(here, "alone")


def test_by_hand(here: Site, ports: Listening) -> None:
    """A job each; a verb that needs the nodes wakes it, and says so by the lab's state."""
    here.make("hand")
    refused = here.ask("POST", "/v1/labs/hand/sleep?wait=20").json()
    assert "not of the service's network" in refused["detail"], refused
    ports.of("hand")
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
        assert client.wait("hand", timeout=20).state == "ready"
        assert client.run(SleepLab(lab="hand")).asleep_at is not None
        # Nothing answers at the port of a fake; and the service is this process.
        remote = RemoteSession(client, lambda _: None, lambda *_, **__: Rows((), (), 0))
        remote.query("hand", None, "SELECT 1", 2.0)
    here.ask("DELETE", "/v1/labs/hand?wait=20")


def test_what_says_when(here: Site) -> None:
    """The lab's own word, else the token's, else the service's; 0 is never."""
    asked = CreateToken(name="sleepy", project="shop", asleep_after=120.0)
    mine = tokens.create(here.service.core.store, asked).text
    here.make("own", asleep_after=0, token=mine)
    here.make("tokens", token=mine)
    here.make("service", token=here.token("plain"))
    branch = here.ask("POST", "/v1/labs/own/branches?wait=60", {"name": "tried"}, token=mine)
    assert branch.status_code == 201, branch.text
    after = here.service.sleeper.after
    here.change(asleep_after=300.0)
    try:
        found = [after(record(here, name)) for name in ("own", "tokens", "service", "tried")]
        assert found == [0, 120, 300, 120]
        changed = here.ask("PATCH", "/v1/labs/own", {"asleep_after": 90})
        assert (changed.status_code, after(record(here, "own"))) == (200, 90)
        assert here.ask("PATCH", "/v1/labs/own", {"asleep_after": -1}).status_code == 422
    finally:
        here.change(asleep_after=0.0)
    for name in ("tried", "own", "tokens", "service"):
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


def test_what_it_counts(here: Site, ports: Listening) -> None:
    """A lab that is asleep takes memory and no processors, of the host's and of a quota."""
    core = here.service.core
    token = here.token("few", project="few", cpus=2)
    here.make("first", token=token)
    ports.of("first")
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


def test_what_comes_while_it_is_put_to_sleep_wakes_it(here: Site, ports: Listening) -> None:
    """Protects a client from waiting in vain: it sent after the counters were read."""
    here.make("late", asleep_after=60)
    first, _ = ports.of("late")
    here.service.idle.check()
    since = time.time()
    with client_process(first) as send:
        send()
        time.sleep(0.3)
        assert here.service.sleeper.sleep(record(here, "late"), since)
        until_awake(here, "late")
        assert not here.service.sleeper.sleep(record(here, "late"), time.time()), "too soon"


def test_a_lab_that_was_changed_meanwhile_does_not_sleep(here: Site, ports: Listening) -> None:
    here.make("changed", asleep_after=60)
    ports.of("changed")
    looked = record(here, "changed")
    assert here.ask("PATCH", "/v1/labs/changed", {"asleep_after": 0}).status_code == 200
    assert not here.service.sleeper.sleep(looked, time.time())
    assert states(here, "changed") == {"running"}


def test_connections_of_the_service_do_not_wake_it(here: Site, ports: Listening) -> None:
    """Protects sleep from the observer: its last question may have come just before the pause."""
    here.make("ours", asleep_after=60)
    first, _ = ports.of("ours")
    with socket.create_connection(("127.0.0.1", first)) as ours:  # the service is this process
        assert here.ask("POST", "/v1/labs/ours/sleep?wait=20").json()["state"] == "succeeded"
        ours.send(b"x")
        time.sleep(1.5)
        assert states(here, "ours") == {"paused"}
        with client_process(first):
            until_awake(here, "ours")


def test_one_that_cannot_be_woken_is_tried_more_and_more_seldom(
    here: Site, ports: Listening, caplog: pytest.LogCaptureFixture
) -> None:
    """Protects the host from a loop; and the lab, which is woken once that is possible."""
    here.make("stuck", asleep_after=60)
    first, _ = ports.of("stuck")
    assert here.ask("POST", "/v1/labs/stuck/sleep?wait=20").json()["state"] == "succeeded"
    with here.service.core.contexts.use() as ctx, caplog.at_level("WARNING", "lab"):
        guest = GuestName(ctx.store.nodes.of("stuck")[0].guest)
        with lock(ctx.home, "lab", "stuck"), client_process(first):
            time.sleep(3)
            assert states(here, "stuck") == {"paused"}
            threads = [one.name for one in threading.enumerate() if one.name == "lab-wake-stuck"]
            assert len(threads) == 1
        until_awake(here, "stuck")
        assert ctx.hypervisor.guests()[guest].state == "running"


def test_what_a_killed_command_left_is_mended(here: Site, ports: Listening) -> None:
    here.make("half", asleep_after=60)
    ports.of("half")
    here.service.core.store.labs.update("half", asleep_at=time.time())
    here.service.idle.check()
    assert record(here, "half").asleep_at is None


def test_the_page(here: Site, ports: Listening) -> None:
    """Protects what buttons there are: a lab that is ready sleeps, one that is asleep wakes."""
    here.make("paged", asleep_after=90)
    ports.of("paged")
    with visit(here) as client:
        page = client.get("/labs/paged").text
        assert 'id="all-sleep"' in page
        assert 'id="all-wake"' not in page
        assert "Sleeps when unused for" in page
        assert client.post("/labs/paged/power/sleep").headers["location"] == "/labs/paged"
        assert until(lambda: shown(here, "paged") == "asleep", Deadline.after(20))
        page = client.get("/labs/paged").text
        assert 'id="all-wake"' in page
        assert "Asleep since" in page
        assert client.post("/labs/paged/nodes/n1/power/sleep").status_code == 404
        client.post("/labs/paged/power/wake")
        until_awake(here, "paged")

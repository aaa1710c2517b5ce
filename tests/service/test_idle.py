"""Labs that nobody uses: their leases end, and only theirs."""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lab.blueprints import Release
from lab.blueprints.replication import REPLICATION, question_to_replica
from lab.config.settings import Settings
from lab.errors import NotReady
from lab.lifecycle.core.context import Context, open_context
from lab.lifecycle.nodes.connection import account_of
from lab.lifecycle.nodes.inspect import status
from lab.lifecycle.service.activity import activity, count_of, is_busy
from lab.lifecycle.snapshots import snapshot
from lab.observe.ask import LOOK
from lab.observe.ways import Rows
from lab.requests.snapshots import TakeSnapshot
from lab.state.records import LabRecord
from lab.units import parse_time
from tests.support.asking import asking
from tests.support.mariadb_server import NoServer, server
from tests.support.serve_world import BODY, Site, site


# The tests with services of their own come first: a process has one at a time.
@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site(tmp_path_factory.mktemp("idle")) as found:
        yield found


def record(here: Site, name: str) -> LabRecord:
    return here.service.core.store.labs.get(name)


def ask(here: Site, name: str, statement: str, node: int = 0) -> None:
    """What a user of the lab does."""
    with here.service.core.contexts.use() as ctx:
        found = ctx.store.lab_with_nodes(name)
        ctx.sql(account_of(ctx.home, found.lab), found.nodes[node].sql_port, statement, timeout=5.0)


def age(here: Site, name: str, seconds: float) -> None:
    """Let it be so long since the lab was seen used."""
    here.service.core.store.labs.update(name, active_at=time.time() - seconds)


@pytest.mark.rare
def test_a_lab_is_as_idle_after_a_restart(tmp_path: Path) -> None:
    """Protects from services that are restarted often: what was counted is kept."""
    root = tmp_path
    with site(root) as before:
        before.make("rests", idle=60)
        before.service.idle.check()
        age(before, "rests", 61)
    with site(root) as after:
        after.service.idle.check()
        after.until_gone("rests")


@pytest.mark.rare
def test_the_webhook_is_told_before(tmp_path: Path) -> None:
    """Protects users who would have continued: one warning is sent, while there is time."""
    heard: list[dict[str, object]] = []
    start = time.time()

    class Ear(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            heard.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Ear)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    secret = tmp_path / "secret"
    secret.write_text("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    url = f"http://127.0.0.1:{server.server_address[1]}/"
    try:
        with site(tmp_path / "home", webhook=url, webhook_secret=str(secret)) as here:
            here.make("warned", idle=600)
            for ago in (0, 250, 310, 310):  # sent after half of it at the earliest
                here.service.idle.check()
                if ago:
                    here.service.core.store.labs.update("warned", active_at=start - ago)
            here.service.idle.check()
            end = time.monotonic() + 10
            while not (said := [one for one in heard if one["event"] == "expiring"]):
                assert time.monotonic() < end
                time.sleep(0.02)
    finally:
        server.shutdown()
        server.server_close()
    assert [(one["lab"], one["why"]) for one in said] == [("warned", "idle")]
    assert parse_time(str(said[0]["expires_at"])) == pytest.approx(start - 310 + 600, abs=1e-6)


@pytest.mark.rare
def test_silent_labs_are_asked_at_the_same_time(tmp_path: Path) -> None:
    """Protects the watch of all labs from a few whose nodes say nothing: each costs seconds."""
    silent = threading.Event()
    asked: list[int] = []

    @contextmanager
    def opener(settings: Settings) -> Iterator[Context]:
        with open_context(settings) as ctx:

            def keep_silent(port: int, timeout: float) -> None:
                if silent.is_set():
                    asked.append(port)
                    time.sleep(timeout)
                    raise NotReady(f"no answer at {port}")

            yield asking(ctx, keep_silent)

    with site(tmp_path, opener) as here:
        labs = [here.make(f"silent-{number}", idle=60, nodes=1) for number in range(6)]
        silent.set()
        began = time.monotonic()
        here.service.idle.check()
        assert time.monotonic() - began < 6.0  # one after the other would take twelve
        assert set(asked) == {node["sql_port"] for lab in labs for node in lab["nodes"]}


@pytest.mark.rare
def test_an_idle_lab_ends_and_a_used_one_does_not(here: Site) -> None:
    """Protects the host from labs that were forgotten, and labs from being taken for such."""
    here.make("plain")
    for name in ("unused", "used"):
        here.make(name, idle=60)
    watch = here.service.idle
    watch.check()  # the first look only remembers
    for name in ("unused", "used"):
        assert time.time() - (record(here, name).active_at or 0) < 5
        age(here, name, 61)
    ask(here, "used", "SELECT 1", node=1)
    watch.check()
    here.until_gone("unused")
    expired = here.ask("GET", "/v1/jobs?kind=expire").json()["items"]
    assert [(job["lab"], job["state"]) for job in expired] == [("unused", "succeeded")]
    assert record(here, "used").expires_at == pytest.approx(time.time() + 3600, abs=30)
    assert record(here, "plain").active_at is None  # nobody asks those that may be idle


def test_each_node_is_asked_on_one_connection(here: Site) -> None:
    """Protects nodes and this host: to connect takes a TLS handshake."""
    here.make("once", idle=60)
    connected: list[int] = []
    with here.service.core.contexts.use() as ctx:
        counted = asking(ctx, lambda port, _: connected.append(port))
        activity(counted, "once", patience=5.0)
        ports = [node.sql_port for node in ctx.store.nodes.of("once")]
    assert sorted(connected) == ports


@pytest.mark.rare
@pytest.mark.parametrize("blueprint", ["pxc", "single", "replication", "group", "galera-dr"])
def test_our_own_questions_are_no_use(here: Site, blueprint: str) -> None:
    """Protects from labs that live forever because they are asked whether they live."""
    name = f"asked-{blueprint}"
    here.make(name, blueprint=blueprint, nodes=1 if blueprint == "single" else 2)
    with here.service.core.contexts.use() as ctx:
        before = activity(ctx, name, patience=5.0)
        status(ctx, name)
        assert activity(ctx, name, patience=5.0) == before
        snapshot.take(ctx, TakeSnapshot(lab=name, name="kept"))
        assert activity(ctx, name, patience=5.0) == before
        ask(here, name, "SELECT 1")
        assert activity(ctx, name, patience=5.0) != before


def test_a_real_server_tells_our_questions_from_those_of_users() -> None:
    try:
        with server(["--log-bin", "--server-id=1"]) as real:

            def counted() -> int:
                rows = real.ask("SHOW GLOBAL STATUS LIKE 'Com%'")
                return count_of(Rows(("name", "value"), tuple(rows), len(rows)))

            before = counted()
            real.ask(LOOK, question_to_replica({}, Release()))
            real.ask(*REPLICATION.flush)
            assert counted() == before
            real.ask("SELECT 1")
            assert counted() == before + 1
    except NoServer as error:
        pytest.skip(str(error))


def test_a_look_at_an_idle_lab_is_no_use(here: Site) -> None:
    here.make("looked", idle=60)
    watch = here.service.idle
    watch.check()
    with here.service.core.contexts.use() as ctx:
        status(ctx, "looked")
    seen = record(here, "looked").active_at
    watch.check()
    assert record(here, "looked").active_at == seen


def test_changes_and_signs_of_life_are_use(here: Site) -> None:
    """Protects labs whose owner is there, though their databases have nothing to do."""
    here.make("alive", idle=60, heartbeat=600)
    for method, path, body in (("PATCH", "", {}), ("POST", "/heartbeat", None)):
        age(here, "alive", 50)
        assert here.ask(method, f"/v1/labs/alive{path}", body).status_code == 200
        assert time.time() - (record(here, "alive").active_at or 0) < 5
    tag = here.ask("GET", "/v1/labs/alive").headers["etag"]
    assert here.ask("PATCH", "/v1/labs/alive", {"idle": 120}).json()["idle"] == 120
    assert here.ask("GET", "/v1/labs/alive").headers["etag"] != tag
    assert here.ask("PATCH", "/v1/labs/alive", {"idle": 0}).json()["idle"] is None
    assert here.ask("PATCH", "/v1/labs/alive", {"idle": 5}).status_code == 422
    assert here.ask("POST", "/v1/labs", {**BODY, "idle": 5}).status_code == 422


def test_a_lab_that_cannot_be_asked_is_not_idle(here: Site) -> None:
    """Protects labs that are stopped, or whose node is down, from being taken for forgotten."""
    here.make("down", idle=60)
    watch = here.service.idle
    watch.check()
    with here.service.core.contexts.use() as ctx:
        for guest in ctx.hypervisor.guests():
            if str(guest) == "lab-down-n2":
                ctx.hypervisor.stop(guest, force=True)
    age(here, "down", 61)
    watch.check()
    found = record(here, "down")
    assert time.time() - (found.active_at or 0) < 5
    assert (found.expires_at or 0) > time.time() + 3000


def test_what_runs_for_long_is_use() -> None:
    """Protects a long statement: it is counted once, when it begins."""
    ours = process("Query", "SHOW PROCESSLIST")
    server = process("Query", "wsrep aborter idle", user="system user")
    assert not seen_busy(ours, process("Sleep", None), server)
    assert seen_busy(ours, process("Query", "ALTER TABLE t ENGINE=InnoDB"))


@pytest.mark.parametrize(
    ("command", "info"),
    [("Quit", None), ("Killed", None), ("Busy", None), ("Query", "SHOW GLOBAL STATUS LIKE 'Com%'")],
)
def test_who_left_is_no_use(command: str, info: str | None) -> None:
    """Protects idle labs: as real servers show connections whose client has just closed them."""
    assert not seen_busy(process("Query", "SHOW PROCESSLIST"), process(command, info, seconds=0))


def process(
    command: str, info: str | None, *, user: str = "lab", seconds: int = 900
) -> tuple[object, ...]:
    """A row of what a server is at."""
    return (1, user, "10.0.2.2", None, command, seconds, "", info, 0.0)


def seen_busy(*processes: tuple[object, ...]) -> bool:
    columns = ("Id", "User", "Host", "db", "Command", "Time", "State", "Info", "Progress")
    return is_busy(Rows(columns, processes, len(processes)))

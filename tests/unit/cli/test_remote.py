"""`lab` against a service on the fakes: the verbs work as they do here, or say why they do not."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from lab.api.core.admission import Need
from lab.cli import main
from lab.cli.backend.remote import RemoteSession
from lab.cli.backend.remote_up import StepTimer
from lab.client import Client
from lab.errors import NotFound
from lab.lifecycle.nodes.inspect import nodes_of
from lab.locks.named import lock
from lab.names import GuestName
from lab.options import Options
from lab.progress import Event, Step, ignore
from lab.requests.labs import CreateLab
from lab.spec import LabSpec
from lab.units import MIB
from lab.wait import Deadline, until
from tests.support.lifecycle_world import World, make_lab
from tests.support.mixed import register
from tests.support.serve_world import Site, site

Capsys = pytest.CaptureFixture[str]
UP = ("up", "galera", "--nodes", "2", "--memory", "384M")


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site(tmp_path_factory.mktemp("remote")) as found:
        yield found


@pytest.fixture(autouse=True)
def env(here: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mapping[str, str]:
    """As a CI machine has it: no home of its own, the service's address, a token."""
    token = here.token()
    found = {"LAB_HOME": str(tmp_path / "none"), "XDG_CONFIG_HOME": str(tmp_path / "config"),
             "LAB_URL": str(here.client.base_url), "LAB_TOKEN": token}  # fmt: skip
    for name, value in found.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    return {**os.environ, **found}


def out(capsys: Capsys, *words: str, code: int = 0) -> str:
    """What a command prints."""
    capsys.readouterr()
    assert main(words) == code
    return capsys.readouterr().out


def data(capsys: Capsys, *words: str) -> Any:
    return json.loads(out(capsys, *words, "-o", "json"))


def fails(capsys: Capsys, code: int, *words: str) -> str:
    """What a command that fails says."""
    capsys.readouterr()
    assert main(words) == code
    return capsys.readouterr().err


def fails_child(env: Mapping[str, str], code: int, *words: str) -> str:
    """As ``fails``, of a command that starts programs, which write past ``capsys``."""
    done = subprocess.run([sys.executable, "-m", "lab", *words], env=env, capture_output=True,
                          text=True, check=False)  # fmt: skip
    assert done.returncode == code
    return done.stderr


def test_the_straight_line(capsys: Capsys, tmp_path: Path) -> None:
    """Protects the promise that the CLI works unchanged: from `up` to `down`."""
    made = data(capsys, *UP, "--name", "line", "--ttl", "30m")
    assert (made["name"], made["state"], len(made["nodes"])) == ("line", "ready", 2)
    assert {"clone", "ready"} <= {step["step"] for step in made["steps"]}
    assert out(capsys, "ls", "-o", "name") == "line\n"
    assert "line  galera" in out(capsys, "ls")
    assert data(capsys, "status")["lab"]["dsn"] == made["dsn"]
    assert "dsn" in out(capsys, "wait", "line", "--timeout", "10s")
    conditions = ("--for", "ready", "--for", "synced", "--for", "primary=n2")
    assert "dsn" in out(capsys, "wait", "line", "--timeout", "10s", *conditions)
    assert "timed out" in fails(capsys, 7, "wait", "line", "--timeout", "1s", "--for", "SELECT 0")
    assert "'syncde' is not" in fails(capsys, 2, "wait", "line", "--for", "syncde")
    assert f"export LAB_DSN={made['dsn']}\n" in out(capsys, "env")
    assert out(capsys, "stop", "--node", "2", "--force", "-o", "name") == "line\n"
    assert data(capsys, "status")["lab"]["state"] == "not-primary"
    assert data(capsys, "start", "--node", "2")["state"] == "ready"
    assert "expires: 2h" in out(capsys, "extend", "line", "2h")
    assert out(capsys, *UP, "--name", "line", "--exist-ok", "-o", "name") == "line\n"
    for ttl in ("3h", "1h"):  # renewed, never shortened
        extended = out(capsys, *UP, "--name", "line", "--exist-ok", "--ttl", ttl)
        assert re.search(r"^expires +(3h|2h59m)", extended, re.MULTILINE)
    [image], [template] = data(capsys, "image", "ls"), data(capsys, "template", "ls")
    assert (image["key"], template["blueprint"]) == (made["image"], "galera")
    assert data(capsys, "image", "show", image["recipe"])["key"] == image["key"]
    assert main(["down"]) == 0
    assert "removed line in" in capsys.readouterr().err
    assert out(capsys, "ls") == ""
    assert not (tmp_path / "none").exists()  # nothing was made here


def test_a_command_beside_a_lab(capsys: Capsys) -> None:
    """Protects `lab run`: its environment, its exit code, and that nothing is left."""
    code = "import os, sys; print(os.environ['LAB_DSN']); sys.exit(3)"
    argv = [sys.executable, "-c", code]
    assert main(["run", "galera", "--nodes", "1", "--memory", "384M", "--", *argv]) == 3
    capsys.readouterr()
    assert data(capsys, "ls") == []


def test_inside(capsys: Capsys, env: Mapping[str, str]) -> None:
    """Protects exec and its exit code, logs and their limits."""
    out(capsys, *UP, "--name", "inside")
    capsys.readouterr()
    assert main(["exec", "inside", "--agent", "--", "no-such-program"]) == 127
    assert capsys.readouterr() == ("", "no-such-program: not found\n")
    assert "does not answer SSH" in fails_child(env, 255, "ssh", "inside")
    assert "no node n7" in fails(capsys, 3, "console", "inside", "--node", "n7")
    assert out(capsys, "logs", "inside", "-n", "0") == ""
    assert "no node n7" in fails(capsys, 3, "logs", "inside", "--node", "n7")
    out(capsys, "down", "inside")


def test_sql_goes_through_the_dsn(here: Site) -> None:
    """Protects `lab sql`: its statements go where the DSN says, with the account that it says."""
    client = Client(str(here.client.base_url), here.token())
    with client, World(here.service.core.settings.home.root).open() as ctx:
        session = RemoteSession(client, ignore, ask=ctx.sql)
        with client.lab("galera", nodes=2, memory=384 * MIB) as lab:
            session.query(lab.name, None, "CREATE TABLE t (id INT)")
            session.query(lab.name, "n2", "INSERT INTO t VALUES (7)")
            assert session.query(lab.name, "n1", "SELECT id FROM t").rows == ((7,),)
            with pytest.raises(NotFound, match="no node n3"):
                session.query(lab.name, "n3", "SELECT 1")


def test_sql_that_does_not_answer_says_why(capsys: Capsys) -> None:
    """Protects who is on another machine than the databases."""
    out(capsys, *UP, "--name", "far")
    message = fails(capsys, 7, "sql", "far", "-e", "SELECT 1")  # the fakes have no server
    assert "no SQL at 127.0.0.1:" in message
    assert "hint: ports of labs are on the loopback of the service's host" in message
    out(capsys, "stop", "far", "--node", "2", "--force")
    message = fails(capsys, 7, "sql", "far", "--node", "2", "-e", "SELECT 1")
    assert "n2 of far does not run" in message  # another may listen at its port
    assert "hint: `lab start far --node n2` starts it" in message
    out(capsys, "down", "far")


def test_what_is_there_is_as_asked_or_refused(capsys: Capsys) -> None:
    """Protects scripts with --exist-ok: another lab of that name is not taken for theirs."""
    out(capsys, *UP, "--name", "same")
    assert "different configuration" in fails(
        capsys, 4, "up", "galera", "--name", "same", "--exist-ok"
    )
    assert "exists already" in fails(capsys, 4, *UP, "--name", "same")
    for words in ((), ("--node", "2")):  # a node that was stopped does not come back by waiting
        out(capsys, "stop", "same", *words)
        found = data(capsys, *UP, "--name", "same", "--exist-ok", "--timeout", "20s")
        assert found["state"] == "ready"
    out(capsys, "down", "same")


def test_a_lab_that_may_exist_is_one(capsys: Capsys, here: Site) -> None:
    """Protects repeated pipelines: no second lab, though another project has the plain name."""
    other = here.token("other", project="other")
    here.make("galera", token=other)
    first = out(capsys, *UP, "--exist-ok", "--engine", "mariadb", "-o", "name")
    assert first.startswith("galera-")
    assert out(capsys, *UP, "--exist-ok", "--engine", "mariadb", "-o", "name") == first
    assert "different configuration" in fails(capsys, 4, *UP, "--exist-ok", "--engine", "percona")
    assert out(capsys, "ls", "-o", "name") == first
    out(capsys, "down", first.strip())
    here.ask("DELETE", "/v1/labs/galera?wait=30", token=other)


def test_a_degraded_lab_that_may_exist_is_healed(capsys: Capsys, here: Site) -> None:
    """Protects CI pipelines from waiting for a lab that does not become ready by itself."""
    asked = ("up", "replication", "--memory", "384M", "--name", "healed", "--timeout", "20s")
    out(capsys, *asked)
    with here.service.core.contexts.use() as ctx:
        source = nodes_of(ctx, "healed")[0].guest
        argv = ["/usr/lib/lab/source", "yield", "read_only=ON"]
        ctx.hypervisor.channel(GuestName(source)).run(argv, stdin=b"", timeout=5)

    def observed() -> bool:  # no verb did it: the service sees it within a second
        return bool(data(capsys, "status", "healed")["lab"]["state"] == "degraded")

    assert until(observed, Deadline.after(20))
    core, held = here.service.core, threading.Event()

    def refused() -> object:
        return core.store.jobs.latest(states=["failed"], kinds=["start"], lab="healed")

    def another_command() -> None:
        with lock(core.settings.home, "lab", "healed", wait=False):
            held.set()
            assert until(refused, Deadline.after(20))

    with ThreadPoolExecutor(1) as thread:
        ended = thread.submit(another_command)
        assert held.wait(20)
        assert data(capsys, *asked, "--exist-ok")["state"] == "ready"
        ended.result()
    out(capsys, "down", "healed")


def test_nodes_that_were_not_counted_do_not_differ(
    capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects labs with a proxy beside the requested nodes from being refused by --exist-ok."""
    register(monkeypatch)
    words = ("up", "mixed", "--nodes", "1", "--memory", "384M", "--name", "fronted", "--exist-ok")
    made = data(capsys, *words)
    assert (made["requested_nodes"], len(made["nodes"])) == (1, 2)
    assert data(capsys, *words)["created_at"] == made["created_at"]
    message = fails(capsys, 4, *words, "--nodes", "2")
    assert "nodes 1, requested 2" in message
    out(capsys, "down", "fronted")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("extend shop none", "every lab of a service has a lease"),
        ("image export mariadb --to db2", "hosts send each other archives over SSH"),
        ("image import - --talk", "hosts send each other archives over SSH"),
        ("dataset export crm f.lab", "written and read by the host of the labs"),
        ("dataset import f.lab", "written and read by the host of the labs"),
        ("snapshot export shop mine f.lab", "written and read by the host of the labs"),
        ("snapshot import f.lab", "written and read by the host of the labs"),
        ("doctor", "about the host it runs on"),
        ("host init --pool tank/lab", "about the host it runs on"),
    ],
)
def test_what_cannot_be_asked_for_is_said(
    capsys: Capsys, monkeypatch: pytest.MonkeyPatch, words: str, said: str
) -> None:
    """Protects from half an answer: a verb that only works there says so, with a hint."""
    monkeypatch.setenv("LAB_URL", "http://127.0.0.1:9")  # it is refused before anything is sent
    message = fails(capsys, 2, *words.split())
    assert said in message
    assert "\nhint: " in message


def test_where_the_service_is(
    capsys: Capsys, here: Site, env: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects --remote, the token's file, and the message for a wrong address."""
    url = env["LAB_URL"]
    monkeypatch.delenv("LAB_URL")
    monkeypatch.setenv("LAB_HYPERVISOR", "fake")
    monkeypatch.setenv("LAB_STORAGE", "fake")
    with World(here.service.core.settings.home.root).open() as ctx:
        make_lab(ctx)  # of a command there, which only admins see
    assert out(capsys, "ls", "-o", "name") == ""
    monkeypatch.setenv("LAB_TOKEN", here.admin)
    for words in (("--remote", url, "ls"), ("ls", "--remote", url), ("ls", f"--remote={url}")):
        assert out(capsys, *words, "-o", "name") == "shop\n"
    monkeypatch.delenv("LAB_TOKEN")
    config = Path(env["XDG_CONFIG_HOME"]) / "lab"
    config.mkdir(parents=True)
    (config / "config.toml").write_text(f'url = "{url}"\n')
    assert "set LAB_TOKEN" in fails(capsys, 8, "ls")
    (config / "token").write_text(here.admin)
    (config / "token").chmod(0o600)
    assert out(capsys, "ls", "-o", "name") == "shop\n"
    assert "no URL is given" in fails(capsys, 2, "ls", "--remote")
    assert "'labs' is not the URL of a service" in fails(capsys, 2, "ls", "--remote", "labs")
    out(capsys, "down", "shop")


def test_what_is_missing_is_told(env: Mapping[str, str]) -> None:
    """Protects who installed the program alone: a line that says what to run, no traceback."""
    code = "import sys; sys.modules['httpx'] = None; from lab.cli import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", code, "ls"], env=env, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (5, "")
    assert "a service elsewhere requires the Python package httpx, which is not" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("hint: ")


def test_an_interrupt_leaves_nothing(here: Site, env: Mapping[str, str]) -> None:
    """Protects the service's host: Ctrl-C calls the job off, and waits until it is undone."""
    argv = [sys.executable, "-m", "lab", "up", "galera", "--nodes", "9", "--name", "gone"]
    service = here.service
    everything = Need(memory=service.core.admission.memory_budget)
    with service.core.admission.enter("test", 0.0, everything, stop=lambda: None):  # so it waits
        process = subprocess.Popen(argv, env=dict(env), stderr=subprocess.PIPE, text=True)
        end = time.monotonic() + 20
        while not service.core.admission.waiting:
            assert time.monotonic() < end
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, message = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "interrupted, removing the lab" in message
    assert service.core.store.labs.find("gone") is None
    assert service.core.store.jobs.open() == []


def test_steps_are_put_together_again() -> None:
    """Protects what `up -o json` says of its time, also where a service was cut in between."""
    events = [
        Event("clone", "begin"), Event("ready", "begin"), Event("ready", "end", "", 2.0),
        Event("clone", "end", "", 3.0), Event("undo", "end", "", 9.0), Event("clone", "begin"),
        Event("restore", "begin"), Event("clone", "fail", "", 1.0), Event("note", "note", "x"),
    ]  # fmt: skip
    timer = StepTimer(ignore)
    for event in events:
        timer(event)
    assert timer.steps == [Step("clone", 4.0, [Step("ready", 2.0), Step("restore")])]


def test_a_spec_is_sent_whole(here: Site) -> None:
    """Protects flags from being dropped on the way."""
    spec = LabSpec("galera", name="whole", nodes=1, engine="mariadb", ttl=1234,
                   memory=400 * MIB, cpus=2, profile="durable",
                   options=Options(set=("max_connections=50",)).said)  # fmt: skip
    with Client(str(here.client.base_url), here.token()) as client:
        lab = RemoteSession(client, ignore).run(CreateLab.of(spec, cold=True))
        client.delete(lab.name)
    assert (lab.memory, lab.cpus, lab.profile, lab.started) == (400 * MIB, 2, "durable", "cold")
    assert (lab.engine, lab.why_cold) == ("mariadb", "requested")
    assert lab.options == {"set": ["max_connections=50"]}
    assert lab.expires_at == pytest.approx(time.time() + 1234, abs=30)


def test_tokens_of_a_service_elsewhere(
    here: Site, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects who runs a service: tokens are made, seen and ended from where one is."""
    (own,) = data(capsys, "token", "ls")
    assert (own["scope"], own["used"]["labs"]) == ("use", 0), "others see themselves"
    assert "admin" in fails(capsys, 9, "token", "create", "x"), "only administrators may"
    monkeypatch.setenv("LAB_TOKEN", here.admin)
    made = data(capsys, "token", "create", "nightly", "--max-labs", "2")
    assert (made["name"], made["scope"], made["max_labs"]) == ("nightly", "use", 2)
    with Client(str(here.client.base_url), made["token"]) as client:
        assert client.labs() == []
    (found,) = [one for one in data(capsys, "token", "ls") if one["name"] == "nightly"]
    assert (found["state"], "token" in found) == ("valid", False)
    assert found["last_used_at"]
    assert "labs 0 of 2" in out(capsys, "token", "ls")
    out(capsys, "token", "revoke", "nightly")
    (found,) = [one for one in data(capsys, "token", "ls") if one["name"] == "nightly"]
    assert found["state"] == "revoked"
    assert "no token" in fails(capsys, 3, "token", "revoke", "nightly")

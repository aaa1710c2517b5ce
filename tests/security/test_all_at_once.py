"""A hostile guest, a hostile client and a hostile user of the host against one real service."""

from __future__ import annotations

import os
import pwd
import re
import signal
import ssl
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pymysql
import pytest

from lab.errors import NotReady
from lab.names import LOOPBACK
from lab.wait import Deadline, until
from tests.e2e.e2e_site import PXC, Site
from tests.e2e.user_site import account
from tests.security.attackers import LATE, Client, Watcher, prowling
from tests.security.guest import behaving, signed
from tests.security.stranger import USERS, Report
from tests.security.test_guest_real import AGENT, PERSONALISE, become, evil
from tests.support.other_user import EVERYBODY
from tests.support.serve_process import Serving, configure, serving

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.rare,  # 5.5 minutes where guests are emulated; the parts are tested for each change
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make a user"),
]

ONE = (*PXC, "--nodes", "1")
OWN = ("--nodes", "1", "--memory", "512M")
"""The size of the lab whose template is made while others look on."""
CONFIG = """
answer_timeout = 3

[serve]
sweep = 1
failed_auth = 5
request_timeout = 3
token_jobs = 8
tls_cert = "{chain}"
tls_key = "{chain}"
"""
MODES = (
    ("lab-personalise", "flood", PERSONALISE),
    ("lab-personalise", "endless", PERSONALISE),
    ("lab-personalise", "wrong", PERSONALISE),
    ("mariadb", "sql-rows", "tcp:3306"),
    ("mariadb", "sql-drip", "tcp:3306"),
)
"""What the guest does in turn: the service whose place it takes, how, and where."""
CYCLE = 60.0
"""Seconds in which another project makes a lab, uses and removes it."""
HANG = 100.0
"""Seconds that a snapshot of a lab may take whose node answers with nonsense: 60 for its clock."""
LEASE = 60.0
"""Seconds after which a lab is gone whose lease of 10 s is over, a job of it hanging or not."""
MEMORY = 512 << 20
"""Bytes that the service takes at most."""
MET = (
    "silent closed", "stream 200", "stream 429", "wait held", "wait 200", "wrong token 401",
    "wrong token 429", "create 202", "create 429", "snapshot 202", "snapshot 429",
)  # fmt: skip
"""What the client has met with in the end: each attack began, and came to its limit."""
CANARY = b"the canary's password"


@dataclass
class Host:
    """A service, and who uses it: project ``theirs`` is hostile, ``ours`` is not.

    ``secrets``: tokens and passwords. ``ports``: those of the servers of our labs.
    """

    serving: Serving
    theirs: Site
    ours: Site
    client_token: str
    secrets: set[str]
    ports: set[int] = field(default_factory=set)

    def admin(self, path: str) -> Any:
        """What the administrator gets from there."""
        answer = self.serving.ask("GET", path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def without(self, lab: str) -> bool:
        """True once there is no such lab."""
        return self.serving.ask("GET", f"/v1/labs/{lab}").status_code == 404

    def jobs(self, kind: str, lab: str) -> list[dict[str, Any]]:
        """Jobs, the newest first."""
        found: list[dict[str, Any]] = self.admin(f"/v1/jobs?kind={kind}&lab={lab}")["items"]
        return found

    def works(self, kind: str, lab: str) -> bool:
        """True while the newest such job is being done."""
        return [job["state"] for job in self.jobs(kind, lab)][:1] == ["running"]

    def token(self, name: str, project: str, **quota: int) -> str:
        """A new token, for as long as a test may take."""
        body = {"name": name, "project": project, "ttl": "1h", **quota}
        answer = self.serving.ask("POST", "/v1/tokens", body)
        assert answer.status_code == 201, answer.text
        text = str(answer.json()["text"])
        self.secrets.add(text)
        return text


@contextmanager
def hosting(site: Site, directory: Path) -> Iterator[Host]:
    """A service over TLS; the environment has the authority of its certificate."""
    env = {**site.env, "XDG_CONFIG_HOME": str(directory)}
    configure(env, CONFIG.format(chain=signed(directory).chain))
    with serving(env) as found:
        host = Host(found, site, site, "", {found.token})

        def user(name: str, project: str) -> Site:
            token = host.token(name, project)
            return replace(site, settings={"LAB_URL": found.url, "LAB_TOKEN": token})

        host.theirs, host.ours = user("root", "theirs"), user("ci", "ours")
        host.client_token = host.token("client", "theirs", max_labs=3, max_snapshots=10)
        try:
            yield host
        finally:  # also of a test that failed: killed, it would leave its part of a transaction
            found.process.terminate()
            found.process.wait(30)


def cycle(host: Host, name: str) -> None:
    """What everybody else does: a lab that is ready, SQL at its port, and away with it."""
    began = time.monotonic()
    with host.ours.up(*ONE, "--name", name) as view:
        assert (view["state"], view["started"]) == ("ready", "warm")
        host.secrets.add(view["password"])
        host.ports.add(view["nodes"][0]["sql_port"])
        host.ours.sql(name, "n1", "CREATE DATABASE shop")
        assert ["shop"] in host.ours.sql(name, "n1", "SHOW DATABASES")
    assert host.ours.lab("ls", "-o", "json").json == []
    took = time.monotonic() - began
    sys.stderr.write(f"a lab of others, made, used and removed: {took:.1f} s\n")
    assert took < CYCLE


def misbehave(host: Host, lab: str, name: str) -> None:
    """The guest does one thing after the other, looked at by its project, while others work."""
    for stop, behaviour, place in MODES:
        become(host.theirs, lab, stop=stop, behaviour=behaviour, place=place)
        began = time.monotonic()
        with host.theirs.start("snapshot", "take", lab, "--label", "mine") as taken:
            cycle(host, name)
            _, said = taken.communicate(timeout=HANG)
        assert taken.returncode == 0, said
        assert time.monotonic() - began < HANG
        seen = host.theirs.lab("status", lab, "-o", "json").json["lab"]
        assert place == PERSONALISE or seen["nodes"][0]["state"] == "unreachable", behaviour


def expire(host: Host, lab: str, others: str, name: str) -> None:
    """Leases end while the guest keeps a job from its end, and its agent from every answer."""
    become(host.theirs, lab, stop="qemu-guest-agent", behaviour="drip", place=AGENT)
    with host.theirs.start("snapshot", "take", lab, "--label", "late") as hanging:
        assert until(partial(host.works, "snapshot", lab), Deadline.after(20))
        for one in (lab, others):
            host.theirs.lab("extend", one, "10s")
        began = time.monotonic()
        cycle(host, name)
        for one in (lab, others):
            gone = until(partial(host.without, one), Deadline.after(LEASE))
            assert gone, f"{one} is still there after {time.monotonic() - began:.0f} s"
        sys.stderr.write(f"leases of 10 s ended within {time.monotonic() - began:.1f} s\n")
        hanging.communicate(timeout=20)
    assert host.jobs("expire", lab)[0]["state"] == "succeeded"
    began_at = host.jobs("expire", lab)[-1]["started_at"]
    assert host.jobs("snapshot", lab)[0]["ended_at"] > began_at, "it did not hang"


def lure(host: Host, stack: ExitStack, site: Site, prefix: tuple[str, ...], leak: Path) -> str:
    """A lab that was stopped; at its port a server of another user waits for passwords."""
    view = host.theirs.lab("up", *ONE, "--name", site.name("bait"), "-o", "json").json
    host.secrets.add(view["password"])
    port = view["nodes"][0]["sql_port"]
    host.theirs.lab("stop", view["name"], "--force")
    stack.enter_context(behaving("sql-clear", f"tcp:{LOOPBACK}:{port}", leak, prefix))
    with suppress(pymysql.err.MySQLError):
        pymysql.connect(host=LOOPBACK, port=port, user="canary", password=CANARY, ssl_disabled=True)
    assert until(leak.exists, Deadline.after(10))
    assert host.theirs.lab("sql", view["name"], "-e", "DO 1", code=None).code == NotReady.exit_code
    return str(view["name"])


def peak_of(pid: int) -> int:
    """The most memory that a process has had, in bytes."""
    (line,) = re.findall(r"^VmHWM:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.M)
    return int(line) << 10


def watched_well(watcher: Watcher) -> None:
    """Whoever restarts a service that is not well had no reason to."""
    sys.stderr.write(f"/healthz: {watcher.answers} answers, {watcher.slowest:.2f} s at most\n")
    assert watcher.wrong == []
    assert watcher.slowest < LATE
    assert watcher.answers > 100


def fought(client: Client) -> None:
    """Each attack took place, met its limit, and found nothing of another project."""
    sys.stderr.write(f"the client met with {dict(client.seen)}\n")
    for met in MET:
        assert client.seen[met], met
    assert {met for met in client.seen if met.startswith("theirs")} == {"theirs 404"}
    assert {met for met in client.seen if re.search(r" 5\d\d$", met)} == set()


def guarded(host: Host, site: Site, found: Report, leaked: bytes) -> None:
    """The user of the host looked everywhere, and got nothing; nor did who reads the log."""
    theirs = dict(found.files[str(site.root)])
    assert {path for path in theirs.pop("read") if not EVERYBODY.fullmatch(path)} == set()
    assert theirs == {}
    libvirt = found.files["/var/lib/libvirt/qemu"]
    assert {what: libvirt[what] for what in ("read", "write", "connect") if what in libvirt} == {}
    for kind in (r"templates/.*\.ram", r"templates/.*\.state", r"storage/.*/base\.raw",
                 r"storage/labs/.*/disk\.qcow2", r"storage/labs/.*/snapshots/.*", r"run/.+",
                 r"labs/.*/private/.+", "state\\.db", "admin-token", r"ca\.key"):  # fmt: skip
        assert any(re.fullmatch(kind, path) for path in found.paths), f"{kind} was not tried"
    talk = host.serving.talk
    log = "".join(talk)
    assert any("guest=lab-" in line for line in found.lines)
    assert not [one for one in host.secrets if one in log or any(one in x for x in found.lines)]
    errors = [line for line in talk if '"level": "error"' in line or "Traceback" in line]
    assert [line for line in errors if "timeout graceful shutdown exceeded" not in line] == []
    assert host.ports & set(found.refused), "it came to no port of ours"
    assert not host.ports & set(found.entered)
    assert CANARY in leaked
    assert not [one for one in host.secrets if one.encode() in leaked]
    logins = rb"(?:%s)\0" % b"|".join(user.encode() for user in ("canary", *USERS))
    assert leaked.count(b"answer:") == len(re.findall(logins, leaked)), "somebody came by TLS"


def test_a_guest_a_client_and_a_user_at_once(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects everybody else: labs are made, used and removed as usual, and leases end."""
    site.lab("template", "build", *ONE, timeout=600)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    name = site.name("ours")
    with ExitStack() as stack:
        _, uid = stack.enter_context(account())
        place = pwd.getpwuid(uid)
        leak = Path(place.pw_dir) / "leak"
        prefix = ("setpriv", f"--reuid={uid}", f"--regid={place.pw_gid}", "--clear-groups")
        host = stack.enter_context(hosting(site, tmp_path))
        trust = ssl.create_default_context(cafile=tmp_path / "ca.pem")
        roots = [site.root, Path("/var/lib/libvirt/qemu")]
        with ExitStack() as attacks:
            found = attacks.enter_context(prowling(uid, place.pw_gid, site.ports, roots))
            watcher = Watcher(host.serving.url, trust)
            watched = attacks.enter_context(ExitStack())
            watched.enter_context(watcher.watching())
            bait = lure(host, attacks, site, prefix, leak)
            body = {"blueprint": "pxc", "engine": "mariadb", "nodes": 1, "ttl": 20}
            client = Client(host.serving.url, host.client_token, trust, bait, name, body)
            attacks.enter_context(client.attacking())
            with evil(host.theirs, "evil", *OWN) as lab:
                template = host.admin(f"/v1/labs/{lab}")["template"]
                misbehave(host, lab, name)
                expire(host, lab, bait, name)
            client.make_no_more()
            assert until(lambda: host.admin("/v1/labs")["items"] == [], Deadline.after(60))
            removed = host.serving.ask("DELETE", f"/v1/templates/{template}?wait=60")
            assert removed.status_code == 204, removed.text
            watched.close()
            peak = peak_of(host.serving.process.pid)
            host.serving.process.send_signal(signal.SIGTERM)
            assert host.serving.process.wait(30) == 0
            watched_well(watcher)
        assert site.settled() == []
        fought(client)
        guarded(host, site, found, leak.read_bytes())
    assert peak < MEMORY

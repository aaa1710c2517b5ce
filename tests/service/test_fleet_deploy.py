"""``packaging/fleet/deploy`` from nothing to a fleet, and to its next version, on one machine.

Three homes, a PostgreSQL that asks for passwords, and one of the hosts behind SSH. Instead of
systemd, which this machine need not have, a script of each host starts its service.
"""

from __future__ import annotations

import getpass
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from shutil import which

import pytest

from lab import distribution
from lab.wait import Deadline, until
from tests import ROOT
from tests.support.newer_version import NEWER, newer_version
from tests.support.postgres_server import NEEDED, Postgres, postgres, programs
from tests.support.serve_process import environment
from tests.support.ssh_server import shell_server

pytestmark = [
    pytest.mark.rare,
    pytest.mark.skipif(programs() is None, reason=NEEDED),
    pytest.mark.skipif(which("ssh") is None, reason="ssh is not installed"),
]

HOSTS = ("h1", "h2", "h3")
PROGRAM = Path(sys.executable).with_name("lab")
RESTART = """#!/bin/sh
# What systemd would do: end the service, and start it with the host's own config file.
cd {place} || exit 1
if [ -e pid ]; then
    kill "$(cat pid)"
    while kill -0 "$(cat pid)" 2>/dev/null; do sleep 0.1; done
fi
env -i PATH="$PATH" XDG_CONFIG_HOME={place} {program} serve >>out 2>>log </dev/null &
echo $! >pid
"""
HOST = """
[[host]]
name = "{name}"
ssh = "{ssh}"
address = "127.0.0.1"
labels = ["{label}"]
program = "{program}"
config = "{place}/lab/config.toml"
restart = "sh {place}/restart"

[host.settings]
home = "{place}/home"
port_range = "{ports}"
"""
INVENTORY = """
ssh_config = "ssh_config"

[database]
admin = "{admin}"
url = "postgresql://fleet@127.0.0.1:{port}/labs"

[settings]
hypervisor = "fake"
storage = "fake"
memory_floor = "1M"
space_floor = "1M"

[settings.serve]
port = 0
fleet_port = 0
sweep = "1s"
"""


@dataclass
class Machines:
    """The hosts' directories, and the inventory that names them."""

    root: Path
    database: Postgres
    ssh: str
    program: Path = PROGRAM
    labels: dict[str, str] = field(default_factory=lambda: dict.fromkeys(HOSTS, "all"))

    def write(self) -> None:
        text = INVENTORY.format(admin=self.database.plain, port=self.database.port)
        for number, name in enumerate(HOSTS):
            place = self.root / name
            place.mkdir(exist_ok=True)
            restart = RESTART.format(place=shlex.quote(str(place)), program=self.program)
            (place / "restart").write_text(restart)
            text += HOST.format(
                name=name, ssh=self.ssh if name == "h2" else "", label=self.labels[name],
                program=self.program, place=place,
                ports=f"{32000 + 200 * number}-{32199 + 200 * number}",
            )  # fmt: skip
        (self.root / "inventory.toml").write_text(text)

    def deploy(self, code: int = 0, **env: str) -> list[str]:
        """The lines that it prints, all of them without the password."""
        argv = [sys.executable, str(ROOT / "packaging/fleet/deploy"), "inventory.toml"]
        done = subprocess.run(
            argv, cwd=self.root, env={**os.environ, **env},
            capture_output=True, text=True, check=False, timeout=300,
        )  # fmt: skip
        said = done.stdout + done.stderr
        assert done.returncode == code, said
        with suppress(FileNotFoundError):
            assert self.password not in said
        return said.splitlines()

    @property
    def password(self) -> str:
        return (self.root / "fleet-password").read_text().strip()

    def pid(self, name: str) -> int:
        return int((self.root / name / "pid").read_text())

    def lab(self, name: str, *words: str) -> str:
        """What ``lab --remote`` says, of the service of a host."""
        place = self.root / name
        started = [
            line for line in (place / "log").read_text().splitlines() if "serving at" in line
        ]
        env = environment(self.root / "client") | {
            "LAB_TOKEN": (place / "home/admin-token").read_text().strip()
        }
        argv = [str(self.program), "--remote", started[-1].split()[-1], *words]
        return subprocess.run(
            argv, env=env, capture_output=True, text=True, check=True, timeout=120
        ).stdout

    def hosts(self, name: str) -> dict[str, tuple[str, str, list[str]]]:
        found = json.loads(self.lab(name, "host", "ls", "-o", "json"))
        return {one["name"]: (one["state"], one["version"], one["labels"]) for one in found}

    def stop(self) -> None:
        for name in HOSTS:
            with suppress(FileNotFoundError, ProcessLookupError):
                os.kill(self.pid(name), signal.SIGKILL)


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    with postgres(tcp=True) as database, shell_server(tmp_path) as port:
        rules = database.root / "data/pg_hba.conf"
        rules.write_text("local all all trust\nhost all all 127.0.0.1/32 scram-sha-256\n")
        with (database.root / "data/postgresql.auto.conf").open("a") as settings:
            settings.write("log_statement = 'all'\n")
        database.stop("fast")
        database.start()
        (tmp_path / "ssh_config").write_text(
            f"Host h2.test\n HostName 127.0.0.1\n Port {port}\n User {getpass.getuser()}\n"
            f" IdentityFile {tmp_path}/id_ed25519\n UserKnownHostsFile {tmp_path}/known_hosts\n"
            " IdentitiesOnly yes\n IdentityAgent none\n"
        )
        found = Machines(tmp_path, database, "h2.test")
        found.write()
        try:
            yield found
        finally:
            found.stop()


def test_from_nothing_to_a_fleet(machines: Machines) -> None:
    """Protects who sets up a fleet: one command, which can be repeated, and leaks nothing."""
    ours, said = distribution.version(), machines.deploy()
    place = machines.root
    assert said == [
        f"database: created {place}/fleet-password",
        "database: created the role fleet",
        "database: created labs",
        "database: its tables have schema 0001, before: none",
        *(
            line
            for name in HOSTS
            for line in (
                f"{name}: wrote {place}/{name}/lab/config.toml",
                f"{name}: restarted, and is up with lab {ours}",
            )
        ),
    ]
    up = {name: ("up", ours, ["all"]) for name in HOSTS}
    assert machines.hosts("h1") == up
    _leaks_nothing(machines)
    machines.lab("h3", "up", "single", "--name", "shop", "--host", "h1", "--memory", "768M")
    before = [machines.pid(name) for name in HOSTS]
    assert machines.deploy() == [f"{name}: is up, unchanged" for name in HOSTS]
    assert [machines.pid(name) for name in HOSTS] == before
    # What is changed in the inventory is changed where it is.
    machines.labels["h2"] = "nvme"
    machines.write()
    assert machines.deploy() == [
        "h1: is up, unchanged",
        f"h2: wrote {place}/h2/lab/config.toml",
        f"h2: restarted, and is up with lab {ours}",
        "h3: is up, unchanged",
    ]
    assert machines.hosts("h3") == up | {"h2": ("up", ours, ["nvme"])}
    # What ended is started again.
    os.kill(machines.pid("h3"), signal.SIGKILL)
    (place / "h3/pid").unlink()
    _older_heartbeat(machines, "h3")
    assert machines.deploy()[-1] == f"h3: restarted, and is up with lab {ours}"
    _refuses(machines)
    _upgrades(machines)


def _leaks_nothing(machines: Machines) -> None:
    password, root = machines.password, machines.root
    for path in (root / "fleet-password", *(root / name / "lab/config.toml" for name in HOSTS)):
        assert path.stat().st_mode & 0o777 == 0o600, path
        assert password in path.read_text()
    for name in HOSTS:
        assert password not in (root / name / "log").read_text()
        assert password not in Path(f"/proc/{machines.pid(name)}/cmdline").read_text()
    statements = (machines.database.root / "log").read_text()
    assert "CREATE ROLE" in statements, "they are logged"
    assert password not in statements


def _older_heartbeat(machines: Machines, name: str) -> None:
    url = machines.database.plain.replace("/postgres?", "/labs?")
    older = f"UPDATE lab.heartbeats SET at = now() - interval '20 s' WHERE host = '{name}'"
    argv = ["psql", "-qd", url, "-c", older]
    subprocess.run(argv, check=True, timeout=30)


def _refuses(machines: Machines) -> None:
    """What it does not understand, it leaves as it is."""
    config = machines.root / "h1/lab/config.toml"
    written = config.read_text()
    config.write_text("# mine\n")
    said = machines.deploy(code=4)
    assert said[0] == f"error: h1: {config} was not written by this program"
    assert config.read_text() == "# mine\n"
    config.write_text(written)
    inventory = machines.root / "inventory.toml"
    right = inventory.read_text()
    inventory.write_text(right.replace('memory_floor = "1M"', 'memory_flor = "1M"'))
    assert "the settings of h1: unknown key 'memory_flor'" in machines.deploy(code=2)[0]
    inventory.write_text(right.replace(str(PROGRAM), str(PROGRAM.with_name("python")), 1))
    said = machines.deploy(code=5)
    assert said[0].startswith(f"error: not all hosts have lab {distribution.version()}")
    assert said[1].startswith("  h1: "), "named, with the reason"
    inventory.write_text(right)
    (machines.root / "fleet-password").rename(machines.root / "away")
    assert "the role exists, but not" in machines.deploy(code=4)[0]
    (machines.root / "away").rename(machines.root / "fleet-password")


def _upgrades(machines: Machines) -> None:
    """The next version: its tables first, then one host after the other, labs included."""
    newer = machines.root / "newer"
    program = newer / "bin-lab"
    python, script = newer_version(newer)
    program.write_text(f'#!/bin/sh\nexec {python} {script} "$@"\n')
    program.chmod(0o755)
    said = machines.deploy(code=5, PYTHONPATH=str(newer))
    assert f"not all hosts have lab {NEWER}" in said[0], "nothing is changed before all have it"
    machines.program = program
    machines.write()
    assert machines.deploy(PYTHONPATH=str(newer)) == [
        "database: its tables have schema 0002, before: 0001",
        *(f"{name}: restarted, and is up with lab {NEWER}" for name in HOSTS),
    ]
    assert {one[:2] for one in machines.hosts("h2").values()} == {("up", NEWER)}
    found = until(lambda: json.loads(machines.lab("h2", "ls", "-o", "json")), Deadline.after(15))
    assert [(one["name"], one["state"]) for one in found or []] == [("shop", "ready")]

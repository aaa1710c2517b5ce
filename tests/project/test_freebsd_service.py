"""The service's script for rc.d of FreeBSD, run over doubles of what FreeBSD has for it."""

from __future__ import annotations

import getpass
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import requires
from pathlib import Path

import pytest

from lab import distribution
from lab.errors import CommandFailed
from lab.run import Completed, run
from lab.wait import Deadline, until
from tests import ROOT
from tests.support import rc_double

SCRIPT = ROOT / "packaging/freebsd/lab_serve"
SECONDS = 20.0

SERVICE = """\
#!/bin/sh
# What `lab serve` does at its first start, as far as its streams and signals go.
trap 'echo ended >&2; exit 0' TERM
echo secret-token
echo $$ > "$(dirname "$0")/pid"
echo "serving $* for ${LAB_HOME:-nobody} on $PATH, limits $(ulimit -c) $(ulimit -n)" >&2
while :; do sleep 0.05; done
"""


@dataclass(frozen=True)
class Host:
    root: Path
    script: Path

    def rc(self, **values: str) -> None:
        values = {"lab_serve_user": getpass.getuser(), **values}
        lines = "".join(f'{key}="{value}"\n' for key, value in values.items())
        (self.root / "etc/rc.conf").write_text(lines)

    def refused(self, argument: str, words: str) -> None:
        with pytest.raises(CommandFailed) as failure:
            self.service(argument)
        assert words in failure.value.stderr

    def service(self, *arguments: str) -> Completed:
        return run(["sh", str(self.script), *arguments], timeout=SECONDS)

    @property
    def log(self) -> Path:
        return self.root / "var/log/lab_serve.log"

    def logged(self, words: str) -> str:
        def look() -> str | None:
            text = self.log.read_text() if self.log.exists() else ""
            return text if words in text else None

        found = until(look, Deadline.after(SECONDS))
        assert found, f"{words} is not in the log"
        return found


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made = Host(tmp_path, rc_double.install(SCRIPT, tmp_path))
    program = tmp_path / "lab"
    program.write_text(SERVICE)
    program.chmod(0o755)
    made.rc(lab_serve_enable="YES", lab_serve_lab=str(program))
    try:
        yield made
    finally:
        pidfile = tmp_path / "var/run/lab_serve/pid"
        with suppress(OSError, ValueError):
            os.kill(int(pidfile.read_text()), signal.SIGTERM)


def test_it_is_a_script_of_posix_shells() -> None:
    run(["sh", "-n", str(SCRIPT)], timeout=SECONDS)
    assert os.access(SCRIPT, os.X_OK)
    head = dict(re.findall(r"^# (PROVIDE|REQUIRE|KEYWORD): (.*)$", SCRIPT.read_text(), re.M))
    # `vm` is what vm-bhyve's own script provides: guests must be startable, and end after us.
    assert head == {"PROVIDE": "lab_serve", "REQUIRE": "LOGIN vm", "KEYWORD": "shutdown"}


def test_the_life_of_the_service(host: Host) -> None:
    with pytest.raises(CommandFailed):
        host.service("status")
    host.service("start")
    host.logged("serving serve")
    assert "is running as pid" in host.service("status").stdout
    host.refused("start", "already running")
    host.service("stop")
    assert "ended" in host.log.read_text(), "it was killed, not asked to end"
    assert not (host.root / "var/run/lab_serve/pid").exists()
    host.refused("stop", "not running")


def test_it_stops_where_nothing_reaps(host: Host) -> None:
    """Protects these tests in containers: PID 1 there may leave each ended process a zombie."""
    alone = ["unshare", "--user", "--map-current-user", "--pid", "--fork", "--kill-child"]
    if not shutil.which("unshare") or subprocess.run([*alone, "true"], check=False).returncode:
        pytest.skip("needs namespaces of processes, as on Linux")
    ended = host.root / "ended"
    life = f"""
        sh "{host.script}" start && until sh "{host.script}" status; do sleep 0.05; done &&
        sh "{host.script}" stop; echo $? >"{ended}"
    """
    argv = [*alone, "--mount-proc", "sh", "-c", f"({life}) & exec sleep 60"]
    with subprocess.Popen(argv) as process:
        try:
            assert until(ended.exists, Deadline.after(SECONDS))
            assert until(ended.read_text, Deadline.after(SECONDS)) == "0\n"
        finally:
            process.kill()


def test_what_rc_conf_says_reaches_it(host: Host) -> None:
    program = str(host.root / "lab")
    host.rc(
        lab_serve_enable="YES", lab_serve_lab=program, lab_serve_args="--port 8443",
        lab_serve_env="LAB_HOME=/tank/lab",
    )  # fmt: skip
    host.service("start")
    line = host.logged("serving")
    assert "serving serve --port 8443 for /tank/lab" in line
    assert "/usr/local/sbin" in line, "`vm` would not be found at boot"


def test_the_administrator_s_token_is_not_logged(host: Host) -> None:
    host.service("start")
    host.logged("serving")
    assert "secret" not in host.log.read_text()
    assert host.log.stat().st_mode & 0o777 == 0o600


def test_it_has_limits(host: Host) -> None:
    """Protects secrets from core dumps, and the service from clients with an open file each."""
    host.rc(
        lab_serve_enable="YES", lab_serve_lab=str(host.root / "lab"), lab_serve_limits="-n 512",
    )  # fmt: skip
    host.service("start")
    assert host.logged("serving").rstrip().endswith(" 512")
    host.service("stop")
    host.rc(lab_serve_enable="YES", lab_serve_lab=str(host.root / "lab"))
    host.log.write_text("")
    host.service("start")
    assert host.logged("serving").rstrip().endswith("limits 0 16384")


def test_reload_reopens_the_log_and_the_service_keeps_running(host: Host) -> None:
    """Protects the service, which SIGHUP ends, from newsyslog."""
    host.service("start")
    host.logged("serving")
    pid = (host.root / "pid").read_text()
    shutil.move(host.log, old := host.log.with_suffix(".0"))
    host.service("reload")
    assert until(host.log.exists, Deadline.after(SECONDS))
    host.service("stop")
    assert (host.root / "pid").read_text() == pid
    assert "ended" in host.log.read_text()
    assert "ended" not in old.read_text()


def test_a_service_that_crashed_is_started_again(host: Host) -> None:
    host.service("start")
    host.logged("serving")
    first = (host.root / "pid").read_text()
    os.kill(int(first), signal.SIGKILL)
    assert until(
        lambda: (host.root / "pid").read_text().strip() not in ("", first.strip()),
        Deadline.after(SECONDS),
    )
    assert "is running as pid" in host.service("status").stdout


def test_it_is_off_unless_it_was_switched_on(host: Host) -> None:
    host.rc(lab_serve_lab=str(host.root / "lab"))
    assert "Set lab_serve_enable to YES" in host.service("start").stdout
    assert not host.log.exists()
    host.service("onestart")
    host.logged("serving")


def test_a_missing_program_is_reported(host: Host) -> None:
    host.rc(lab_serve_enable="YES", lab_serve_lab=str(host.root / "nothing"))
    host.refused("start", "not readable")


def test_the_variables_it_documents_are_those_it_reads() -> None:
    text = SCRIPT.read_text()
    documented = set(re.findall(r"^#   (lab_serve_\w+) ", text, re.M))
    set_ = set(re.findall(r'^: "\$\{(lab_serve_\w+):=', text, re.M))
    assert documented == set_ | {"lab_serve_env"}, json.dumps(sorted(documented ^ set_))


def test_the_documentation_has_its_variables_and_defaults() -> None:
    page = (SCRIPT.parents[2] / "docs/freebsd.md").read_text()
    rows = dict(re.findall(r"^\| `(lab_serve_\w+)` \| *`?([^|`]*)`? *\|", page, re.M))
    set_ = dict(re.findall(r'^: "\$\{(lab_serve_\w+):=([^}]*)\}"', SCRIPT.read_text(), re.M))
    assert {key: value.strip() for key, value in rows.items()} == set_ | {"lab_serve_env": ""}


def test_what_is_to_be_installed_for_the_service_is_what_it_needs() -> None:
    """Protects from a package that dbos needs and `--no-deps` leaves out."""
    page = (SCRIPT.parents[2] / "docs/freebsd.md").read_text()
    lines = re.findall(r"^(?:pkg|\.venv/bin/pip) install (.*)$", page, re.M)
    installed = {
        re.split(r"[><=]", word)[0].lower() for line in lines for word in shlex.split(line)
    }
    installed |= {word.removeprefix("$py-") for word in installed}
    needed = [one for one in requires("dbos") or [] if "extra ==" not in one]
    needed += [one for one in requires(distribution.NAME) or [] if 'extra == "serve"' in one]
    names = {re.split(r"[><=!~ ;]", one)[0].lower() for one in needed}
    # The first comes with lab itself; of the second only the part that is not made for FreeBSD.
    names -= {"pyyaml"}
    assert {name.replace("psycopg[binary]", "psycopg") for name in names} <= installed

"""The recipe of Percona XtraDB Cluster, as far as it can be checked without Percona's packages.

It has not yet been run against them: what it must hold was read in the sources of Percona's server,
of its Debian packaging and of systemd.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from lab.imagebuild import bootstrap, build
from lab.imagebuild.recipe import GUEST, Recipe, load, recipes
from lab.imagebuild.tree import OVERLAYS, files
from lab.units import GIB

RECIPE = load("percona-xtradb-cluster")
PROVISION = (RECIPE.directory / "provision").read_text(encoding="utf-8")
OPTIONS = (RECIPE.directory / "my.cnf").read_text(encoding="utf-8")
UNIT = RECIPE.directory / "etc/systemd/system" / RECIPE.service


def code(text: str) -> str:
    """A script without its comments."""
    return re.sub(r"(?m)^\s*#.*\n", "", text)


def test_the_account_has_a_hash_and_no_random_password() -> None:
    """A member of a cluster refuses RANDOM PASSWORD (sql_user.cc): the build would end there."""
    assert "RANDOM PASSWORD" not in code(PROVISION)
    created = re.search(r"CREATE USER lab@'%'[^;]*;", PROVISION)
    assert created is not None
    assert re.search(r"AS '\*[0-9A-F]{40}' ACCOUNT LOCK;", created[0])


def guest_tree(top: Path, unit: str, recipe: Recipe = RECIPE) -> Path:
    """The units of a guest as they are in an image: lab's, ``unit``, and what is masked."""
    for source in (GUEST, recipe.directory):
        for file in files(source):
            if file.path.split("/", 1)[0] in OVERLAYS:
                path = top / file.path
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(file.content)
                path.chmod(file.mode)
    server = top / "usr/sbin/mysqld"
    server.parent.mkdir(parents=True)
    server.write_text("#!/bin/sh\n")
    server.chmod(0o755)
    (top / "etc/systemd/system" / RECIPE.service).write_text(unit, encoding="utf-8")
    (top / "etc/systemd/system/local-fs.target").write_text("[Unit]\n")
    assert "remote-fs.target" in (GUEST / "provision").read_text(), "the guest masks it"
    (top / "etc/systemd/system/remote-fs.target").symlink_to("/dev/null")
    return top


def verify(tree: Path) -> subprocess.CompletedProcess[str]:
    argv = ["systemd-analyze", "verify", "--man=no", f"--root={tree}", RECIPE.service]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)


needs_systemd = pytest.mark.skipif(
    not shutil.which("systemd-analyze"), reason="needs systemd-analyze"
)


@needs_systemd
def test_the_unit_starts_in_a_guest(tmp_path: Path) -> None:
    """Protects each boot: a requirement of a masked unit would keep the server from starting."""
    checked = verify(guest_tree(tmp_path, UNIT.read_text(encoding="utf-8")))
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


@needs_systemd
@pytest.mark.parametrize("name", ["percona-server", "percona-server-8.0"])
def test_the_unit_of_percona_server_starts_in_a_guest(tmp_path: Path, name: str) -> None:
    recipe = load(name)
    unit = recipe.directory / "etc/systemd/system" / recipe.service
    checked = verify(guest_tree(tmp_path, unit.read_text(encoding="utf-8"), recipe))
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


@needs_systemd
def test_the_packaged_requirement_would_not_start(tmp_path: Path) -> None:
    """The check above finds what the packaged unit has (Requires=remote-fs.target)."""
    packaged = UNIT.read_text(encoding="utf-8").replace(
        "[Unit]\n", "[Unit]\nRequires=local-fs.target remote-fs.target\n"
    )
    checked = verify(guest_tree(tmp_path, packaged))
    assert checked.returncode != 0
    assert "remote-fs.target is masked" in checked.stdout + checked.stderr


def test_the_unit_is_whole() -> None:
    """A drop-in cannot remove a requirement of the packaged unit (systemd.unit(5))."""
    assert "mysql.service.d" not in code(PROVISION)
    text = code(UNIT.read_text(encoding="utf-8"))
    assert "ExecStart=/usr/sbin/mysqld $_WSREP_START_POSITION" in text
    assert "ExecStartPre=+/usr/lib/lab/recover" in text
    assert "remote-fs" not in text


def test_stops_have_the_time_to_finish() -> None:
    """A server that waits 10 s and is killed 5 s later leaves no position: seqno is -1."""
    assert re.search(r"(?m)^pxc_maint_transition_period = 0$", OPTIONS)
    assert "--pxc-maint-transition-period=0" in PROVISION
    seconds = re.search(r"(?m)^TimeoutStopSec=(\d+)$", UNIT.read_text(encoding="utf-8"))
    assert seconds is not None
    assert int(seconds[1]) >= 900


def test_packages_find_the_data_directory_occupied(tmp_path: Path) -> None:
    """An empty one would be initialised, and a server started in the host's network namespace."""
    [hook] = bootstrap.occupy(RECIPE.occupied)
    subprocess.run(["sh", "-c", hook, "sh", tmp_path], check=True)
    assert list((tmp_path / "var/lib/mysql").iterdir())
    assert "install -d -o mysql -g mysql -m 750 /var/lib/mysql" in PROVISION
    argv = bootstrap.command(tmp_path, "trixie", ["a"], setup=[hook])
    assert f"--setup-hook={hook}" in argv


def test_only_percona_needs_an_occupied_directory() -> None:
    """Debian's packages initialise without a network, and fail on a directory that is not empty."""
    occupied = [name for name in recipes() if load(name).occupied]
    assert occupied == [name for name in recipes() if name.startswith("percona-")]
    assert bootstrap.occupy("") == []


def test_statements_wait_for_the_cluster() -> None:
    """The server answers pings before it is synced, and refuses statements until then (1047)."""
    before, waits, rest = PROVISION.partition("SHOW STATUS LIKE 'wsrep_ready'")
    assert waits
    assert "CREATE USER" in rest
    assert "CREATE USER" not in before
    assert "ping" not in code(PROVISION)
    tries = re.search(r'"\$tries" -le (\d+)', PROVISION)
    pause = re.search(r"sleep ([\d.]+)", PROVISION)
    assert tries is not None
    assert pause is not None
    assert 300 <= int(tries[1]) * float(pause[1]) <= build.PROVISION_SECONDS - 300, (
        "seconds that an emulated builder has, initialisation and stop besides"
    )


def test_room_for_the_packages() -> None:
    """They are 180 MB packed, with two releases of XtraBackup in them; the tree and the disk."""
    assert build.SPACE_NEEDED >= 5 * GIB


def test_options_that_a_later_series_lost_are_loose() -> None:
    """An unknown option ends the server; with loose_ it is passed over."""
    for name in ("sha256_password_auto_generate_rsa_keys", "mysql_native_password"):
        lines = [
            line
            for text in (OPTIONS, PROVISION.replace("-", "_"))
            for line in code(text).splitlines()
            if re.search(rf"(?<!caching_){name}\b\s*=", line.replace("__", ""))
        ]
        assert lines
        assert all(f"loose_{name}" in line for line in lines), lines

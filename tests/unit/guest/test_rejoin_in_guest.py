"""The guest's programs that bring a server back into its cluster, run here on a pretended guest."""

from __future__ import annotations

import re
import secrets
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import ROOT

PROGRAMS = ROOT / "images/guest/usr/lib/lab"
UUID = "0fd7f221-e597-11f1-869e-4f5edd524c08"
NOWHERE = "00000000-0000-0000-0000-000000000000"
NEW = "--wsrep-new-cluster"


@dataclass
class Guest:
    """A directory that the programs take for a guest."""

    root: Path

    def __post_init__(self) -> None:
        for name in ("var/lib/mysql", "run/mysqld", "usr/bin", "usr/lib/lab", "bin"):
            (self.root / name).mkdir(parents=True)
        self.config("gcomm://127.82.255.1,127.82.255.2")
        self.program("usr/bin/galera_recovery", "exit 1")
        for name in ("systemctl", "pgrep"):
            self.program(f"bin/{name}", f'echo "{name} $*" >>{self.root}/called; exit 1')

    def program(self, name: str, script: str) -> None:
        path = self.root / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def config(self, address: str) -> None:
        path = self.root / "etc/mysql/mariadb.conf.d/99-lab.cnf"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"wsrep_provider = /lib/x.so\nwsrep_cluster_address = {address}\n")

    def grastate(self, uuid: str, seqno: int, safe: int = 0) -> None:
        text = (
            f"# GALERA saved state\nuuid:    {uuid}\nseqno:   {seqno}\nsafe_to_bootstrap: {safe}\n"
        )
        self.data("grastate.dat").write_text(text)

    def data(self, name: str) -> Path:
        return self.root / "var/lib/mysql" / name

    def recovers(self, position: str) -> None:
        self.program("usr/bin/galera_recovery", f"echo --wsrep_start_position={position}")

    def order(self, word: str) -> None:
        (self.root / "run/lab-rejoin").write_text(f"{word}\n")

    def run(self, name: str, *args: str) -> str:
        text = (PROGRAMS / name).read_text()
        text = re.sub(r"(?<=[\s=<>\"(])/(?=(?:var|run|usr|etc)/)", f"{self.root}/", text)
        path = self.root / "usr/lib/lab" / name
        path.write_text(text)
        done = subprocess.run(
            ["/bin/sh", path, *args],
            env={"PATH": f"{self.root}/bin:/usr/bin:/bin"},
            capture_output=True, text=True, check=False, timeout=30,
        )  # fmt: skip
        assert done.returncode == 0, done
        return done.stdout

    def started(self) -> tuple[str, str]:
        """The position that is reported to the host, and the server's arguments."""
        self.run("recover")
        arguments = self.root / "run/mysqld/wsrep-start-position"
        text = arguments.read_text().strip() if arguments.exists() else '=""'
        return (self.root / "run/lab-position").read_text().strip(), text.partition("=")[2][1:-1]


@pytest.fixture
def guest(tmp_path: Path) -> Guest:
    return Guest(tmp_path)


def test_a_first_start_needs_nothing(guest: Guest) -> None:
    assert guest.started() == ("none no", "")


def test_a_clean_stop_needs_no_recovery_pass(guest: Guest) -> None:
    guest.grastate(UUID, 42)
    assert guest.started() == (f"{UUID}:42 no", "")


@pytest.mark.parametrize("seqno", [42, -1])
def test_a_server_without_a_provider_just_starts(guest: Guest, seqno: int) -> None:
    """Protects single servers: the image's data directory is that of a cluster of one."""
    (guest.root / "etc/mysql/mariadb.conf.d/99-lab.cnf").write_text("[mariadbd]\n")
    guest.grastate(UUID, seqno, safe=1)
    assert guest.started() == ("none no", "")


def test_who_left_last_starts_the_cluster(guest: Guest) -> None:
    """Unless it can restore a view together with others."""
    guest.grastate(UUID, 42, safe=1)
    assert guest.started() == (f"{UUID}:42 no", NEW)
    guest.data("gvwstate.dat").touch()
    assert guest.started() == (f"{UUID}:42 no", "")


def test_no_cluster_is_started_beside_another(guest: Guest) -> None:
    """Protects from two clusters: a node that went back may have been the last one then."""
    net = f"127.82.{secrets.randbelow(255)}"
    guest.config(f"gcomm://{net}.1,{net}.2,{net}.3")
    guest.grastate(UUID, 42, safe=1)
    with socket.create_server((f"{net}.2", 3306)):
        assert guest.started() == (f"{UUID}:42 no", "")
    assert guest.started() == (f"{UUID}:42 no", NEW)


def test_after_a_crash_the_position_is_recovered(guest: Guest) -> None:
    guest.grastate(UUID, -1)
    guest.recovers(f"{UUID}:42")
    assert guest.started() == (f"{UUID}:42 no", f"--wsrep_start_position={UUID}:42")


def test_a_node_that_was_being_given_data_is_doubtful(guest: Guest) -> None:
    guest.grastate(NOWHERE, -1)
    guest.recovers(f"{UUID}:42")
    assert guest.started()[0] == f"{UUID}:42 yes"


def test_what_cannot_be_recovered_is_reported(guest: Guest) -> None:
    """The server is started all the same: its own log says what is wrong."""
    guest.grastate(UUID, -1)
    assert guest.started() == ("damaged no", "")


def test_a_cluster_of_one_starts_itself(guest: Guest) -> None:
    guest.config("gcomm://")
    guest.grastate(UUID, -1)
    guest.recovers(f"{UUID}:42")
    guest.started()
    assert "safe_to_bootstrap: 1" in guest.data("grastate.dat").read_text()


def test_an_order_to_start_the_cluster(guest: Guest) -> None:
    """It holds for one start only."""
    guest.grastate(UUID, -1)
    guest.recovers(f"{UUID}:42")
    guest.data("gvwstate.dat").touch()
    guest.order("bootstrap")
    expected = (f"{UUID}:42 no", f"--wsrep_start_position={UUID}:42 {NEW}")
    assert guest.started() == expected
    assert not guest.data("gvwstate.dat").exists()
    assert "safe_to_bootstrap: 1" in guest.data("grastate.dat").read_text()
    assert guest.started()[1] == f"--wsrep_start_position={UUID}:42"


def test_the_cluster_can_start_from_a_doubtful_node(guest: Guest) -> None:
    """If there is no better one; Galera would start another history otherwise."""
    guest.grastate(NOWHERE, -1)
    guest.recovers(f"{UUID}:42")
    guest.order("bootstrap")
    guest.started()
    assert f"uuid:    {UUID}" in guest.data("grastate.dat").read_text()


def test_an_order_to_be_given_data(guest: Guest) -> None:
    guest.grastate(UUID, 42)
    guest.data("gvwstate.dat").touch()
    guest.order("transfer")
    assert guest.started() == ("none no", "")
    assert list(guest.data("").iterdir()) == []


def test_how_a_node_stands(guest: Guest) -> None:
    guest.grastate(UUID, -1)
    guest.recovers(f"{UUID}:42")
    guest.data("gvwstate.dat").write_text(
        "my_uuid: a\n#vwbeg\nview_id: 3 a 9\nbootstrap: 0\nmember: a 0\nmember: b 0\n#vwend\n"
    )
    guest.program("bin/systemctl", "echo activating; exit 3")
    assert guest.run("rejoin", "state", "mariadb.service").splitlines() == [
        "server\tactivating", "me\ta", "member\ta", "member\tb",
    ]  # fmt: skip
    guest.order("bootstrap")
    guest.started()
    guest.program("bin/pgrep", "exit 0")
    guest.program(
        "usr/lib/lab/sql",
        r"printf 'wsrep_cluster_size\t2\nwsrep_cluster_status\tPrimary\n'",
    )
    assert guest.run("rejoin", "state", "mariadb.service").splitlines() == [
        "server\tactivating", f"position\t{UUID}:42", "doubtful\tno", "bootstraps\tyes",
        "transfer\tyes", "wsrep_cluster_status\tPrimary",
    ]  # fmt: skip


@pytest.mark.parametrize("unit", ["mariadb.service", "mysql.service"])
def test_an_order_is_left_and_the_server_started(tmp_path: Path, unit: str) -> None:
    guest = Guest(tmp_path / unit)
    guest.program("bin/systemctl", f'echo "$*" >>{guest.root}/called')
    guest.run("rejoin", "transfer", unit)
    called = (guest.root / "called").read_text().splitlines()
    assert called[1:] == [f"stop {unit}", f"reset-failed {unit}", f"start --no-block {unit}"]
    assert (guest.root / "run/lab-rejoin").read_text() == "transfer\n"
    (guest.root / "run/lab-rejoin").unlink()
    guest.run("rejoin", "restart", unit)
    assert not (guest.root / "run/lab-rejoin").exists()


def test_nodes_at_rest_start_as_they_were_formed(guest: Guest) -> None:
    """Protects cold clones: no recovery pass, no start of a new cluster, nothing to transfer."""
    removes = f'[ "$*" = "stop mysql.service" ] && rm "{guest.data("gvwstate.dat")}"'
    guest.program("bin/systemctl", removes)
    guest.data("gvwstate.dat").write_text("view of all\n")
    guest.data("galera.cache").touch()
    guest.grastate(UUID, 42, safe=1)
    guest.run("rest", "view")
    assert guest.run("rest", "stop", "mysql.service") == f"{UUID}:42\n"
    guest.run("rest", "at", "44")
    assert guest.data("gvwstate.dat").read_text() == "view of all\n"
    assert not guest.data("galera.cache").exists()
    assert guest.started() == (f"{UUID}:44 no", "")


def test_identities_of_a_member_that_others_follow(guest: Guest) -> None:
    """Protects branches of branches: server id and both GTID domains are the last ones given."""
    config = guest.root / "etc/mysql/mariadb.conf.d/99-lab.cnf"
    config.write_text("server_id = 1\n[mysqld]\nwsrep_gtid_domain_id = 0\ngtid_domain_id = 2\n")
    (guest.root / "etc/lab").mkdir()
    for number in ("700", "800"):
        guest.grastate(UUID, 42)
        words = (str(config), f"{number}1", f"{number}2", NOWHERE, "43", number)
        guest.run("identity", *words)
        assert (guest.root / "etc/lab/cluster.sql").read_text() == (
            f"SET GLOBAL wsrep_gtid_domain_id = {number};\n"
        )
        where = f"{guest.root}/etc/lab/cluster.sql"
        assert config.read_text().replace(where, "/etc/lab/cluster.sql") == (
            f"server_id = {number}1\ngtid_domain_id = {number}2\n[mysqld]\n"
            f"wsrep_gtid_domain_id = {number}\ninit_file = /etc/lab/cluster.sql\n"
        )
        assert "seqno:   43\n" in guest.data("grastate.dat").read_text()

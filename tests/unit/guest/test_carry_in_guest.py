"""The guest's program that takes over what a node had in its former system, run here."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import ROOT

CARRY = ROOT / "images/guest/usr/lib/lab/carry"
CONFIG = "/etc/mysql/99-lab.cnf"
HERE = "[mysqld]\nserver_id = 9\ngtid_domain_id = 9\nnew = here\n"
FORMER = "[mysqld]\nold = there\nserver_id = 2\ngtid_domain_id = 0\ninit_file = /etc/lab/x.sql\n"


@dataclass
class Guest:
    """A directory that the program takes for a guest, and one with its former system."""

    root: Path

    def __post_init__(self) -> None:
        self.former = self.root / "former"
        for top, config in ((self.root, HERE), (self.former, FORMER)):
            for name in ("var/lib/mysql/shop", "etc/lab", "etc/mysql", "run"):
                (top / name).mkdir(parents=True)
            (top / f".{CONFIG}").write_text(config)
            (top / "etc/machine-id").write_text(f"{config[:30]}\n")
        for name in ("bin", "dev", "proc", "sys/block/vda", "sys/block/vdb"):
            (self.root / name).mkdir(parents=True)
        (self.root / "sys/block/vda/serial").write_text("lab-shop")
        (self.root / "sys/block/vdb/serial").write_text("lab-former")
        (self.root / "dev/vdb2").touch()
        (self.root / "proc/mounts").write_text("/dev/vda2 / ext4 rw 0 0\n")
        self.program("mount", f'cp -a {self.former}/. "$6/"; echo "$*" >{self.root}/mounted')
        self.program("umount", 'rm -r "$1"')
        self.program("chown", f'echo "$*" >>{self.root}/owned')
        self.program("sync", ":")

    def program(self, name: str, script: str) -> None:
        path = self.root / "bin" / name
        path.write_text(f"#!/bin/sh\nset -e\n{script}\n")
        path.chmod(0o755)

    def carry(self, *check: str) -> subprocess.CompletedProcess[str]:
        text = re.sub(
            r"(?<=[\s=\"])/(?=(?:var|run|etc|sys|dev|proc)/)", f"{self.root}/", CARRY.read_text()
        )
        text = text.replace('"$old$data/.', f'"$old${{data#{self.root}}}/.')
        path = self.root / "carry"
        path.write_text(text.replace('" $1 "', f'" ${{1#{self.root}}} "'))
        return subprocess.run(
            ["/bin/sh", path, CONFIG, f"{self.root}{CONFIG}", "mysql", *(check or ("true",))],
            env={"PATH": f"{self.root}/bin:/usr/bin:/bin"},
            capture_output=True, text=True, check=False, timeout=30,
        )  # fmt: skip

    def text(self, name: str) -> str:
        return (self.root / name).read_text()


@pytest.fixture
def guest(tmp_path: Path) -> Guest:
    return Guest(tmp_path)


def test_data_and_identities_are_taken_over(guest: Guest) -> None:
    """Protects a node's data and its number in the cluster, and the options of the new system."""
    (guest.former / "var/lib/mysql/shop/t.ibd").write_bytes(b"rows")
    (guest.former / "var/lib/mysql/.hidden").touch()
    (guest.root / "var/lib/mysql/of-the-image").touch()
    for name in ("source", "cluster.sql"):
        (guest.former / "etc/lab" / name).write_text(name)
    done = guest.carry()
    assert (done.returncode, done.stderr) == (0, "")
    data = guest.root / "var/lib/mysql"
    assert {str(path.relative_to(data)) for path in data.rglob("*")} == {
        "shop", "shop/t.ibd", ".hidden",
    }  # fmt: skip
    assert guest.text("mounted") == (
        f"-t ext4 -o nosuid,nodev,noexec {guest.root}/dev/vdb2 {guest.root}/run/lab-former\n"
    )
    assert guest.text("owned") == f"-R mysql:mysql {data}\n"
    assert guest.text(CONFIG[1:]) == (
        "[mysqld]\nserver_id = 2\ninit_file = /etc/lab/x.sql\ngtid_domain_id = 0\nnew = here\n"
    )
    assert guest.text("etc/machine-id") == f"{FORMER[:30]}\n"
    assert guest.text("etc/lab/cluster.sql") == "cluster.sql"
    assert not (guest.root / "run/lab-former").exists()


def test_data_on_a_disk_of_their_own_stay(guest: Guest) -> None:
    """Protects the layout with volumes for data: the former system has none."""
    (guest.root / "var/lib/mysql/shop/t.ibd").write_bytes(b"rows")
    (guest.root / "var/lib/mysqllog").mkdir()
    (guest.root / "proc/mounts").write_text("/dev/vdc /var/lib/mysql ext4 rw 0 0\n")
    assert guest.carry().returncode == 0
    assert guest.text("var/lib/mysql/shop/t.ibd") == "rows"
    assert "mysqllog" in guest.text("owned")


def test_what_goes_wrong_is_said(guest: Guest) -> None:
    """Protects the report: an option that the new server does not know, and a disk that is away."""
    done = guest.carry("sh", "-c", "echo 'unknown variable' >&2; exit 3")
    assert (done.returncode, done.stderr) == (3, "unknown variable\n")
    (guest.root / "sys/block/vdb/serial").write_text("other")
    done = guest.carry()
    assert (done.returncode, done.stderr) == (1, "there is no disk lab-former\n")

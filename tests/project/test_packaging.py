"""What is to be copied to a host that serves labs."""

from __future__ import annotations

import shutil
import subprocess
from configparser import ConfigParser
from pathlib import Path

import pytest

from lab.cli.commands import RootVerbs
from lab.config.settings import load
from tests import ROOT

PACKAGING = ROOT / "packaging"
DOCS = PACKAGING.parent / "docs"


def test_the_example_of_a_config_file_is_one() -> None:
    """Protects who copies it: every key is known, and has the value that it shows."""
    settings = load(env={}, files=[PACKAGING / "config.toml"])
    assert settings.published_as == "labs.example"
    assert (settings.serve.port, settings.serve.memory) == (8443, 48 << 30)
    (pool,) = settings.serve.pool
    assert (pool.spec.blueprint, pool.spec.nodes, pool.count) == ("pxc", 3, 2)


def test_the_unit_of_systemd_names_what_there_is() -> None:
    """Protects from a unit that starts nothing, or that takes guests down with the service."""
    unit = ConfigParser(interpolation=None, strict=False)  # CapabilityBoundingSet may be repeated
    unit.optionxform = str  # type: ignore[assignment,method-assign]  # keys are as they are written
    unit.read(PACKAGING / "systemd/lab.service")
    program, verb = unit["Service"]["ExecStart"].split()
    assert Path(program).is_absolute()
    assert verb in RootVerbs.table
    assert unit["Service"]["KillMode"] == "process"
    assert unit["Service"]["StandardOutput"] == "null", "the token would be in the journal"
    assert int(unit["Service"]["TimeoutStopSec"]) > 13
    documentation = Path(unit["Unit"]["Documentation"].removeprefix("file://"))
    assert (DOCS / documentation.name).exists()


UNIT = PACKAGING / "systemd/lab.service"
TARGETS = ("basic", "multi-user", "network-online", "shutdown", "sysinit")

needs_systemd = pytest.mark.skipif(
    not shutil.which("systemd-analyze"), reason="needs systemd-analyze"
)


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    argv = ["systemd-analyze", *arguments]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)


@needs_systemd
def test_systemd_knows_all_that_the_unit_says(tmp_path: Path) -> None:
    """Protects from a fence that systemd ignores, with a warning that nobody reads."""
    units = tmp_path / "etc/systemd/system"
    units.mkdir(parents=True)
    shutil.copy(UNIT, units)
    for name in TARGETS:
        (units / f"{name}.target").write_text("[Unit]\n")
    program = tmp_path / "opt/lab/.venv/bin/lab"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    checked = analyze("verify", "--man=no", f"--root={tmp_path}", UNIT.name)
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


@needs_systemd
def test_the_unit_is_fenced_in() -> None:
    """Protects the host from the service: 96 is a unit that says nothing, as this one once did."""
    checked = analyze("security", "--offline=yes", "--threshold=60", str(UNIT))
    assert checked.returncode == 0, checked.stdout


def test_the_unit_leaves_what_root_is_needed_for() -> None:
    """Protects image builds (mounts, namespaces, device nodes, setuid files) and ZVols' devices."""
    lines = [line.partition("=") for line in UNIT.read_text().splitlines()]
    said = {key: value for key, _, value in lines if not key.startswith("#")}
    assert not {"PrivateDevices", "PrivateUsers", "RestrictSUIDSGID", "ProtectClock"} & set(said)
    dropped = " ".join(value for key, _, value in lines if key == "CapabilityBoundingSet")
    assert not {"CAP_SYS_ADMIN", "CAP_MKNOD", "CAP_SYS_CHROOT", "CAP_SETFCAP"} & set(
        dropped.split()
    )
    assert "@mount" not in said["SystemCallFilter"]
    assert not {"mnt", "pid", "net"} & set(said["RestrictNamespaces"].split())

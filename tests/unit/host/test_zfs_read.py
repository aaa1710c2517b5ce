"""The reader: files and the output of programs in, facts out; what it cannot read it says.

The texts have their real formats; they are tried truncated and malformed too.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lab.errors import CommandFailed, HostUnfit
from lab.host.zfs import parse
from lab.host.zfs import source as sources
from lab.host.zfs.facts import Facts, Lvm, Pool, Tunable, Unknown, Versions
from lab.host.zfs.read import read
from lab.host.zfs.source import Source
from tests.support.vanishing import vanishing
from tests.support.zfs_hosts import Programs, freebsd, link, linux, put, text


def read_linux(source: Source, dataset: str = "tank/lab") -> Facts:
    facts = read("linux", source, dataset)
    assert facts
    return facts


def only(facts: Facts) -> Pool:
    assert not isinstance(facts.pools, Unknown)
    (pool,) = facts.pools
    return pool


@pytest.mark.parametrize(("version", "most"), [("2.1", 1564215296), ("2.3", 2049089536)])
def test_a_linux_host(tmp_path: Path, version: str, most: int) -> None:
    """Protects the paths of each fact, in both versions."""
    facts = read_linux(linux(tmp_path, version)[0])
    assert facts.module
    assert facts.tunables["nocacheflush"] == Tunable("zfs_nocacheflush", 0)
    assert "bio_flush_disable" not in facts.tunables
    assert isinstance(facts.versions, Versions)
    assert facts.versions.kernel == facts.versions.userland != ""
    assert isinstance(facts.arc, dict)
    assert facts.arc["c_max"] == most
    assert not {"12", "19", "name"} & set(facts.arc), "the header is no counter"
    assert isinstance(facts.dataset, dict)
    assert facts.dataset["volmode"] == "dev"
    pool = only(facts)
    assert pool.status == {}
    assert isinstance(pool.properties, dict)
    assert pool.properties["feature@lz4_compress"] == "active"
    assert facts.lvm == Lvm(False, (("r|^/dev/zd|", "r|^/dev/zvol/|"), ("a|.*|",)))
    assert facts.link_rule == "/usr/lib/udev/rules.d/60-zvol.rules"
    assert facts.holders == {}
    assert facts.swaps == ("/dev/dm-1", "/dev/zd16")


@pytest.mark.parametrize(("release", "arc_max"), [("14", 0), ("15", 4294967296)])
def test_a_freebsd_host(tmp_path: Path, release: str, arc_max: int) -> None:
    facts = read("freebsd", freebsd(tmp_path, release)[0], "tank/lab")
    assert facts
    assert facts.tunables["arc_max"] == Tunable("vfs.zfs.arc.max", arc_max)
    devices = facts.tunables["inhibit_dev"].value
    assert devices == 0 or (isinstance(devices, Unknown) and devices.absent)
    assert isinstance(facts.arc, dict)
    assert facts.arc["memory_all_bytes"] == 34252754944
    assert facts.arc["memory_available_bytes"] == -1048576
    assert facts.swaps == ("/dev/ada0p2", "/dev/zvol/zroot/swap")


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    """Protects from a guess: each fact that is missing has its reason."""
    source, programs = linux(tmp_path, "2.3")
    denied = CommandFailed(["zpool"], 1, stderr="cannot open /dev/zfs: Permission denied\n")
    for command in programs.answers:
        if command.startswith("zpool"):
            programs.answers[command] = denied
    put(tmp_path, "sys/module/zfs/parameters/zfs_nocacheflush", "soon\n")
    flush = tmp_path / "sys/module/zfs/parameters/zil_nocacheflush"
    flush.unlink()
    flush.mkdir()
    facts = read_linux(source)
    assert "Permission denied" in str(facts.pools)
    assert "no number" in str(facts.tunables["nocacheflush"].value)
    assert "Is a directory" in str(facts.tunables["zil_nocacheflush"].value)


def test_a_pool_that_hangs(tmp_path: Path) -> None:
    """Protects from a suspended pool: a program that does not answer costs its deadline only."""
    source, programs = linux(tmp_path, "2.3")
    late = CommandFailed(["zpool"], -9, stderr="timed out after 10 s")
    programs.answers["zpool status -x tank"] = late
    pool = only(read_linux(source))
    assert str(pool.status) == "unknown: `zpool status -x tank`: timed out after 10 s"
    assert not isinstance(pool.properties, Unknown)


def test_no_zfs_at_all(tmp_path: Path) -> None:
    assert read("linux", Source(tmp_path, Programs()), "") is None
    assert read("freebsd", Source(tmp_path, Programs()), "tank/lab") is None


def test_programs_without_a_module(tmp_path: Path) -> None:
    """Protects the state after a kernel update: ZFS is installed, and does not work."""
    failed = CommandFailed(["zfs"], 1, stderr="zfs_version_kernel() failed: No such file\n")
    programs = Programs({"zfs --version": failed})
    facts = read_linux(Source(tmp_path, programs))
    assert not facts.module
    assert isinstance(facts.arc, Unknown)
    assert [argv[0] for argv in programs.asked] == ["zfs"]  # FreeBSD's zpool loads the module


def test_only_the_pool_of_the_labs(tmp_path: Path) -> None:
    source, programs = linux(tmp_path, "2.3")
    programs.answers["zpool list -Hp -o name"] = "rpool\ntank\n"
    assert only(read_linux(source)).name == "tank"
    everything = read_linux(source, "").pools
    assert not isinstance(everything, Unknown)
    assert [pool.name for pool in everything] == ["rpool", "tank"]
    assert isinstance(everything[0].properties, Unknown)


def test_what_is_stacked_on_zvols(tmp_path: Path) -> None:
    source, _ = linux(tmp_path, "2.3")
    put(tmp_path, "sys/devices/virtual/dm-3/dm/uuid", "LVM-abc\n")
    link(tmp_path / "sys/class/block/dm-3", tmp_path / "sys/devices/virtual/dm-3")
    put(tmp_path, "sys/class/block/zd16/holders/dm-3", "")
    put(tmp_path, "sys/class/block/zd32p1/holders/md127", "")
    assert read_linux(source).holders == {"zd16": "LVM-abc", "zd32p1": "md127"}
    with vanishing(tmp_path / "sys/class/block/zd16/holders"):  # a ZVol that is destroyed
        assert read_linux(source).holders == {"zd32p1": "md127"}


def test_a_rule_that_was_disabled(tmp_path: Path) -> None:
    """Protects from an empty file, or a link to nothing, in /etc: udev obeys that."""
    source, _ = linux(tmp_path, "2.3")
    etc = tmp_path / "etc/udev/rules.d/60-zvol.rules"
    put(tmp_path, "etc/udev/rules.d/60-zvol.rules", "")
    assert read_linux(source).link_rule == ""
    etc.unlink()
    link(etc, Path("/dev/null"))
    assert read_linux(source).link_rule == ""
    (tmp_path / "run/udev/control").unlink()
    assert read_linux(source).link_rule is None


def test_lvm(tmp_path: Path) -> None:
    """Protects hosts with and without LVM's devices file, and with an LVM that knows none."""
    source, programs = linux(tmp_path, "2.3")
    asked = "lvmconfig --type full devices/use_devicesfile"
    programs.answers[asked] = "use_devicesfile=1\n"
    found = read_linux(source).lvm
    assert isinstance(found, Lvm)
    assert not found.devices_file  # LVM ignores the setting until the file exists
    put(tmp_path, "etc/lvm/devices/system.devices", "")
    assert read_linux(source).lvm == Lvm(True, found.filters)
    programs.answers[asked] = CommandFailed(["lvmconfig"], 5, stderr="not found")
    assert read_linux(source).lvm == Lvm(False, found.filters)
    programs.answers = {k: v for k, v in programs.answers.items() if "lvm" not in k}
    assert read_linux(source).lvm is None


def test_programs_are_run_in_english(monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects the parsers from a user's language, and users without /usr/sbin in PATH."""
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert sources.run(["sh", "-c", "echo $LC_ALL"]) == "C.UTF-8\n"
    with pytest.raises(HostUnfit):
        sources.run(["no-such-program"])


def test_versions() -> None:
    assert parse.versions("zfs-2.3.9-1\n") == Versions("2.3.9-1", "")
    assert parse.versions("ZFS? never heard\n") == Versions("", "")


def test_sysctls_that_are_no_assignments() -> None:
    """Protects from taking a complaint for a variable."""
    said = "sysctl: unknown oid 'vfs.zfs.x=1'\nvfs.zfs.vol.mode=2\nhw.model=A = B\nnonsense\n"
    assert parse.sysctls(said) == {"vfs.zfs.vol.mode": "2", "hw.model": "A = B"}
    assert parse.numbers({"a": "1", "b": "-2", "c": "3x", "d": ""}) == {"a": 1, "b": -2}


@pytest.mark.parametrize(
    ("name", "problem", "action", "errors"),
    [
        ("sick", "Applications may be affected.", "entire pool from backup.", "2 data errors, use"),
        ("degraded-2.1", "in a degraded state.", "with 'zpool replace'.", "No known data errors"),
        ("degraded-2.3", "in a degraded state.", "with 'zpool replace'.", "No known data errors"),
    ],
)
def test_status_of_a_sick_pool(name: str, problem: str, action: str, errors: str) -> None:
    """Protects long texts, and the end of the first pool."""
    found = parse.status(text(f"status-{name}"))
    assert isinstance(found, dict)
    assert found["state"] == "DEGRADED"
    assert found["status"].endswith(problem)
    assert found["action"].endswith(action)
    assert found["errors"].startswith(errors)


@pytest.mark.parametrize("said", ["", "no such pool\n", "  pool: tank\n state: ONLIN", "pool 'a'"])
def test_status_that_is_none(said: str) -> None:
    assert isinstance(parse.status(said), Unknown)


PARSERS: list[tuple[Callable[[str], Any], str]] = [
    (parse.versions, "version-2.3"),
    (parse.kstat, "arcstats-2.1"),
    (parse.sysctls, "sysctl-freebsd-15"),
    (parse.properties, "pool-2.1"),
    (parse.swaps, "swapctl"),
    (parse.status, "status-features"),
]


@pytest.mark.parametrize(("parser", "name"), PARSERS)
def test_texts_that_were_cut_off(parser: Callable[[str], Any], name: str) -> None:
    """Protects from half a number: what a shorter text says, the whole one says too."""
    whole = text(name)
    full = parser(whole)
    for length in range(0, len(whole), 3):
        part = parser(whole[:length])
        if isinstance(part, dict) and parser is not parse.status:  # a part may have more lines
            assert part.items() <= full.items()
        elif isinstance(part, tuple):
            assert part == full[: len(part)]


@pytest.mark.parametrize(("parser", "name"), PARSERS)
def test_texts_of_another_form(parser: Callable[[str], Any], name: str) -> None:
    """Protects doctor from a version that prints something else."""
    for said in ("", "\n\n\n", "\x00\xff\n" * 3, text(name).replace("\t", " "), "=\n#\n:\n\t\n"):
        parser(said)

"""The reader: real files and programs' words in, facts out; what it may not read it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.errors import CommandFailed, HostUnfit
from lab.host.zfs import source as sources
from lab.host.zfs.facts import Disk, Facts, Lvm, Pool, Tunable, Unknown
from lab.host.zfs.read import read
from lab.host.zfs.source import Source
from tests.support.zfs_hosts import Programs, disk, freebsd, link, linux, put, text


def read_linux(source: Source, dataset: str = "tank/lab") -> Facts:
    facts = read("linux", source, dataset)
    assert facts
    return facts


def read_freebsd(tmp_path: Path, release: str) -> Facts:
    facts = read("freebsd", freebsd(tmp_path, release)[0], "tank/lab")
    assert facts
    return facts


def only(facts: Facts) -> Pool:
    assert not isinstance(facts.pools, Unknown)
    (pool,) = facts.pools
    return pool


@pytest.mark.parametrize("version", ["2.1", "2.3"])
def test_a_linux_host(tmp_path: Path, version: str) -> None:
    """Protects the ways to each fact, in both versions."""
    facts = read_linux(linux(tmp_path, version)[0])
    assert facts.module
    assert facts.tunables["txg_timeout"] == Tunable("zfs_txg_timeout", 5)
    assert "bio_flush_disable" not in facts.tunables
    queues = facts.tunables["zvol_use_blk_mq"].value
    assert queues == 0 or (version == "2.1" and isinstance(queues, Unknown) and queues.absent)
    assert isinstance(facts.dataset, dict)
    pool = only(facts)
    assert pool.ashifts == {"mirror-0": 12, "mirror-1": 12, "mirror-2": 12}
    assert len(pool.of("data")) == 2
    seen = facts.neighbours
    assert seen.lvm == Lvm(False, (("r|^/dev/zd|", "r|^/dev/zvol/|"), ("a|.*|",)))
    assert (seen.udev, seen.link_rule) == (True, "/usr/lib/udev/rules.d/60-zvol.rules")
    assert seen.holders == {}


@pytest.mark.parametrize(
    ("release", "names"),
    [
        ("12", {"arc_max": "vfs.zfs.arc_max", "nocacheflush": "vfs.zfs.cache_flush_disable"}),
        ("14", {"arc_max": "vfs.zfs.arc.max", "nocacheflush": "vfs.zfs.nocacheflush"}),
        ("15", {"arc_max": "vfs.zfs.arc.max", "zvol_threads": "vfs.zfs.vol.threads"}),
    ],
)
def test_a_freebsd_host(tmp_path: Path, release: str, names: dict[str, str]) -> None:
    """Protects old and new names: the advice must name the one that this host has."""
    facts = read_freebsd(tmp_path, release)
    for key, name in names.items():
        assert facts.tunables[key].name == name
        assert isinstance(facts.tunables[key].value, int)
    threads = facts.tunables["zvol_threads"].value
    assert threads == 0 or (isinstance(threads, Unknown) and threads.absent)
    assert "zvol_use_blk_mq" not in facts.tunables
    assert isinstance(facts.arc, dict)
    assert facts.arc["memory_all_bytes"] == 34252754944
    assert facts.neighbours.swaps == ("/dev/ada0p2", "/dev/zvol/zroot/swap")


def test_disks_of_freebsd(tmp_path: Path) -> None:
    source, programs = freebsd(tmp_path, "14")
    listed = text("list-2.3").replace("/var/tmp/tun1", "/dev/nda0p3")
    programs.answers["zpool list -HvpP tank"] = listed
    facts = read("freebsd", source, "")
    assert facts
    first, second, *_ = only(facts).of("data")
    assert first == Disk("/dev/nda0p3", "data", "mirror-0", 4096, rotates=False, discards=True)
    assert second.sector is None


@pytest.mark.parametrize(
    ("stripe", "offset", "sector"),
    [("4096", "0", 4096), ("0", "0", 512), ("131072", "0", 512), ("4096", "512", 512),
     ("3000", "0", 512)],
)  # fmt: skip
def test_a_stripe_is_a_sector_by_the_rule_of_zfs(
    tmp_path: Path, stripe: str, offset: str, sector: int
) -> None:
    source, programs = freebsd(tmp_path, "14")
    said = f"/dev/da0\n\t512\t# sectorsize\n\t{stripe}\t# stripesize\n\t{offset}\t# stripeoffset\n"
    programs.answers["diskinfo -v /dev/da0"] = said
    from lab.host.zfs.freebsd import disk as look

    assert look(source, Disk("/dev/da0", "data")).sector == sector


def test_disks_of_linux_behind_links(tmp_path: Path) -> None:
    """Protects pools made by id, as they should be, and partitions, which have no queue."""
    source, _ = linux(tmp_path, "2.3")
    disk(tmp_path, "nvme0n1", sector=512, rotates=0, discards=1 << 30, cache="write through")
    from lab.host.zfs.linux import disk as look

    sda = look(source, Disk("/dev/disk/by-id/sda-part1", "data"))
    assert (sda.sector, sda.rotates, sda.discards, sda.volatile) == (4096, True, False, True)
    nvme = look(source, Disk("/dev/nvme0n1", "logs"))
    assert (nvme.sector, nvme.rotates, nvme.discards, nvme.volatile) == (512, False, True, False)
    for other in ("/var/tmp/file", "/dev/gone", "13847839271348291137"):
        assert look(source, Disk(other, "data")) == Disk(other, "data")


def test_what_may_not_be_read_is_said(tmp_path: Path) -> None:
    """Protects from a guess: each fact that is missing has its reason."""
    source, programs = linux(tmp_path, "2.3")
    denied = CommandFailed(["zpool"], 1, stderr="cannot open /dev/zfs: Permission denied\n")
    for command in programs.answers:
        if command.startswith("zpool"):
            programs.answers[command] = denied
    put(tmp_path, "sys/module/zfs/parameters/zfs_txg_timeout", "soon\n")
    prefetch = tmp_path / "sys/module/zfs/parameters/zfs_prefetch_disable"
    prefetch.unlink()
    prefetch.mkdir()
    facts = read_linux(source)
    assert "Permission denied" in str(facts.pools)
    assert "no number" in str(facts.tunables["txg_timeout"].value)
    assert "Is a directory" in str(facts.tunables["prefetch_disable"].value)


def test_a_pool_that_hangs(tmp_path: Path) -> None:
    """Protects from a suspended pool: a program that does not answer costs its deadline only."""
    source, programs = linux(tmp_path, "2.3")
    late = CommandFailed(["zpool"], -9, stderr="timed out after 10 s")
    programs.answers["zpool status -p tank"] = late
    pool = only(read_linux(source))
    assert str(pool.status) == "unknown: `zpool status -p tank`: timed out after 10 s"
    assert not isinstance(pool.properties, Unknown)


def test_ashift_that_nobody_tells(tmp_path: Path) -> None:
    source, programs = linux(tmp_path, "2.1")
    del programs.answers["zdb -C"]
    assert isinstance(only(read_linux(source)).ashifts, Unknown)


def test_no_zfs_at_all(tmp_path: Path) -> None:
    assert read("linux", Source(tmp_path, Programs()), "") is None
    assert read("freebsd", Source(tmp_path, Programs()), "tank/lab") is None


def test_programs_without_a_module(tmp_path: Path) -> None:
    """Protects the state after a kernel update: there is a ZFS, and it does not work."""
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
    assert read_linux(source).neighbours.holders == {"zd16": "LVM-abc", "zd32p1": "md127"}


def test_a_rule_that_was_switched_off(tmp_path: Path) -> None:
    """Protects from an empty file, or a link to nothing, in /etc: udev obeys that."""
    source, _ = linux(tmp_path, "2.3")
    etc = tmp_path / "etc/udev/rules.d/60-zvol.rules"
    put(tmp_path, "etc/udev/rules.d/60-zvol.rules", "")
    assert read_linux(source).neighbours.link_rule == ""
    etc.unlink()
    link(etc, Path("/dev/null"))
    assert read_linux(source).neighbours.link_rule == ""


def test_lvm(tmp_path: Path) -> None:
    """Protects hosts with and without LVM's devices file, and with an LVM that knows none."""
    source, programs = linux(tmp_path, "2.3")
    asked = "lvmconfig --type full devices/use_devicesfile"
    programs.answers[asked] = "use_devicesfile=1\n"
    found = read_linux(source).neighbours.lvm
    assert isinstance(found, Lvm)
    assert not found.devices_file  # LVM ignores the setting until the file is there
    put(tmp_path, "etc/lvm/devices/system.devices", "")
    assert read_linux(source).neighbours.lvm == Lvm(True, found.filters)
    programs.answers[asked] = CommandFailed(["lvmconfig"], 5, stderr="not found")
    assert read_linux(source).neighbours.lvm == Lvm(False, found.filters)
    programs.answers = {k: v for k, v in programs.answers.items() if "lvm" not in k}
    assert read_linux(source).neighbours.lvm is None


def test_multipath(tmp_path: Path) -> None:
    source, _ = linux(tmp_path, "2.3")
    put(
        tmp_path,
        "etc/multipath.conf",
        'blacklist {\n devnode "^sd"\n}\n'
        'blacklist_exceptions {\n # devnode "^hd"\n devnode "^zd"\n wwid x\n}\n',
    )
    put(tmp_path, "etc/multipath/conf.d/a.conf", "blacklist_exceptions {\n\tdevnode ^nbd\n}\n")
    assert read_linux(source).neighbours.multipath == ("^zd", "^nbd")


def test_programs_are_run_in_english(monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects the parsers from a user's language, and users without /usr/sbin in PATH."""
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert sources.run(["sh", "-c", "echo $LC_ALL"]) == "C\n"
    with pytest.raises(HostUnfit):
        sources.run(["no-such-program"])

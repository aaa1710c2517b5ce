"""The checks of ARC, prefetch and writes. Each case is a host that somebody has."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lab.config.profile import PROFILES
from lab.host.zfs import checks
from lab.host.zfs.facts import (
    Disk,
    Facts,
)
from lab.host.zfs.read import read
from lab.spec import GIB, MIB
from tests.support.zfs_hosts import (
    DATA,
    NEEDS,
    counted,
    freebsd,
    healthy,
    healthy_freebsd,
    levels,
    linux,
    pool_of,
    tuned,
)


@pytest.fixture
def facts(tmp_path: Path) -> Facts:
    return healthy(tmp_path)


@pytest.fixture
def bsd(tmp_path: Path) -> Facts:
    return healthy_freebsd(tmp_path)


def test_arc_against_guests(facts: Facts) -> None:
    """Protects guests' memory, by figures: the default of 2.3 leaves 1G to all else."""
    idle = checks.arc_limit(facts, NEEDS)
    assert idle.level == "note"
    assert "at most 1.9G of 2.9G" in idle.value
    assert "MemAvailable" not in idle.why
    busy = checks.arc_limit(facts, replace(NEEDS, guests=2 * GIB))
    assert busy.level == "warn"
    assert "running labs have 2G" in busy.value
    assert "zfs_arc_max=" in busy.advice
    assert "/etc/modprobe.d/zfs.conf" in busy.advice
    assert checks.arc_limit(counted(facts, c_max=GIB), replace(NEEDS, guests=GIB)).level == "ok"
    assert "unknown" in checks.arc_limit(facts, replace(NEEDS, guests=None)).value


def test_arc_on_freebsd(bsd: Facts) -> None:
    one = checks.arc_limit(bsd, NEEDS)
    assert "8.5G, at most 30.9G of 31.9G" in one.value
    assert "sysctl vfs.zfs.arc.max=" in one.advice
    assert "/etc/sysctl.conf" in one.advice
    assert "Linux" not in one.why


def test_an_arc_limit_that_is_ignored(facts: Facts) -> None:
    """Protects those who set a limit that ZFS silently does not obey."""
    one = checks.arc_limit(tuned(facts, arc_max=1 << 20), NEEDS)
    assert one.level == "warn"
    assert "zfs_arc_max=1048576 is not in force" in one.value
    obeyed = counted(tuned(facts, arc_max=GIB), c_max=GIB)
    assert checks.arc_limit(obeyed, NEEDS).level == "ok"


@pytest.mark.parametrize(
    ("total", "guests", "expected"),
    [
        (64 * GIB, 0, 8 * GIB),
        (64 * GIB, 60 * GIB, 2 * GIB + 64 * MIB),  # half of what is free is 1.75G
        (8 * GIB, 3 * GIB, GIB),
        (3 * GIB, 0, GIB),
        (2 * GIB, 2 * GIB, 128 * MIB),
        (GIB // 2, 0, 64 * MIB),
    ],
)
def test_advised_limit(total: int, guests: int, expected: int) -> None:
    """Protects the advice: it leaves room, and ZFS takes it (64M, and above a 32nd)."""
    value = checks.advised_arc(total, guests, 512 * MIB)
    assert value == expected
    assert value >= 64 * MIB
    assert value > total // 32


def test_prefetch_is_judged_by_what_it_brought(facts: Facts, bsd: Facts) -> None:
    busy = {"predictive_prefetch": 5000, "demand_iohit_predictive_prefetch": 0}
    used = checks.prefetch(counted(facts, **busy, demand_hit_predictive_prefetch=4000), NEEDS)
    waste = checks.prefetch(counted(facts, **busy, demand_hit_predictive_prefetch=500), NEEDS)
    assert levels(used, waste) == ["ok", "note"]
    assert "only 10 %" in waste.value
    assert "zfs_prefetch_disable" in waste.advice
    assert checks.prefetch(bsd, NEEDS).value == "on; 82 % of its reads were used"
    assert "too few reads" in checks.prefetch(counted(facts, predictive_prefetch=9), NEEDS).value
    assert checks.prefetch(tuned(facts, prefetch_disable=1), NEEDS).value == "off"


def test_prefetch_of_2_1_is_not_judged(tmp_path: Path) -> None:
    found = read("linux", linux(tmp_path, "2.1")[0], "")
    assert found
    assert "does not count" in checks.prefetch(found, NEEDS).value


def test_txg_timeout(facts: Facts) -> None:
    one, two = (checks.txg_timeout(tuned(facts, txg_timeout=n), NEEDS) for n in (30, 1))
    assert levels(one, two) == ["note", "note"]
    assert "power loss" in one.why
    assert "batch" in two.why


def test_cache_flush(facts: Facts, bsd: Facts) -> None:
    """Protects pools: without flushes only a write cache that is none, or protected, is safe."""
    off = tuned(facts, nocacheflush=1)
    one = checks.cache_flush(off, NEEDS)
    assert one.level == "warn"
    assert "zfs_nocacheflush=1" in one.value
    assert "echo 0 >" in one.advice
    safe = Disk("/dev/sda", "data", volatile=False)
    all_safe = replace(off, pools=(pool_of(off, disks=(safe,)),))
    assert checks.cache_flush(all_safe, NEEDS).level == "note"
    some = (pool_of(off, disks=(safe, replace(safe, volatile=None))),)
    assert checks.cache_flush(replace(off, pools=some), NEEDS).level == "warn"
    zil = checks.cache_flush(tuned(facts, zil_nocacheflush=1), NEEDS)
    assert zil.level == "warn"
    geom = checks.cache_flush(tuned(bsd, bio_flush_disable=1), NEEDS)
    assert "vfs.zfs.vdev.bio_flush_disable=0" in geom.advice


def test_cache_flush_of_freebsd_12(tmp_path: Path) -> None:
    """Protects from a name that people still copy from old articles."""
    found = read("freebsd", freebsd(tmp_path, "12")[0], "")
    assert found
    one = checks.cache_flush(found, NEEDS)
    assert "vfs.zfs.cache_flush_disable=1" in one.value


LOG = Disk("/dev/nvme0n1", "logs")


@pytest.mark.parametrize(
    ("disks", "profile", "level", "word"),
    [
        ((DATA,), "durable", "note", "zpool add tank log mirror"),
        ((DATA,), "disposable", "ok", "none"),
        ((replace(DATA, rotates=False),), "durable", "ok", "none"),
        ((replace(DATA, rotates=None),), "durable", "ok", "none"),
        ((DATA, LOG), "durable", "note", "not mirrored"),
        ((DATA, LOG), "disposable", "ok", "does not use it"),
        ((DATA, replace(LOG, group="mirror-1")), "balanced", "ok", "mirrored"),
    ],
)
def test_slog(facts: Facts, disks: tuple[Disk, ...], profile: str, level: str, word: str) -> None:
    """Protects the money of those who buy a log device that their profile never writes to."""
    one = checks.slog(facts, replace(NEEDS, profile=PROFILES[profile]), pool_of(facts, disks=disks))
    assert one.level == level
    assert word in f"{one.value} {one.advice}"


def test_l2arc(facts: Facts) -> None:
    pool = pool_of(facts, disks=(DATA, Disk("/dev/nvme0n1p2", "cache")))
    one = checks.l2arc(counted(facts, l2_hdr_size=100 * MIB), NEEDS, pool)
    assert one.level == "note"
    assert "takes 100M of memory" in one.value
    everything = replace(
        NEEDS.profile, name="all", data=replace(NEEDS.profile.data, primarycache="all")
    )
    assert checks.l2arc(facts, replace(NEEDS, profile=everything), pool).level == "ok"
    assert checks.l2arc(facts, NEEDS, pool_of(facts, disks=(DATA,))).level == "ok"

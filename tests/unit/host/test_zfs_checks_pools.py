"""The checks of pools. Each case is a pool that somebody has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from lab.host.zfs import checks
from lab.host.zfs.facts import (
    Facts,
    Scan,
    Status,
)
from lab.spec import GIB, MIB
from tests.support.zfs_hosts import (
    DATA,
    DAY,
    NEEDS,
    SECRET,
    healthy,
    healthy_freebsd,
    levels,
    pool_of,
)


@pytest.fixture
def facts(tmp_path: Path) -> Facts:
    return healthy(tmp_path)


@pytest.fixture
def bsd(tmp_path: Path) -> Facts:
    return healthy_freebsd(tmp_path)


@pytest.mark.parametrize(
    ("status", "level", "word"),
    [
        (Status("ONLINE"), "ok", "ONLINE"),
        (Status("DEGRADED", "A disk is gone.", "Replace it."), "warn", "Replace it."),
        (Status("SUSPENDED", "I/O failures."), "fail", "zpool status -v tank"),
        (Status("ONLINE", errors="2 data errors, use '-v' for a list"), "warn", "2 data errors"),
        (Status("ONLINE", "Some supported and requested features are not enabled on the pool."),
         "ok", "no known errors"),
        (Status("ONLINE", "One or more devices has experienced an unrecoverable error."),
         "warn", "with a problem"),
        (Status("ONLINE", "One or more devices are configured to use a non-native block size."),
         "ok", "ONLINE"),
    ],
)  # fmt: skip
def test_health(facts: Facts, status: Status, level: str, word: str) -> None:
    one = checks.health(facts, NEEDS, pool_of(facts, status=status))
    assert one.level == level
    assert word in f"{one.value} {one.advice}"


@pytest.mark.parametrize(
    ("scan", "level", "word"),
    [
        (Scan("scrub", "finished", -3 * DAY), "ok", "3 days ago, without errors"),
        (Scan("scrub", "finished", -1 * DAY), "ok", "1 day ago"),
        (Scan("scrub", "finished", -90 * DAY), "note", "90 days ago"),
        (Scan("scrub", "finished", -3 * DAY, 2), "warn", "3 days ago, with 2 errors"),
        (Scan("scrub", "finished", None), "note", "at an unknown time"),
        (Scan("scrub", "running", -90 * DAY), "ok", "under way"),
        (Scan("scrub", "canceled", -1 * DAY), "note", "canceled"),
        (Scan("resilver", "finished", -1 * DAY), "note", "none on record"),
    ],
)
def test_scrub(facts: Facts, scan: Scan, level: str, word: str) -> None:
    """Protects from bad blocks that nobody has read for months."""
    now = 1.8e9
    then = replace(scan, at=None if scan.at is None else now + scan.at)
    pool = pool_of(facts, status=Status("ONLINE", scans=(then,)), root={"creation": "1500000000"})
    one = checks.scrub(replace(facts, now=now), NEEDS, pool)
    assert one.level == level
    assert word in one.value
    assert bool(one.advice) == (level != "ok")


def test_a_new_pool_needs_no_scrub(facts: Facts) -> None:
    root = {"creation": str(int(facts.now - 2 * DAY))}
    pool = pool_of(facts, status=Status("ONLINE"), root=root)
    one = checks.scrub(facts, NEEDS, pool)
    assert (one.level, one.value) == ("ok", "none yet; the pool is 2 days old")


@pytest.mark.parametrize(
    ("capacity", "available", "dataset", "level"),
    [
        ("42", 10 * GIB, "tank/lab", "ok"),
        ("80", 10 * GIB, "tank/lab", "warn"),
        ("42", 10 * MIB, "tank/lab", "fail"),
        ("42", 10 * MIB, "", "ok"),
        ("95", 10 * GIB, "", "warn"),
        ("-", 10 * GIB, "tank/lab", "note"),
    ],
)
def test_space(facts: Facts, capacity: str, available: int, dataset: str, level: str) -> None:
    """Protects guests from a pool that fills: a warning at 80 %, the end at the floor."""
    pool = pool_of(facts, properties={"capacity": capacity})
    below = {"available": str(available)}
    one = checks.space(replace(facts, dataset=below), replace(NEEDS, dataset=dataset), pool)
    assert one.level == level


def test_space_without_the_dataset(facts: Facts) -> None:
    """Protects the first run: before `lab host init` the pool itself is asked."""
    one = checks.space(replace(facts, dataset=SECRET), NEEDS, pool_of(facts))
    assert one.level == "ok"


def test_fragmentation(facts: Facts) -> None:
    found = [
        checks.fragmentation(facts, NEEDS, pool_of(facts, properties={"fragmentation": value}))
        for value in ("3", "61", "-")
    ]
    assert levels(*found) == ["ok", "note", "note"]


@pytest.mark.parametrize(
    ("ashifts", "sector", "level", "word"),
    [
        ({"mirror-0": 12}, 4096, "ok", "12 (4K), sectors of 4K"),
        ({"mirror-0": 12}, 512, "ok", "12 (4K)"),
        ({"mirror-0": 13}, None, "ok", "13 (8K)"),
        ({"mirror-0": 9}, 4096, "warn", "9 (512B), sectors of 4K"),
        ({"mirror-0": 12, "sdc": 9}, 512, "note", "9 to 12"),
        ({"mirror-0": 12}, 8192, "warn", "sectors of 8K"),
        ({"mirror-0": 14}, 4096, "note", "14 (16K)"),
    ],
)
def test_ashift(
    facts: Facts, ashifts: Mapping[str, int], sector: int | None, level: str, word: str
) -> None:
    pool = pool_of(facts, ashifts=ashifts, disks=(replace(DATA, sector=sector),))
    one = checks.ashift(facts, NEEDS, pool)
    assert one.level == level
    assert word in one.value
    assert ("zpool create -o ashift" in one.advice) == (level != "ok")


def test_ashift_that_zpool_itself_complains_of(facts: Facts) -> None:
    """Protects where the disks are not readable to us, but were to ZFS."""
    says = Status("ONLINE", "One or more devices are configured to use a non-native block size.")
    pool = pool_of(facts, ashifts={"sda": 12}, disks=(), status=says)
    assert checks.ashift(facts, NEEDS, pool).level == "warn"


@pytest.mark.parametrize(
    ("value", "discards", "level"),
    [("on", True, "ok"), ("off", True, "note"), ("off", False, "ok"), ("off", None, "ok")],
)
def test_autotrim(facts: Facts, value: str, discards: bool | None, level: str) -> None:
    disks = (replace(DATA, discards=discards),)
    pool = pool_of(facts, properties={"autotrim": value}, disks=disks)
    assert checks.autotrim(facts, NEEDS, pool).level == level


def test_features(facts: Facts) -> None:
    """Protects clones: a compression that the pool does not have cannot be set on them."""
    pool = pool_of(facts, properties={"feature@lz4_compress": "disabled"})
    one = checks.features(facts, NEEDS, pool)
    assert one.level == "fail"
    assert one.advice == "zpool set feature@lz4_compress=enabled tank"
    profile = replace(NEEDS.profile, data=replace(NEEDS.profile.data, compression="zstd-3"))
    needs = replace(NEEDS, profile=profile)
    assert checks.features(facts, needs, pool_of(facts)).value == "lz4_compress, zstd_compress"


def test_dedup(facts: Facts) -> None:
    one = checks.dedup(replace(facts, dataset={"dedup": "on"}), NEEDS, pool_of(facts))
    assert (one.level, one.advice) == ("warn", "zfs set dedup=off tank/lab")

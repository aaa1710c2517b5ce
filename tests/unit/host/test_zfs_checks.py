"""The checks of ZFS: facts in, one finding out. Each case is a host or a pool that somebody has."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lab.host import zfs
from lab.host.finding import Finding
from lab.host.zfs import checks
from lab.host.zfs.facts import Facts, Lvm, Needs, Pool, Unknown, Versions
from lab.units import GIB, MIB
from tests.support.zfs_hosts import (
    NEEDS,
    SECRET,
    counted,
    healthy,
    healthy_freebsd,
    levels,
    pool_of,
    tuned,
)

Check = Callable[[Facts, Needs], Finding]
PoolCheck = Callable[[Facts, Needs, Pool], Finding]


@pytest.fixture
def facts(tmp_path: Path) -> Facts:
    return healthy(tmp_path)


@pytest.fixture
def bsd(tmp_path: Path) -> Facts:
    return healthy_freebsd(tmp_path)


def test_a_host_in_order(facts: Facts) -> None:
    """Protects calm: what needs no attention asks for none, and each check has a line."""
    trimmed = pool_of(facts, properties={**properties_of_pool(facts), "autotrim": "on"})
    calm = replace(counted(facts, c_max=GIB), swaps=(), pools=(trimmed,))
    found = list(zfs.findings(calm, NEEDS))
    assert [one.topic for one in found if one.level != "ok"] == []
    assert [one.topic for one in found if one.advice] == []
    assert len(found) == len(checks.HOST) + len(checks.POOL)


def properties_of_pool(facts: Facts) -> dict[str, str]:
    properties = pool_of(facts).properties
    assert not isinstance(properties, Unknown)
    return dict(properties)


@pytest.mark.parametrize("check", checks.HOST)
def test_what_cannot_be_read_is_said(facts: Facts, check: Check) -> None:
    """Protects from guesses: an unknown fact is a note with its reason, and no advice."""
    blind = replace(
        tuned(facts, **dict.fromkeys(facts.tunables, SECRET)),
        versions=SECRET, arc=SECRET, pools=SECRET, swaps=SECRET, lvm=SECRET, holders=SECRET,
    )  # fmt: skip
    one = check(blind, NEEDS)
    if check is not checks.links:
        assert one.level == "note"
        assert "Permission denied" in one.value
    assert not one.advice


@pytest.mark.parametrize("check", checks.POOL)
def test_what_cannot_be_read_of_a_pool_is_said(facts: Facts, check: PoolCheck) -> None:
    blind = pool_of(facts, **dict.fromkeys(("properties", "root", "status"), SECRET))
    one = check(replace(facts, dataset=SECRET), NEEDS, blind)
    assert (one.level, one.advice) == ("note", "")
    assert "Permission denied" in one.value


def test_no_module(facts: Facts, bsd: Facts) -> None:
    """Protects from a list of riddles: one line says what is missing, and the remedy."""
    for system, word in ((facts, "modprobe zfs"), (bsd, "kldload zfs")):
        (one,) = zfs.findings(replace(system, module=False), NEEDS)
        assert one.level == "fail"
        assert word in one.advice
        (mild,) = zfs.findings(replace(system, module=False), replace(NEEDS, dataset=""))
        assert mild.level == "note"


def test_pools_that_do_not_exist(facts: Facts) -> None:
    gone = [one for one in zfs.findings(replace(facts, pools=()), NEEDS) if one.level == "fail"]
    assert "zpool import tank" in gone[0].advice
    idle = list(zfs.findings(replace(facts, pools=()), replace(NEEDS, dataset="")))
    assert idle[-1].value == "none imported"
    new = replace(facts, dataset=Unknown("dataset does not exist"))
    said = next(one for one in zfs.findings(new, NEEDS) if one.topic == "zfs dataset")
    assert "tank/lab" in said.advice


def test_without_labs_on_zfs_nothing_fails(facts: Facts) -> None:
    """Protects hosts that have ZFS for other things: labs on qcow2 work whatever it is like."""
    sick = tuned(replace(facts, link_rule=""), inhibit_dev=1, nocacheflush=1)
    dead = pool_of(facts, status={"state": "FAULTED"}, properties={"capacity": "99"})
    found = list(zfs.findings(replace(sick, pools=(dead,)), replace(NEEDS, dataset="")))
    assert "fail" not in levels(*found)


def test_texts_are_of_one_line(facts: Facts, bsd: Facts) -> None:
    """Protects the table: value, advice and reason are one line each."""
    for one in (*zfs.findings(facts, NEEDS), *zfs.findings(bsd, NEEDS)):
        assert "\n" not in one.value + one.advice + one.why
        assert one.value


@pytest.mark.parametrize(
    ("userland", "kernel", "level"),
    [
        ("2.3.9-0+deb13u1", "2.3.9-0+deb13u1", "ok"),
        ("2.3.9-0+deb13u1", "2.3.9-1", "ok"),
        ("2.3.9-1", "2.1.11-1", "warn"),
        ("", "", "note"),
    ],
)
def test_versions(facts: Facts, userland: str, kernel: str, level: str) -> None:
    one = checks.versions(replace(facts, versions=Versions(userland, kernel)), NEEDS)
    assert one.level == level


def test_arc_against_guests(facts: Facts, bsd: Facts) -> None:
    """Protects guests' memory, by figures: the default of 2.3 leaves 1G to all else."""
    idle = checks.arc_limit(facts, NEEDS)
    assert idle.level == "note"
    assert "at most 1.9G of 2.9G" in idle.value
    busy = checks.arc_limit(facts, replace(NEEDS, guests=2 * GIB))
    assert busy.level == "warn"
    assert "running labs have 2G" in busy.value
    assert "zfs_arc_max=" in busy.advice
    assert "/etc/modprobe.d/zfs.conf" in busy.advice
    assert checks.arc_limit(counted(facts, c_max=GIB), replace(NEEDS, guests=GIB)).level == "ok"
    assert "unknown" in checks.arc_limit(facts, replace(NEEDS, guests=None)).value
    other = checks.arc_limit(bsd, NEEDS)
    assert "8.5G, at most 30.9G of 31.9G" in other.value
    assert "sysctl vfs.zfs.arc.max=" in other.advice
    assert "Linux" not in other.why


def test_an_arc_limit_that_is_ignored(facts: Facts) -> None:
    """Protects those who set a limit that ZFS silently does not obey."""
    one = checks.arc_limit(tuned(facts, arc_max=1 << 20), NEEDS)
    assert one.level == "warn"
    assert "zfs_arc_max=1048576 is ignored" in one.value
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
    """Protects the advice: it leaves room, and ZFS obeys it (64M, and above a 32nd)."""
    value = checks.advised_arc(total, guests, 512 * MIB)
    assert value == expected
    assert value >= 64 * MIB
    assert value > total // 32


def test_cache_flush(facts: Facts, bsd: Facts) -> None:
    """Protects pools: without flushes a power loss damages them."""
    one = checks.cache_flush(tuned(facts, nocacheflush=1), NEEDS)
    assert one.level == "warn"
    assert "zfs_nocacheflush=1" in one.value
    assert "echo 0 >" in one.advice
    assert checks.cache_flush(tuned(facts, zil_nocacheflush=1), NEEDS).level == "warn"
    geom = checks.cache_flush(tuned(bsd, bio_flush_disable=1), NEEDS)
    assert "vfs.zfs.vdev.bio_flush_disable=0" in geom.advice


@pytest.mark.parametrize(
    ("volmode", "level"), [("dev", "ok"), ("default", "warn"), ("full", "warn"), ("none", "fail")]
)
def test_volmode(facts: Facts, volmode: str, level: str) -> None:
    """Protects hosts from the partitions of guests, by the property that volumes inherit."""
    one = checks.volmode(replace(facts, dataset={"volmode": volmode}), NEEDS)
    assert one.level == level
    assert one.advice == ("" if level == "ok" else "zfs set volmode=dev tank/lab")


def test_zvols_without_devices(facts: Facts) -> None:
    assert checks.volmode(tuned(facts, inhibit_dev=1), NEEDS).level == "fail"
    assert checks.volmode(tuned(facts, inhibit_dev=1), replace(NEEDS, dataset="")).level == "note"
    assert checks.volmode(replace(facts, dataset=None), replace(NEEDS, dataset="")).level == "ok"


def test_links(facts: Facts, bsd: Facts) -> None:
    assert checks.links(replace(facts, link_rule=""), NEEDS).level == "warn"
    assert checks.links(replace(facts, link_rule=None), NEEDS).level == "note"
    assert checks.links(bsd, NEEDS).level == "ok"


@pytest.mark.parametrize(
    ("patterns", "level"),
    [
        (("r|^/dev/zd|", "r|^/dev/zvol/|"), "ok"),
        (("r|/dev/zd.*|",), "ok"),
        (("a|.*|",), "warn"),
        (("r|^/dev/zd|", "a|.*|"), "warn"),  # another name of the same device is accepted
        (("a|^/dev/sda|", "r|.*|"), "ok"),
        (("r#zd#",), "ok"),
        (("r|(|",), "warn"),
        ((), "warn"),
    ],
)
def test_lvm_filters(facts: Facts, patterns: tuple[str, ...], level: str) -> None:
    """Protects the rule of lvm.conf(5): one accepted name of a device makes it accepted."""
    one = checks.lvm(replace(facts, lvm=Lvm(False, (patterns, ("a|.*|",)))), NEEDS)
    assert one.level == level
    if level == "warn":
        assert "global_filter" in one.advice


def test_the_advised_lvm_filter_works() -> None:
    """Protects those who copy it."""
    advised = tuple(re.findall(r'"(.*?)"', checks.LVM_FILTER))
    assert checks.lvm_keeps_out(Lvm(False, (advised,)))


def test_lvm_that_is_no_trouble(facts: Facts, bsd: Facts) -> None:
    assert checks.lvm(replace(facts, lvm=None), NEEDS).level == "ok"
    assert checks.lvm(replace(facts, lvm=Lvm(True, (("a|.*|",),))), NEEDS).level == "ok"
    assert checks.lvm(bsd, NEEDS).level == "ok"
    loose = replace(facts, lvm=Lvm(False, ()))
    assert checks.lvm(loose, replace(NEEDS, dataset="")).level == "note"


@pytest.mark.parametrize(
    ("holder", "word"),
    [("LVM-x", "vgchange -an"), ("mpath-x", "multipath -f"), ("md127", "lsblk /dev/zd16")],
)
def test_what_holds_zvols(facts: Facts, holder: str, word: str) -> None:
    one = checks.holders(replace(facts, holders={"zd16": holder}), NEEDS)
    assert one.level == "warn"
    assert word in one.advice
    many = {f"zd{n}": holder for n in range(0, 96, 16)}
    assert "and 3 more" in checks.holders(replace(facts, holders=many), NEEDS).value


def test_swap(facts: Facts, bsd: Facts) -> None:
    assert "swapoff /dev/zd16" in checks.swap(facts, NEEDS).advice
    assert checks.swap(bsd, NEEDS).value == "on a ZVol: /dev/zvol/zroot/swap"
    assert checks.swap(replace(facts, swaps=("/dev/sda2",)), NEEDS).level == "ok"


@pytest.mark.parametrize(
    ("status", "level", "word"),
    [
        ({}, "ok", "no known errors"),
        ({"state": "DEGRADED", "action": "Replace it."}, "warn", "Replace it."),
        ({"state": "SUSPENDED"}, "fail", "zpool status -v tank"),
        ({"state": "ONLINE", "errors": "2 data errors"}, "warn", "ONLINE, 2 data errors"),
        ({"state": "ONLINE", "errors": "No known data errors"}, "warn", "ONLINE"),
    ],
)
def test_health(facts: Facts, status: dict[str, str], level: str, word: str) -> None:
    one = checks.health(facts, NEEDS, pool_of(facts, status=status))
    assert one.level == level
    assert word in f"{one.value} {one.advice}"


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


@pytest.mark.parametrize(
    ("check", "name", "values"),
    [
        (checks.fragmentation, "fragmentation", {"3": "ok", "61": "note", "-": "note"}),
        (checks.autotrim, "autotrim", {"on": "ok", "off": "note"}),
    ],
)
def test_a_property_of_a_pool(
    facts: Facts, check: PoolCheck, name: str, values: dict[str, str]
) -> None:
    for value, level in values.items():
        assert check(facts, NEEDS, pool_of(facts, properties={name: value})).level == level


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

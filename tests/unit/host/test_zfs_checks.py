"""All checks together, and those of versions and volumes: facts in, one finding out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lab.host import zfs
from lab.host.finding import Finding
from lab.host.zfs import checks
from lab.host.zfs.facts import (
    Facts,
    Needs,
    Pool,
    Status,
    Unknown,
    Versions,
)
from lab.host.zfs.read import read
from lab.spec import GIB
from tests.support.zfs_hosts import (
    NEEDS,
    SECRET,
    counted,
    healthy,
    healthy_freebsd,
    levels,
    linux,
    near,
    pool_of,
    text,
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
    """Protects calm: what needs no attention asks for none, and each line says why it is there."""
    calm = near(counted(facts, c_max=GIB), swaps=(), link_rule="60-zvol.rules")
    calm = replace(calm, pools=(pool_of(calm, disks=()),))
    found = list(zfs.findings(calm, NEEDS))
    assert [one.topic for one in found if one.level != "ok"] == []
    assert [one.topic for one in found if one.advice] == []
    assert len(found) == len(checks.HOST) + len(checks.POOL)


@pytest.mark.parametrize("check", checks.HOST)
def test_what_cannot_be_read_is_said(facts: Facts, check: Check) -> None:
    """Protects from guesses: an unknown fact is a note with its reason, and no advice."""
    blind = replace(
        tuned(facts, **dict.fromkeys(facts.tunables, SECRET)),
        versions=SECRET,
        arc=SECRET,
        pools=SECRET,
    )
    blind = near(blind, swaps=SECRET, lvm=SECRET, holders=SECRET)
    one = check(blind, NEEDS)
    if check not in (checks.block_size, checks.links, checks.multipath):
        assert one.level == "note"
        assert "Permission denied" in one.value
    assert not one.advice


@pytest.mark.parametrize("check", checks.POOL)
def test_what_cannot_be_read_of_a_pool_is_said(facts: Facts, check: PoolCheck) -> None:
    changes = dict.fromkeys(("properties", "root", "disks", "ashifts", "status"), SECRET)
    blind = pool_of(facts, **changes)
    one = check(replace(facts, dataset=SECRET), NEEDS, blind)
    assert (one.level, one.advice) == ("note", "")
    assert "Permission denied" in one.value


@pytest.mark.parametrize("version", ["2.1", "2.3"])
def test_parameters_of_other_versions_are_no_fault(tmp_path: Path, version: str) -> None:
    """Protects hosts with 2.1: what came with 2.2 is not missing there."""
    found = read("linux", linux(tmp_path, version)[0], "tank/lab")
    assert found
    one = checks.queues(found, NEEDS)
    assert one.level == "ok"
    assert ("not in this version" in one.value) == (version == "2.1")


def test_no_module(facts: Facts, bsd: Facts) -> None:
    """Protects from a list of riddles: one line says what is missing, and what to do."""
    for system, word in ((facts, "modprobe zfs"), (bsd, "kldload zfs")):
        (one,) = zfs.findings(replace(system, module=False), NEEDS)
        assert one.level == "fail"
        assert word in one.advice
        (mild,) = zfs.findings(replace(system, module=False), replace(NEEDS, dataset=""))
        assert mild.level == "note"


def test_pools_that_are_not_there(facts: Facts) -> None:
    gone = [one for one in zfs.findings(replace(facts, pools=()), NEEDS) if one.level == "fail"]
    assert "zpool import tank" in gone[0].advice
    idle = list(zfs.findings(replace(facts, pools=()), replace(NEEDS, dataset="")))
    assert idle[-1].value == "none imported"
    new = replace(facts, dataset=Unknown("dataset does not exist"))
    said = next(one for one in zfs.findings(new, NEEDS) if one.topic == "zfs dataset")
    assert "tank/lab" in said.advice


def test_without_labs_on_zfs_nothing_fails(facts: Facts) -> None:
    """Protects hosts that have ZFS for other things: labs on qcow2 work whatever it is like."""
    sick = tuned(near(facts, link_rule=""), inhibit_dev=1, nocacheflush=1)
    dead = pool_of(facts, status=Status("FAULTED"), properties={"capacity": "99"})
    found = list(zfs.findings(replace(sick, pools=(dead,)), replace(NEEDS, dataset="")))
    assert "fail" not in levels(*found)


def test_texts_are_of_one_line(facts: Facts, bsd: Facts) -> None:
    """Protects the table: value, advice and reason are one line each."""
    for one in (*zfs.findings(facts, NEEDS), *zfs.findings(bsd, NEEDS)):
        assert "\n" not in one.value + one.advice + one.why
        assert one.value
    assert text("status-2.3").count("\n") > 1


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


def test_block_size(facts: Facts) -> None:
    old = replace(facts, versions=Versions("2.1.11-1", "2.1.11-1"))
    assert "zfs itself with 8K" in checks.block_size(old, NEEDS).value
    assert "zfs itself with 16K" in checks.block_size(facts, NEEDS).value


def test_zvols_that_make_no_devices(facts: Facts) -> None:
    assert checks.volmode(tuned(facts, inhibit_dev=1), NEEDS).level == "fail"
    assert checks.volmode(tuned(facts, inhibit_dev=1), replace(NEEDS, dataset="")).level == "note"


@pytest.mark.parametrize(
    ("volmode", "tunable", "level"),
    [
        ("dev", 1, "ok"),
        ("default", 2, "ok"),
        ("default", 1, "warn"),
        ("full", 2, "warn"),
        ("none", 1, "fail"),
        ("default", 3, "fail"),
    ],
)
def test_volmode(facts: Facts, volmode: str, tunable: int, level: str) -> None:
    """Protects hosts from the partitions of guests, by the property that volumes inherit."""
    one = checks.volmode(
        tuned(replace(facts, dataset={"volmode": volmode}), volmode=tunable), NEEDS
    )
    assert one.level == level
    assert one.advice == ("" if level == "ok" else "zfs set volmode=dev tank/lab")


def test_volmode_before_there_is_a_dataset(facts: Facts, bsd: Facts) -> None:
    for host in (facts, bsd):
        one = checks.volmode(replace(host, dataset=None), replace(NEEDS, dataset=""))
        assert (one.level, one.value) == ("ok", "full by default; `lab host init` sets dev")


def test_zvol_threads(facts: Facts) -> None:
    few = checks.threads(tuned(facts, zvol_threads=4), NEEDS)
    assert few.level == "note"
    assert "echo" not in few.advice  # it is read when the module is loaded
    assert "modprobe.d" in few.advice
    assert checks.threads(tuned(facts, zvol_threads=64), NEEDS).level == "ok"
    assert checks.threads(tuned(facts, zvol_request_sync=1), NEEDS).level == "warn"
    assert checks.queues(tuned(facts, zvol_use_blk_mq=1), NEEDS).level == "note"

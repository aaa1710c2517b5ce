"""The checks of who else opens ZVols. Each case is a host that somebody has."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lab.host.zfs import checks
from lab.host.zfs.facts import (
    Facts,
    Lvm,
)
from tests.support.zfs_hosts import NEEDS, healthy, healthy_freebsd, near


@pytest.fixture
def facts(tmp_path: Path) -> Facts:
    return healthy(tmp_path)


@pytest.fixture
def bsd(tmp_path: Path) -> Facts:
    return healthy_freebsd(tmp_path)


def test_links(facts: Facts, bsd: Facts) -> None:
    assert checks.links(near(facts, link_rule=""), NEEDS).level == "warn"
    assert checks.links(near(facts, udev=False), NEEDS).level == "note"
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
    one = checks.lvm(near(facts, lvm=Lvm(False, (patterns, ("a|.*|",)))), NEEDS)
    assert one.level == level
    if level == "warn":
        assert "global_filter" in one.advice


def test_the_advised_lvm_filter_works() -> None:
    """Protects those who copy it."""
    import re

    advised = tuple(re.findall(r'"(.*?)"', checks.LVM_FILTER))
    assert checks.lvm_keeps_out(Lvm(False, (advised,)))


def test_lvm_that_is_no_trouble(facts: Facts, bsd: Facts) -> None:
    assert checks.lvm(near(facts, lvm=None), NEEDS).value == "no LVM here"
    assert checks.lvm(near(facts, lvm=Lvm(True, (("a|.*|",),))), NEEDS).level == "ok"
    assert checks.lvm(bsd, NEEDS).level == "ok"
    loose = near(facts, lvm=Lvm(False, ()))
    assert checks.lvm(loose, replace(NEEDS, dataset="")).level == "note"


def test_multipath(facts: Facts) -> None:
    finding = checks.multipath(near(facts, multipath=("^zd", "^sd", "(")), NEEDS)
    assert finding.level == "warn"
    assert finding.value.endswith("them: ^zd")
    assert checks.multipath(near(facts, multipath=("^sd",)), NEEDS).level == "ok"


@pytest.mark.parametrize(
    ("holder", "word"),
    [("LVM-x", "vgchange -an"), ("mpath-x", "multipath -f"), ("md127", "lsblk /dev/zd16")],
)
def test_what_holds_zvols(facts: Facts, holder: str, word: str) -> None:
    one = checks.holders(near(facts, holders={"zd16": holder}), NEEDS)
    assert one.level == "warn"
    assert word in one.advice
    many = {f"zd{n}": holder for n in range(0, 96, 16)}
    assert "and 3 more" in checks.holders(near(facts, holders=many), NEEDS).value


def test_swap(facts: Facts, bsd: Facts) -> None:
    assert "swapoff /dev/zd16" in checks.swap(facts, NEEDS).advice
    assert checks.swap(bsd, NEEDS).value == "on a ZVol: /dev/zvol/zroot/swap"
    assert checks.swap(near(facts, swaps=("/dev/sda2",)), NEEDS).level == "ok"

"""The reader of ``lab doctor``, on the ZFS of this kernel."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lab.config.profile import PROFILES
from lab.host import zfs
from lab.host.system import system
from lab.host.zfs.facts import Facts, Needs, Pool, Unknown, Versions
from lab.host.zfs.read import read
from lab.host.zfs.source import Source
from lab.run import run
from lab.units import MIB

pytestmark = pytest.mark.skipif(
    not Path("/sys/module/zfs").exists() or os.geteuid() != 0,
    reason="no ZFS in this kernel, or not root",
)


@pytest.fixture
def tank(tmp_path: Path) -> Iterator[str]:
    """A pool in files: a mirror."""
    name = f"labtest{secrets.token_hex(4)}"
    files = [tmp_path / f"disk{n}" for n in range(2)]
    for path in files:
        with path.open("xb") as file:
            file.truncate(256 * MIB)
    options = ["-o", "ashift=12", "-o", "autotrim=on", "-m", "none"]
    run(["zpool", "create", *options, name, "mirror", *files], timeout=120)
    try:
        run(["zfs", "create", "-o", "volmode=dev", f"{name}/lab"], timeout=60)
        yield name
    finally:
        run(["zpool", "destroy", "-f", name], timeout=120)


def look(dataset: str) -> tuple[Facts, Pool]:
    """The facts and the one pool that they are about."""
    kind = system()
    assert kind != "other"
    facts = read(kind, Source(), dataset)
    assert facts
    assert not isinstance(facts.pools, Unknown)
    (pool,) = facts.pools
    return facts, pool


def needs(dataset: str) -> Needs:
    return Needs(dataset, 0, 512 * MIB, 64 * MIB, PROFILES["balanced"])


def test_every_fact_is_there(tank: str) -> None:
    """Protects from names and formats that this version of OpenZFS does not have."""
    facts, pool = look(f"{tank}/lab")
    assert isinstance(facts.versions, Versions)
    assert facts.versions.kernel
    unknown = {k: t.value for k, t in facts.tunables.items() if isinstance(t.value, Unknown)}
    assert unknown == {}
    assert not isinstance(facts.arc, Unknown)
    assert 0 < facts.arc["size"] <= facts.arc["memory_all_bytes"]
    assert not isinstance(facts.dataset, Unknown | None)
    assert int(facts.dataset["available"]) > 64 * MIB
    assert pool.name == tank
    assert not isinstance(pool.properties, Unknown)
    assert pool.properties["capacity"] == "0"
    assert pool.status == {}
    assert isinstance(facts.swaps, tuple)


def test_no_check_complains_about_the_pool(tank: str) -> None:
    """Protects from false alarms: this pool is as the documents advise."""
    facts, pool = look(f"{tank}/lab")
    wanted = needs(f"{tank}/lab")
    found = [check(facts, wanted, pool) for check in zfs.checks.POOL]
    found.append(zfs.checks.volmode(facts, wanted))
    assert [one for one in found if one.level != "ok"] == []


def test_troubles_show(tank: str, tmp_path: Path) -> None:
    """Protects the reader of status: a disk that is offline."""
    run(["zpool", "offline", tank, tmp_path / "disk1"], timeout=60)
    run(["zfs", "set", "dedup=on", f"{tank}/lab"], timeout=60)
    facts, pool = look(f"{tank}/lab")
    found = {
        one.topic.removeprefix(f"{tank} "): one
        for one in (check(facts, needs(f"{tank}/lab"), pool) for check in zfs.checks.POOL)
    }
    assert found["health"].level == "warn"
    assert "zpool online" in found["health"].advice
    assert found["dedup"].level == "warn"


def test_a_dataset_and_a_pool_that_are_not_there(tank: str) -> None:
    """Protects the first run, and the day when a pool was not imported."""
    facts, pool = look(f"{tank}/none")
    assert isinstance(facts.dataset, Unknown)
    assert "does not exist" in facts.dataset.why
    assert zfs.checks.space(facts, needs(f"{tank}/none"), pool).level == "ok"
    kind = system()
    found = zfs.check(needs(f"{tank}x/lab"), kind)
    assert [one.value for one in found if one.level == "fail"] == [f"there is no pool {tank}x"]


def test_a_tunable_that_was_changed_shows(tank: str) -> None:
    """Protects the way from a parameter to its advice, with the name of this host."""
    flush = Path("/sys/module/zfs/parameters/zil_nocacheflush")
    before = flush.read_text()
    flush.write_text("1")
    try:
        facts, _ = look(tank)
    finally:
        flush.write_text(before)
    assert facts.tunables["zil_nocacheflush"].value == 1
    calm = replace(facts, pools=())
    finding = next(one for one in zfs.findings(calm, needs("")) if one.topic == "zfs cache flush")
    assert finding.advice.startswith(f"echo 0 > {flush}")
    assert Path(finding.advice.split()[3].rstrip(";")).exists()

"""Images and templates go to ZVols, from ZVols and between pools, on real ZFS."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lab.config.profile import PROFILES
from lab.errors import InvalidSpec
from lab.exchange.frames import FrameReader
from lab.exchange.receiving import begin
from lab.lifecycle.labs.up import up
from lab.lifecycle.nodes.inspect import lab
from lab.names import Owner
from lab.units import MIB
from tests.contract import zfs_site
from tests.contract.zfs_site import open_zfs, zfs
from tests.support.exchange_world import Side
from tests.support.lifecycle_world import named

pytestmark = [pytest.mark.oldest, pytest.mark.rare]


@pytest.fixture
def files(tmp_path: Path) -> Side:
    """A host that keeps volumes as files."""
    return Side(tmp_path / "files", driver="qcow2")


@pytest.fixture
def zvols(tmp_path: Path, parent: str) -> Side:
    """One that keeps them on ZVols."""
    works = tmp_path / "works"
    return Side(tmp_path / "zvols", store=lambda home: open_zfs(parent, works, home.id))


@pytest.fixture
def other_parent(pool: str) -> Iterator[str]:
    with zfs_site.parent(pool) as name:
        yield name


@pytest.fixture
def others(tmp_path: Path, other_parent: str) -> Side:
    """Another one with ZVols."""
    works = tmp_path / "works2"
    return Side(tmp_path / "others", store=lambda home: open_zfs(other_parent, works, home.id))


@pytest.mark.parametrize("way", ["files to zvols", "zvols to files", "zvols to zvols"])
def test_a_template_arrives_warm(files: Side, zvols: Side, others: Side, way: str) -> None:
    """Protects the exchange between storages: the same bytes on the other side."""
    sides = {"files": files, "zvols": zvols}
    here, there = sides[way.split(maxsplit=1)[0]], sides[way.split()[2]]
    there = others if there is here else there
    key = here.make_template()
    done = there.imported("template", here.exported("template", key), warm_only=True)
    ours, theirs = Owner("template", key), Owner("template", done.key)
    assert there.disks(theirs) == here.disks(ours)
    assert there.files(theirs) == here.files(ours)
    if there is not files:  # the fake hypervisor looks at what it is given
        with there.open() as ctx:
            made = lab(ctx, up(ctx, named("shop")).name)
            assert (made.started, made.template) == ("warm", done.key)


def test_disks_are_clones_of_the_image(files: Side, zvols: Side, parent: str) -> None:
    """Protects the pool: an imported template takes what its cluster wrote, no more."""
    done = zvols.imported("template", files.exported("template", files.make_template()))
    used = zfs("list", "-Hp", "-o", "name,origin,used", "-t", "volume", "-r", parent)
    rows = [line.split("\t") for line in used.splitlines()]
    nodes = [row for row in rows if f"/templates/{done.key}/" in row[0]]
    assert len(nodes) == 2
    for _, origin, size in nodes:
        assert "/images/" in origin
        assert int(size) < MIB


def test_an_image_goes_as_zfs_sends_it(zvols: Side, others: Side, files: Side) -> None:
    key = zvols.make_image()
    archive = zvols.exported("image", key, native=True)
    assert begin(FrameReader(io.BytesIO(archive))).storage == "zfs"
    assert others.imported("image", archive).outcome == "imported"
    assert others.disks(Owner("image", key)) == zvols.disks(Owner("image", key))
    with pytest.raises(InvalidSpec, match="streams of the storage zfs"):
        files.imported("image", archive)
    damaged = bytearray(archive)
    damaged[len(damaged) // 2] ^= 1
    with pytest.raises(InvalidSpec, match="checksum"):
        replace(others, root=others.root / "third").imported("image", bytes(damaged))


@pytest.mark.parametrize("native", [False, True])
def test_block_sizes_are_those_of_the_profile(
    zvols: Side, others: Side, other_parent: str, native: bool
) -> None:
    """Protects what cannot be changed later: logs have larger blocks than data."""
    zvols.layout = others.layout = "split"
    key = zvols.make_image()
    assert others.imported("image", zvols.exported("image", key, native=native))
    found = zfs("list", "-Hp", "-o", "name,volblocksize", "-t", "volume", "-r", other_parent)
    sizes = {line.split("\t")[0].rpartition("_")[2]: int(line.split("\t")[1])
             for line in found.splitlines()}  # fmt: skip
    profile = PROFILES["balanced"]
    assert sizes == {n: profile.volume(n).block_size for n in ("os", "data", "log")}

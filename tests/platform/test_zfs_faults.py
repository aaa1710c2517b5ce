"""What goes wrong on real ZFS: nothing is lost, nothing foreign is touched, all is cleaned up."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab.errors import HostUnfit
from lab.storage import Content
from lab.storage.zfs.driver import ZfsStorage
from tests.contract import zfs_site
from tests.contract.storage_contract import Place
from tests.contract.storage_place import MIB, SIZE, TAGS, labels, names, origin, vol
from tests.contract.zfs_site import below, zfs, zpool


@pytest.fixture
def own_pool(pool: str, tmp_path: Path) -> Iterator[str]:
    """A small pool that may come to harm."""
    del pool  # says whether there is ZFS
    with zfs_site.pool(tmp_path, 64 * MIB, files_only=True) as name:
        yield name


@pytest.mark.rare
def test_a_full_pool_in_the_middle_of_clones(own_pool: str, tmp_path: Path) -> None:
    """Protects from half a lab: what does not fit is refused with figures and leaves nothing."""
    root = f"{own_pool}/lab"
    zfs("create", root)
    place = zfs_site.place(root, tmp_path / "works")
    storage = place.open("home")
    made = origin(place, storage)
    first = storage.clone(made, vol("c0"), TAGS)
    place.put(first, 0, b"first.")
    zfs_site.fill(own_pool, leave=0)
    before = names(storage)
    source = tmp_path / "source.raw"
    source.write_bytes(os.urandom(8 * MIB))
    with storage.send(made) as pieces:
        assert sum(map(len, pieces))
    calls: list[Callable[[], object]] = [
        lambda: storage.clone(made, vol("c1"), TAGS),
        lambda: storage.create(vol("c1"), SIZE, TAGS),
        lambda: storage.import_raw(vol("c1"), source, TAGS),
        lambda: storage.snapshot([vol("c0"), vol("origin")], "full"),
    ]
    for call in calls:
        with pytest.raises(HostUnfit, match=r"no space on .*needed, .* free"):
            call()
    assert names(storage) == before
    assert labels(storage, vol("origin")) == ["formed"]
    assert source.exists()
    # room can still be made
    storage.destroy(first.name)
    storage.destroy(made.volume)
    assert storage.sweep() == []
    assert below(root) == ["/.work", "/labs"]


@pytest.mark.rare
def test_a_volume_on_a_pool_that_fills(own_pool: str, tmp_path: Path) -> None:
    """Protects the other labs: what they have written stays, and can be read and destroyed."""
    root = f"{own_pool}/lab"
    zfs("create", root)
    place = zfs_site.place(root, tmp_path / "works")
    storage = place.open("home")
    made = origin(place, storage)
    filler = storage.create(vol("filler"), 256 * MIB, {})
    zfs_site.fill(own_pool, leave=2 * MIB)
    handle = os.open(filler.path, os.O_WRONLY)
    block = os.urandom(MIB)
    with pytest.raises(OSError, match=r"space|error"):  # noqa: PT012  # whichever MiB it is
        for index in range(256):
            os.pwrite(handle, block, index * MIB)
            os.fsync(handle)
    with contextlib.suppress(OSError):
        os.close(handle)
    assert storage.space().free < MIB
    assert place.get(storage.get(made.volume), 0, 6) == b"origin"
    storage.destroy(filler.name)
    assert storage.sweep() == []
    zfs("set", "reservation=none", f"{own_pool}/filler")
    assert place.get(storage.clone(made, vol("a"), {}), 0, 6) == b"origin"


def test_a_busy_volume_goes_later(place: Place, storage: ZfsStorage, parent: str) -> None:
    """Protects `down` from udev, LVM and forgotten programs that have a device open."""
    made = origin(place, storage)
    handle = os.open(storage.get(made.volume).path, os.O_RDONLY)
    try:
        storage.destroy(made.volume)
        assert names(storage) == []
        again = storage.create(made.volume, SIZE, TAGS)
        assert place.get(again, 0, 6) == bytes(6)
        assert storage.sweep() == []
        (line,) = storage.pending()
        assert line.startswith(f"labs/origin/n1/os, now {parent}/.work/")
        assert "it was open" in line
    finally:
        os.close(handle)
    assert storage.sweep() == ["removed volume labs/origin/n1/os"]
    assert storage.pending() == []
    assert names(storage) == ["labs/origin/n1/os"]
    assert not [name for name in below(parent) if name.startswith("/.work/")]


@pytest.mark.rare
def test_an_origin_goes_when_its_last_clone_is_gone(
    place: Place, storage: ZfsStorage, parent: str
) -> None:
    made = origin(place, storage)
    clone = storage.clone(made, vol("a"), {})
    handle = os.open(clone.path, os.O_RDONLY)
    try:
        storage.destroy(clone.name)
        storage.destroy(made.volume)
        assert names(storage) == []
        (first, second) = sorted(storage.pending())
        assert "labs/a/n1/os" in first
        assert "is a clone of it" in second
        assert storage.sweep() == []
    finally:
        os.close(handle)
    assert len(storage.sweep()) == 2
    assert below(parent) == ["/.work", "/labs"]


def test_an_exported_pool(own_pool: str, tmp_path: Path) -> None:
    """Protects the record: volumes that cannot be seen are not gone."""
    root = f"{own_pool}/lab"
    zfs("create", root)
    place = zfs_site.place(root, tmp_path / "works")
    storage = place.open("home")
    made = origin(place, storage)
    with storage.send(made) as pieces:
        stream = b"".join(pieces)
    source = tmp_path / "source.raw"
    source.write_bytes(bytes(MIB))
    zfs_site.patiently(lambda: zpool("export", own_pool))
    calls: list[Callable[[], object]] = [
        lambda: storage.create(vol("a"), SIZE, {}),
        lambda: storage.import_raw(vol("a"), source, {}),
        lambda: storage.snapshot([made.volume], "x"),
        lambda: storage.persist([made]),
        lambda: storage.seal(made),
        lambda: storage.snapshots(made.volume),
        lambda: storage.clone(made, vol("a"), {}),
        lambda: storage.rollback(made.volume, "formed"),
        lambda: storage.destroy(made.volume),
        storage.volumes,
        lambda: storage.get(made.volume),
        lambda: storage.used(made.volume),
        storage.space,
        lambda: storage.read(made),
        lambda: storage.write(vol("a"), "x", Content(SIZE, 0, iter(())), {}),
        lambda: storage.send(made),
        lambda: storage.receive(vol("a"), io.BytesIO(stream), {}),
        storage.sweep,
    ]
    for call in calls:
        with pytest.raises(HostUnfit, match=f"there is no dataset {root}") as caught:
            call()
        assert f"zpool import {own_pool}" in caught.value.hint
    zpool("import", "-d", tmp_path, own_pool)
    assert names(storage) == [str(made.volume)]
    assert place.get(storage.get(made.volume), 0, 6) == b"origin"
    assert storage.sweep() == []

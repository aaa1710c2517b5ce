"""What the driver makes on real ZFS: names, properties, devices; and what it leaves alone."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from lab.config.profile import VolumeProfile
from lab.errors import Conflict, HostUnfit, InvalidSpec
from lab.names import Owner, VolumeName
from lab.storage import VolumeSnapshot
from lab.storage.zfs import links
from lab.storage.zfs.driver import ZfsStorage
from tests.contract import zfs_site
from tests.contract.forked import FORKED
from tests.contract.storage_contract import Place
from tests.contract.storage_place import MIB, SIZE, TAGS, labels, names, origin, vol
from tests.contract.zfs_site import below, open_zfs, zfs


def test_what_is_made_is_what_the_manual_says(
    place: Place, storage: ZfsStorage, parent: str
) -> None:
    """Protects what people see with `zfs list`: places, properties, holds."""
    made = origin(place, storage)
    storage.persist([made])
    storage.persist([made])
    dataset = f"{parent}/labs/origin/n1_os"
    assert storage.get(made.volume).path == Path("/dev/zvol") / dataset
    wanted = {
        "volblocksize": "16384", "compression": "lz4", "refreservation": "0", "volmode": "dev",
        "lab:home": "home", "lab:volume": "labs/origin/n1/os", "lab.tag:role": "os",
    }  # fmt: skip
    found = zfs("get", "-Hp", "-o", "property,value", ",".join(wanted), dataset)
    # ZFS 2.1 says none, later ones 0
    assert dict(line.split("\t") for line in found.replace("none", "0").splitlines()) == wanted
    assert zfs("holds", "-H", f"{dataset}@formed").split("\t")[1] == "lab"
    folder = "mountpoint,canmount,lab:folder"
    found = zfs("get", "-H", "-o", "value", folder, f"{parent}/labs/origin")
    assert found.split() == ["none", "off", "yes"]
    storage.destroy(made.volume)
    assert below(parent) == ["/.work", "/labs"]


def test_profiles_are_properties(storage: ZfsStorage, parent: str, tmp_path: Path) -> None:
    """Protects durability: a profile reaches volumes, their clones, and what is rolled back."""
    profile = VolumeProfile(32768, "zle", "disabled", "throughput", "metadata")
    made = storage.create(vol("a"), SIZE, {}, profile=profile)
    source = tmp_path / "source.raw"
    source.write_bytes(bytes(MIB))
    storage.import_raw(vol("b"), source, {}, profile=profile)
    storage.snapshot([made.name], "x")
    storage.snapshot([made.name], "y")
    storage.rollback(made.name, "x")
    (made_z,) = storage.snapshot([made.name], "z")
    storage.clone(made_z, vol("c"), {}, profile=profile)
    storage.clone(made_z, vol("d"), {})
    wanted = ["32768", "zle", "disabled", "throughput", "metadata"]
    names = "volblocksize,compression,sync,logbias,primarycache"
    for leaf in ("a/n1_os", "a/n1_os_1", "b/n1_os", "c/n1_os"):
        found = zfs("get", "-Hp", "-o", "value", names, f"{parent}/labs/{leaf}")
        assert found.split() == wanted
    found = zfs("get", "-Hp", "-o", "value", names, f"{parent}/labs/d/n1_os")
    assert found.split() == ["32768", "lz4", "standard", "latency", "all"]


def test_a_foreign_clone_is_named_and_kept(place: Place, storage: ZfsStorage, parent: str) -> None:
    made = origin(place, storage)
    foreign = f"{parent}/by-hand"
    zfs("clone", f"{parent}/labs/origin/n1_os@formed", foreign)
    with pytest.raises(Conflict, match=f"1 clone: {foreign}"):
        storage.destroy(made.volume)
    assert storage.sweep() == []
    assert place.get(storage.get(made.volume), 0, 6) == b"origin"
    zfs_site.remove(foreign)
    storage.destroy(made.volume)
    assert names(storage) == []


@pytest.mark.rare
def test_what_others_put_on_our_volumes_is_kept(
    place: Place, storage: ZfsStorage, parent: str
) -> None:
    """Protects snapshots and holds of backup tools; they are named, with what to do."""
    made = origin(place, storage)
    dataset = f"{parent}/labs/origin/n1_os"
    zfs("snapshot", f"{dataset}@backup")
    assert labels(storage, made.volume) == ["formed"]
    with pytest.raises(Conflict, match="formed already"):
        storage.snapshot([made.volume], "formed")
    with pytest.raises(Conflict, match="backup already"):
        storage.snapshot([made.volume], "backup")
    assert place.get(storage.rollback(made.volume, "formed"), 0, 6) == b"origin"
    with pytest.raises(Conflict, match=f"not ours: {dataset}@backup") as caught:
        storage.destroy(made.volume)
    assert f"zfs destroy {dataset}@backup" in caught.value.hint
    zfs("destroy", f"{dataset}@backup")
    zfs("hold", "keep", f"{dataset}@formed")
    with pytest.raises(Conflict, match="held by 'keep'") as caught:
        storage.destroy(made.volume)
    assert f"zfs release keep {dataset}@formed" in caught.value.hint
    zfs("release", "keep", f"{dataset}@formed")
    storage.destroy(made.volume)
    assert storage.sweep() == []
    assert names(storage) == []


@pytest.mark.rare
def test_tags_of_others_do_not_count(place: Place, storage: ZfsStorage, parent: str) -> None:
    """Protects what is not ours: an inherited or received tag is no tag."""
    made = origin(place, storage)
    zfs("set", "lab:home=home", "lab:folder=yes", parent)
    zfs("create", f"{parent}/labs/x")
    zfs("create", "-s", "-V", "8M", f"{parent}/labs/x/n1_os")
    copy = f"{parent}/labs/copy"
    zfs("create", copy)
    stream = subprocess.run(
        ["zfs", "send", "-p", f"{parent}/labs/origin/n1_os@formed"],
        check=True,
        capture_output=True,
    ).stdout
    zfs("receive", "-u", f"{copy}/n1_os", stdin=stream)
    assert "home\treceived" in zfs("get", "-H", "-o", "value,source", "lab:home", f"{copy}/n1_os")
    assert names(storage) == [str(made.volume)]
    for name in ("x", "copy"):
        assert storage.snapshots(vol(name)) == []
        with pytest.raises(Conflict, match="not belong"):
            storage.destroy(vol(name))
        with pytest.raises(Conflict, match="exists"):
            storage.create(vol(name), SIZE, {})
    assert storage.sweep() == []
    assert {"/labs/x/n1_os", "/labs/copy/n1_os@formed"} <= set(below(parent))


def test_names_that_zfs_cannot_hold(storage: ZfsStorage, parent: str) -> None:
    """Protects: refused before anything is made."""
    long = VolumeName(Owner("lab", "l" * 80), "n" * 80, "v" * 80)
    calls: list[Callable[[], object]] = [
        lambda: storage.create(long, SIZE, {}),
        lambda: storage.clone(VolumeSnapshot(vol("a"), "x", SIZE), long, {}),
        lambda: storage.create(vol("a"), SIZE, {"k" * 300: "x"}),
        lambda: storage.create(vol("a"), SIZE, {"note": "x" * 9000}),
    ]
    for call in calls:
        with pytest.raises(InvalidSpec):
            call()
    assert below(parent) == []


def test_tags_up_to_the_limits(storage: ZfsStorage) -> None:
    tags = {"k" * 247: "x" * 8191, "minus": "-", "empty": "", "odd": " \t\n%ü\0\udc80 "}
    storage.create(vol("a"), SIZE, tags)
    assert dict(storage.get(vol("a")).tags) == tags


def test_sizes_are_rounded_up(storage: ZfsStorage, tmp_path: Path) -> None:
    source = tmp_path / "odd.raw"
    source.write_bytes(b"x" * (MIB + 1))
    assert storage.import_raw(vol("a"), source, {}).size == 2 * MIB
    assert storage.create(vol("b"), MIB + 512, {}).size == 2 * MIB
    assert storage.get(vol("b")).size == 2 * MIB


@pytest.mark.rare
def test_clones_from_several_processes(place: Place, parent: str, tmp_path: Path) -> None:
    """Protects parallel labs: 24 clones of one snapshot at once, their folders made in passing."""
    storage = place.open("home")
    made = origin(place, storage)
    with ProcessPoolExecutor(4, mp_context=FORKED) as pool:
        jobs = [pool.submit(clone, parent, tmp_path, made, f"c{index // 3}") for index in range(24)]
        found = [job.result() for job in jobs]
    assert len(set(found)) == 24
    assert len(storage.volumes()) == 25
    for volume in storage.volumes():
        assert place.get(storage.get(volume.name), 0, 6) == b"origin"
    assert storage.sweep() == []


def clone(root: str, works: Path, made: VolumeSnapshot, lab: str) -> str:
    name = VolumeName(Owner("lab", lab), f"n{os.urandom(4).hex()}", "os")
    return str(open_zfs(root, works, "home").clone(made, name, TAGS).path)


def test_only_the_right_device_will_do(storage: ZfsStorage, tmp_path: Path) -> None:
    """Protects from stale links, and hosts without udev: the device is asked for its name."""
    made = storage.create(vol("a"), SIZE, {})
    other = storage.create(vol("b"), SIZE, {})
    dataset = str(made.path).removeprefix("/dev/zvol/")
    dev = tmp_path / "dev"
    link = dev / "zvol" / dataset
    link.parent.mkdir(parents=True)
    for volume in (made, other):
        device = volume.path.resolve()
        os.mknod(dev / device.name, stat.S_IFBLK | 0o600, device.stat().st_rdev)
    link.symlink_to(dev / other.path.resolve().name)
    found = links.wait_for(dataset, SIZE, dev=dev)
    assert found == dev / made.path.resolve().name
    with pytest.raises(HostUnfit, match="did not appear"):
        links.wait_for(dataset, 2 * SIZE, timeout=0.2, dev=dev)
    found.unlink()
    with pytest.raises(HostUnfit, match="did not appear") as caught:
        links.wait_for(dataset, SIZE, timeout=0.2, dev=dev)
    assert "volmode" in caught.value.hint

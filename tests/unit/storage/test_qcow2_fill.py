"""Protects disks that are written without QEMU: QEMU's own tools find nothing wrong with them."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest

from lab.errors import InvalidSpec
from lab.run import run
from lab.storage.qcow2_fill import fill
from lab.storage.qcow2_format import CLUSTER_BITS, Backing, write_empty

pytestmark = pytest.mark.skipif(not shutil.which("qemu-img"), reason="needs qemu-utils")


def flat(path: Path) -> bytes:
    """What a guest reads."""
    raw = path.with_suffix(".flat")
    run(["qemu-img", "convert", "-f", "qcow2", "-O", "raw", path, raw], timeout=60)
    return raw.read_bytes()


@pytest.mark.parametrize(
    ("cluster_bits", "size", "share"),
    [
        pytest.param(CLUSTER_BITS, 80 << 20, 0.02, id="ours, several tables"),
        pytest.param(9, 1 << 20, 0.9, id="several refcount blocks"),
        pytest.param(9, 500 * 512, 1.0, id="the end is within a table"),
        pytest.param(16, (1 << 20) + 512, 1.0, id="the end is within a cluster"),
    ],
)
def test_any_content(tmp_path: Path, cluster_bits: int, size: int, share: float) -> None:
    chance, cluster = random.Random(size), 1 << cluster_bits
    below, disk = tmp_path / "below", tmp_path / "disk.qcow2"
    content = bytearray(chance.randbytes(size))
    below.write_bytes(content)
    write_empty(disk, size, Backing(below, "raw"), cluster_bits=cluster_bits)
    extents = []
    for at in range(0, size, cluster):
        if chance.random() < share:
            length = min(cluster, size - at)
            data = bytes(length) if chance.random() < 0.3 else chance.randbytes(length)
            content[at : at + length] = data
            extents.append((at, data))
    fill(disk, extents)
    run(["qemu-img", "check", "-f", "qcow2", disk], timeout=60)
    assert flat(disk) == content
    # as a guest that writes to it later
    run(["qemu-io", "-f", "qcow2", "-c", f"write -P 7 0 {size}", disk], timeout=60)
    run(["qemu-img", "check", "-f", "qcow2", disk], timeout=60)
    assert flat(disk) == b"\x07" * size


def test_extents_of_many_clusters(tmp_path: Path) -> None:
    disk, data = tmp_path / "disk.qcow2", os.urandom(5 << CLUSTER_BITS)
    write_empty(disk, 1 << 20)
    fill(disk, [(2 << CLUSTER_BITS, data)])
    run(["qemu-img", "check", "-f", "qcow2", disk], timeout=60)
    assert flat(disk)[2 << CLUSTER_BITS :][: len(data)] == data


@pytest.mark.parametrize(
    "extents",
    [
        pytest.param([(512, bytes(1 << CLUSTER_BITS))], id="not at a cluster"),
        pytest.param([(0, bytes(512))], id="half a cluster"),
        pytest.param([(1 << 20, bytes(1 << CLUSTER_BITS))], id="behind the end"),
        pytest.param([(0, bytes(2 << CLUSTER_BITS)), (1 << CLUSTER_BITS, b"x")], id="twice"),
        pytest.param([(0, b"")], id="nothing"),
    ],
)
def test_extents_out_of_place(tmp_path: Path, extents: list[tuple[int, bytes]]) -> None:
    disk = tmp_path / "disk.qcow2"
    write_empty(disk, 1 << 20)
    with pytest.raises(InvalidSpec, match="out of place"):
        fill(disk, extents)


def test_only_once(tmp_path: Path) -> None:
    """Protects what a guest wrote."""
    disk = tmp_path / "disk.qcow2"
    write_empty(disk, 1 << 20)
    fill(disk, [(0, os.urandom(1 << CLUSTER_BITS))])
    with pytest.raises(InvalidSpec, match="written to already"):
        fill(disk, [])


def test_more_than_can_be_counted(tmp_path: Path) -> None:
    disk = tmp_path / "disk.qcow2"
    write_empty(disk, 16 << 20, cluster_bits=9)
    with pytest.raises(InvalidSpec, match="refcounts"):
        fill(disk, ((at, b"x" * 512) for at in range(0, 12 << 20, 512)))

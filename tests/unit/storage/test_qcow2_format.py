"""Protects the qcow2 files we write byte by byte: QEMU must take them as its own."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from lab.errors import HostUnfit, InvalidSpec
from lab.run import run
from lab.storage.qcow2_format import Backing, read_header, write_empty

MIB, GIB, TIB = 1 << 20, 1 << 30, 1 << 40

needs_qemu = pytest.mark.skipif(
    not (shutil.which("qemu-img") and shutil.which("qemu-io")), reason="needs qemu-utils"
)


@needs_qemu
@pytest.mark.parametrize("cluster_bits", [12, 14, 16, 21])
@pytest.mark.parametrize("size", [512, MIB, 512 * MIB + 512, 8 * GIB, 8 * GIB + 512, 5 * TIB])
def test_qemu_accepts_and_writes(tmp_path: Path, size: int, cluster_bits: int) -> None:
    path = tmp_path / "disk.qcow2"
    if (cluster_bits, size) == (12, 5 * TIB):
        with pytest.raises(InvalidSpec):  # more L1 than one refcount block counts
            write_empty(path, size, cluster_bits=cluster_bits)
        return
    write_empty(path, size, cluster_bits=cluster_bits)
    info = json.loads(run(["qemu-img", "info", "--output=json", path], timeout=30).stdout)
    assert (info["virtual-size"], info["cluster-size"]) == (size, 1 << cluster_bits)
    assert info["actual-size"] <= 16384
    run(["qemu-img", "check", "-q", path], timeout=30)
    last = size - 512
    commands = (f"write -q -P 7 {last} 512", f"read -q -P 7 {last} 512", "flush")
    argv = [part for command in commands for part in ("-c", command)]
    done = run(["qemu-io", "-f", "qcow2", *argv, path], timeout=30)
    assert "failed" not in done.stdout
    run(["qemu-img", "check", "-q", path], timeout=30)
    assert read_header(path).size == size


@needs_qemu
def test_overlay_larger_than_backing_reads_zeros_beyond(tmp_path: Path) -> None:
    base, top = tmp_path / "base.raw", tmp_path / "top.qcow2"
    base.write_bytes(b"\x05" * (MIB + 512))
    write_empty(top, 2 * TIB, Backing(base, "raw"))
    commands = (
        f"read -q -P 5 0 {MIB + 512}",
        f"read -q -P 0 {MIB + 512} {MIB}",
        f"read -q -P 0 {2 * TIB - MIB} {MIB}",
        f"write -q -P 9 {MIB} 512",
        f"read -q -P 5 {MIB - 512} 512",
        f"read -q -P 9 {MIB} 512",
        f"read -q -P 0 {MIB + 512} 65024",
    )
    for command in commands:
        done = run(["qemu-io", "-f", "qcow2", "-c", command, top], timeout=30)
        assert "failed" not in done.stdout
    run(["qemu-img", "check", "-q", top], timeout=30)
    info = json.loads(run(["qemu-img", "info", "--output=json", top], timeout=30).stdout)
    assert info["backing-filename"] == str(base)
    assert info["backing-filename-format"] == "raw"


@needs_qemu
def test_reads_what_qemu_img_writes(tmp_path: Path) -> None:
    base, top = tmp_path / "base.raw", tmp_path / "top.qcow2"
    base.write_bytes(bytes(MIB))
    run(["qemu-img", "create", "-q", "-f", "qcow2", "-b", base, "-F", "raw", top, "3M"], timeout=30)
    header = read_header(top)
    assert (header.size, header.backing) == (3 * MIB, Backing(base, "raw"))


@pytest.mark.parametrize("kind", ["raw", "qcow2"])
def test_header_is_read_back(tmp_path: Path, kind: str) -> None:
    path, below = tmp_path / "disk.qcow2", tmp_path / "ümläut: and, commas"
    write_empty(path, MIB, Backing(below, kind))
    header = read_header(path)
    assert (header.size, header.backing, header.cluster_size) == (MIB, Backing(below, kind), 16384)


@pytest.mark.parametrize(
    ("at", "data"),
    [
        pytest.param(0, b"X", id="magic"),
        pytest.param(7, b"\2", id="version"),
        pytest.param(16, b"\xff\xff\xff", id="length of the name"),
        pytest.param(8, b"\1", id="offset of the name"),
        pytest.param(23, b"\x40", id="cluster size"),
        pytest.param(24, b"\x7f", id="virtual size"),
        pytest.param(35, b"\1", id="encryption"),
        pytest.param(40, b"\1", id="offset of the L1 table"),
        pytest.param(79, b"\2", id="marked corrupt"),
    ],
)
def test_damaged_headers_are_refused(tmp_path: Path, at: int, data: bytes) -> None:
    path = tmp_path / "disk.qcow2"
    write_empty(path, MIB, Backing(tmp_path / "base", "raw"))
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)
    with pytest.raises(InvalidSpec):
        read_header(path)


@pytest.mark.parametrize("content", [b"", b"QFI\xfb", b"x" * 65536])
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "disk.qcow2"
    path.write_bytes(content)
    with pytest.raises(InvalidSpec, match="not a qcow2 file"):
        read_header(path)


def test_refuses_what_the_format_cannot_hold(tmp_path: Path) -> None:
    with pytest.raises(HostUnfit, match="1023"):
        write_empty(tmp_path / "a", MIB, Backing(Path("/" + "x" * 1023), "raw"))
    for size in (0, 100, 1 << 60):
        with pytest.raises(InvalidSpec):
            write_empty(tmp_path / "a", size)
    assert not (tmp_path / "a").exists()


def test_never_overwrites(tmp_path: Path) -> None:
    path = tmp_path / "disk.qcow2"
    path.write_bytes(b"keep")
    with pytest.raises(FileExistsError):
        write_empty(path, MIB)
    assert path.read_bytes() == b"keep"

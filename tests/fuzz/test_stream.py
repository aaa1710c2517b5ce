"""QEMU's migration streams, which archives bring: see ``lab/hypervisor/libvirt/stream.py``."""

from __future__ import annotations

from pathlib import Path

from lab.hypervisor.libvirt.stream import Reader, UnknownStream, devices, own_block, read_opening
from tests.fuzz.runner import Limits, durations, fuzz, seeds


@durations
def test_a_migration_stream(tmp_path: Path, seconds: float) -> None:
    """Protects a host that imports archives: what they have as RAM is a stream, or refused."""
    path = tmp_path / "stream"

    def read(data: bytes) -> None:
        reader = Reader(data)
        blocks = {block.name: block.size for block in reader.opening.blocks}
        assert own_block(reader.opening).name in blocks
        for page in reader.pages():
            assert 0 <= page.offset <= blocks[page.block] - 4096
            assert page.data is None or len(page.data) == 4096
        assert len(reader.rest) <= len(data)
        path.write_bytes(data)
        read_opening(path)
        devices(data)

    limits = Limits(memory=16 << 20)
    assert fuzz(read, seeds("stream"), errors=(UnknownStream,), seconds=seconds, limits=limits)

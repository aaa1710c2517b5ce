"""How long storage takes for what labs are made of: ``python -m bench.storage``.

Both drivers do the same work in one run, so that the ratios mean something on a busy machine:
an image is imported and snapshotted, cloned per node, the clones are written to, snapshotted
all at once, rolled back and destroyed. Nothing is benched that a lab does not do.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from lab.names import Owner, VolumeName
from lab.storage import Storage, Volume, VolumeSnapshot
from lab.units import MIB, format_size

IMAGE = 64 * MIB
"""Bytes of data in the image, in a volume of ``SIZE``."""
SIZE = 512 * MIB
WRITTEN = 2 * MIB
"""Bytes that are written to each clone."""
FEW, MANY = 3, 30
"""Volumes of one snapshot: a lab's of one disk each, and of nine nodes with three and more."""

Write = Callable[[Volume, bytes], None]


@dataclass
class Times:
    """Seconds by what was done; ``held``: bytes on disk by clone, as the driver counts."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    held: list[int] = field(default_factory=list)

    @contextmanager
    def of(self, what: str) -> Iterator[None]:
        """Time the block."""
        began = time.perf_counter()
        yield
        self.seconds.setdefault(what, []).append(time.perf_counter() - began)


def measure(storage: Storage, write: Write, source: Path, runs: int) -> Times:
    """The work, ``runs`` times; all that was made is destroyed again."""
    times = Times()
    for run in range(runs):
        owner = Owner("image", f"bench-{os.getpid()}-{run}")
        image = VolumeName(owner, "base", "os")
        copy = source.with_name(f"copy-{run}")
        os.link(source, copy)
        with times.of("import an image"):
            storage.import_raw(image, copy, {"owner": str(owner)})
        (base,) = storage.snapshot([image], "base")
        storage.persist([base])
        clones = _clones(storage, base, run, times)
        for clone in clones:
            write(clone, os.urandom(WRITTEN))
        names = [clone.name for clone in clones]
        for count in (FEW, MANY):
            with times.of(f"snapshot {count} volumes at once"):
                storage.snapshot(names[:count], f"s{count}")
        for clone in clones[:FEW]:
            write(clone, os.urandom(WRITTEN))
        times.held += [storage.used(name) for name in names[FEW:]]
        for name in names[:FEW]:
            with times.of("roll one volume back"):
                storage.rollback(name, f"s{MANY}")
        for name in names:
            with times.of("destroy one volume"):
                storage.destroy(name)
        storage.destroy(image)
        storage.sweep()
    return times


def _clones(storage: Storage, base: VolumeSnapshot, run: int, times: Times) -> list[Volume]:
    found = []
    for number in range(MANY):
        owner = Owner("lab", f"bench-{os.getpid()}-{run}")
        name = VolumeName(owner, f"n{number}", "os")
        with times.of("clone one volume"):
            found.append(storage.clone(base, name, {"owner": str(owner), "node": f"n{number}"}))
    return found


def to_device(volume: Volume, data: bytes) -> None:
    """Write to a block device as a guest with cache=none does: past the page cache, flushed."""
    with volume.path.open("r+b", buffering=0) as device:
        device.write(data)
        os.fsync(device.fileno())


def to_qcow2(volume: Volume, data: bytes) -> None:
    """Write to a qcow2 file by QEMU's own hand."""
    from lab.run import run

    with tempfile.NamedTemporaryFile() as source:
        source.write(data)
        source.flush()
        command = f"write -q -s {source.name} 0 {len(data)}"
        run(["qemu-io", "-f", "qcow2", "-t", "none", "-c", command, volume.path], timeout=60)


def table(found: Sequence[tuple[str, Times]]) -> str:
    """Medians in milliseconds, a column a driver, and the ratio of the last to the first."""
    names = [name for name, _ in found]
    lines = [f"{'':32}" + "".join(f"{name:>12}" for name in names) + f"{'ratio':>9}"]
    for what in found[0][1].seconds:
        values = [statistics.median(times.seconds[what]) * 1000 for _, times in found]
        lines.append(_line(what, [f"{value:.1f} ms" for value in values], values))
    held = [statistics.median(times.held) for _, times in found]
    line = _line("bytes held by a clone, 2M written", [format_size(int(h)) for h in held], held)
    return "\n".join([*lines, line]) + "\n"


def _line(what: str, shown: Sequence[str], values: Sequence[float]) -> str:
    ratio = f"{values[-1] / values[0]:>8.2f}x" if values[0] else ""
    return f"{what:32}" + "".join(f"{text:>12}" for text in shown) + ratio


def main() -> int:
    """Measure both drivers and print the table."""
    parser = argparse.ArgumentParser(description="Measure storage drivers side by side.")
    parser.add_argument("--pool", required=True, help="a dataset of its own, such as tank/bench")
    parser.add_argument("--directory", required=True, type=Path, help="for the qcow2 driver")
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    from lab.storage.qcow2 import Qcow2Storage
    from lab.storage.zfs.driver import ZfsStorage

    directory: Path = options.directory.absolute()
    directory.mkdir(parents=True, exist_ok=True)
    source = directory / "image.raw"
    with source.open("wb") as file:
        file.write(os.urandom(IMAGE))
        file.truncate(SIZE)
    drivers: list[tuple[str, Storage, Write]] = [
        ("qcow2", Qcow2Storage(directory / "volumes", "bench"), to_qcow2),
        ("zfs", ZfsStorage(options.pool, "bench", directory / "works"), to_device),
    ]
    found = [(name, measure(s, write, source, options.runs)) for name, s, write in drivers]
    source.unlink()
    sys.stdout.write(table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Snapshots of several volumes that appear together or not at all.

Each snapshot's record names its batch, which is a scratch directory. As long as that holds a
plan, the snapshots are invisible; removing the plan is the one step that shows them all. A
batch whose process died is undone by its plan: by ``sweep``, or by the next call for that label.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from lab.errors import InvalidSpec, NotFound
from lab.names import VolumeName
from lab.paths import entries
from lab.storage.volume_directory import (
    SNAPSHOTS,
    SnapshotRecord,
    VolumeDirectory,
    write_json,
)

_PLAN = "plan.json"


def publish(
    directory: VolumeDirectory, work: Path, label: str, disks: Mapping[VolumeName, int]
) -> None:
    """Publish the copies ``work/0``, ``work/1`` ... as snapshot ``label`` of the volumes in order.

    ``disks`` maps each volume to its size in bytes; the caller holds all their locks. On any error
    none is published and all are removed.
    """
    write_json(work / _PLAN, [[str(volume), label] for volume in disks])
    try:
        for index, (volume, size) in enumerate(disks.items()):
            record = SnapshotRecord(size, next_order(directory, volume), work.name)
            place(directory, work, work / str(index), (volume, label), record)
        (work / _PLAN).unlink()
    except BaseException:
        if (work / _PLAN).exists():
            for volume in disks:
                forget(directory, volume, label)
        raise


def place(
    directory: VolumeDirectory,
    work: Path,
    disk: Path,
    name: tuple[VolumeName, str],
    record: SnapshotRecord,
) -> None:
    """Move the complete ``disk`` and its record to the path of the snapshot ``name``."""
    frozen, note = directory.snapshot_files(*name)
    directory.add_snapshots(name[0])
    draft = work / f"{disk.name}.json"
    write_json(draft, asdict(record))
    disk.rename(frozen)
    draft.rename(note)


def visible(directory: VolumeDirectory, volume: VolumeName, label: str) -> SnapshotRecord | None:
    """The snapshot's record if it is published."""
    record = directory.snapshot_record(volume, label)
    if record is None or not record.batch:
        return record
    if (directory.scratches / record.batch / _PLAN).exists():
        return None
    # undoing a batch removes the records first: one that is still there now was published
    return directory.snapshot_record(volume, label)


def labels(directory: VolumeDirectory, volume: VolumeName) -> list[tuple[str, SnapshotRecord]]:
    """The published snapshots of ``volume``, oldest first."""
    folder = directory.place(volume) / SNAPSHOTS
    found = []
    for note in entries(folder):
        record = visible(directory, volume, note.stem) if note.suffix == ".json" else None
        if record is not None:
            found.append((note.stem, record))
    return sorted(found, key=lambda entry: entry[1].order)


def next_order(directory: VolumeDirectory, volume: VolumeName) -> int:
    """The sequence number of a new snapshot of ``volume``; the caller holds its lock."""
    return max((record.order for _, record in labels(directory, volume)), default=0) + 1


def forget(directory: VolumeDirectory, volume: VolumeName, label: str) -> None:
    """Remove all files of a snapshot of ``volume``; the caller holds its lock."""
    frozen, note = directory.snapshot_files(volume, label)
    note.unlink(missing_ok=True)
    frozen.unlink(missing_ok=True)


def tidy(directory: VolumeDirectory, volume: VolumeName) -> list[str]:
    """Remove the snapshots' disks of ``volume`` that a killed call left without a record."""
    folder = directory.place(volume) / SNAPSHOTS
    with contextlib.suppress(NotFound), directory.held(volume):
        lost = [p for p in entries(folder) if not p.with_suffix(".json").exists()]
        for path in lost:
            path.unlink()
        return [f"unfinished snapshot {volume}@{path.stem}" for path in lost]
    return []


def undo(directory: VolumeDirectory, work: Path) -> list[str]:
    """Remove the snapshots of the batch ``work`` of a dead process; returns a line for each."""
    removed = []
    for volume, label in _read_plan(work / _PLAN):
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(directory.held(volume))
            except NotFound:
                continue
            record = directory.snapshot_record(volume, label)
            if record is None or record.batch == work.name:
                forget(directory, volume, label)
                removed.append(f"unfinished snapshot {volume}@{label}")
    (work / _PLAN).unlink(missing_ok=True)
    return removed


def _read_plan(plan: Path) -> list[tuple[VolumeName, str]]:
    """The plan of a batch; empty if it is incomplete: then nothing was made yet."""
    with contextlib.suppress(FileNotFoundError, ValueError, RecursionError, InvalidSpec):
        return [(VolumeName.parse(name), label) for name, label in json.loads(plan.read_bytes())]
    return []

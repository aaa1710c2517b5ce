"""The contract between processes: races, and processes killed at any moment."""

from __future__ import annotations

import contextlib
import io
import itertools
import multiprocessing as mp
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import BinaryIO

import pytest

from lab.errors import Conflict, LabError, NotFound
from lab.names import VolumeName
from lab.storage import Content, Extent, Storage, VolumeSnapshot
from tests.contract.forked import FORKED
from tests.contract.storage_place import (
    MIB,
    SIZE,
    TAGS,
    Place,
    destroy_all,
    labels,
    names,
    origin,
    vol,
)

Opener = Callable[[str], Storage]

ROUNDS = 15
KILLS = 8


class Crashes:
    @pytest.mark.parametrize("verb", ["create", "clone", "snapshot"])
    def test_two_processes_race_for_one_name(
        self, place: Place, storage: Storage, verb: str
    ) -> None:
        origin(place, storage)
        rounds = place.times(ROUNDS)
        for index in range(rounds if verb == "snapshot" else 0):
            storage.create(vol(f"s{index}"), SIZE, {})
        results = _race(place.open, [verb, verb], rounds)
        for both in zip(*results, strict=True):
            assert sorted(both) == ["Conflict", "done"]
        assert storage.sweep() == []

    def test_clone_and_destroy_race(self, place: Place, storage: Storage) -> None:
        rounds = place.times(ROUNDS)
        for index in range(rounds):
            origin(place, storage, f"o{index}")
        clones, destroys = _race(place.open, ["clone own", "destroy own"], rounds)
        for index, pair in enumerate(zip(clones, destroys, strict=True)):
            assert pair in (("done", "Conflict"), ("NotFound", "done"))
            if pair[0] == "done":
                assert place.get(storage.get(vol(f"c{index}")), 0, 6) == b"origin"

    @pytest.mark.parametrize("verb", ["receive", "write"])
    def test_sweep_leaves_the_work_of_live_processes(
        self, place: Place, storage: Storage, tmp_path: Path, verb: str
    ) -> None:
        stream = _stream(place, storage, verb)
        child, pipe = _stalled(place.open, verb, stream, tmp_path)
        assert storage.sweep() == []
        assert str(vol("late")) not in names(storage)
        with os.fdopen(pipe, "wb") as rest:
            rest.write(stream[len(stream) // 2 :])
        child.join(60)
        assert child.exitcode == 0
        assert place.get(storage.get(vol("late")), 0, 4) == b"data"

    @pytest.mark.parametrize("verb", ["receive", "write"])
    def test_what_a_killed_copy_leaves_is_swept(
        self, place: Place, storage: Storage, tmp_path: Path, verb: str
    ) -> None:
        stream = _stream(place, storage, verb)
        child, pipe = _stalled(place.open, verb, stream, tmp_path)
        child.kill()
        child.join(60)
        os.close(pipe)
        assert str(vol("late")) not in names(storage)
        assert len(storage.sweep()) > 0
        assert storage.sweep() == []
        _copy(storage, verb, io.BytesIO(stream))

    def test_sweep_beside_work(self, place: Place, storage: Storage) -> None:
        ready, ours = FORKED.Pipe()
        child = FORKED.Process(target=_churn, args=(place.open, ours, place.times(10)))
        child.start()
        assert ready.recv() == "ready"
        while child.is_alive():
            assert storage.sweep() == []
        child.join(60)
        ready.close()
        ours.close()
        assert child.exitcode == 0
        assert names(storage) == [str(vol("seed"))]

    def test_killed_at_any_moment(self, place: Place, storage: Storage) -> None:
        chance = random.Random(1)
        for kill in range(place.times(KILLS)):
            ready, ours = FORKED.Pipe()
            child = FORKED.Process(target=_churn, args=(place.open, ours))
            child.start()
            assert ready.recv() == "ready"
            time.sleep(chance.uniform(0, place.pace))
            child.kill()
            child.join(60)
            ready.close()
            ours.close()
            _check_after_kill(place, storage, sweep_first=bool(kill % 2))


def _check_after_kill(place: Place, storage: Storage, *, sweep_first: bool) -> None:
    """All that is visible is whole; names and labels of what is not can be used again."""
    if sweep_first:
        storage.sweep()
    for volume in storage.volumes():
        assert place.get(volume, 0, 4) in (b"data", bytes(4))
    first, second = vol("k", "n1"), vol("k", "n2")
    if {str(first), str(second)} <= set(names(storage)):
        common = [label for label in labels(storage, first) if label in labels(storage, second)]
        assert labels(storage, first) == common == labels(storage, second)
        for label in ("x0", "x1", "x2"):
            with contextlib.suppress(Conflict):
                storage.snapshot([first, second], label)
            assert label in labels(storage, first)
            assert label in labels(storage, second)
    for snapshot in storage.snapshots(first):
        clone = storage.clone(snapshot, vol("check", "n1", snapshot.label), {})
        assert place.get(clone, 0, 4) in (b"data", bytes(4))
    destroy_all(storage)
    storage.sweep()
    assert storage.sweep() == []
    assert storage.volumes() == []


def _churn(opener: Opener, ready: mp.connection.Connection, rounds: int = sys.maxsize) -> None:
    """Make and destroy, as a rule until killed."""
    storage = opener("home")
    volume = storage.create(vol("seed"), SIZE, {})
    (seed,) = storage.snapshot([volume.name], "x")
    with storage.send(seed) as pieces:
        stream = b"".join(pieces)
    pair = [vol("k", "n1"), vol("k", "n2")]
    ready.send("ready")
    try:
        for _ in range(rounds):
            _once(storage, pair, stream, seed)
    except LabError as error:  # a traceback of another process shows no more than its words
        sys.stderr.write("\n".join((str(error), *error.details, "")))
        raise


def _once(storage: Storage, pair: list[VolumeName], stream: bytes, seed: VolumeSnapshot) -> None:
    storage.receive(pair[0], io.BytesIO(stream), TAGS)
    with storage.read(seed) as content:
        storage.write(pair[1], "x", content, TAGS)
    for index in range(3):
        made = storage.snapshot(pair, f"x{index}")
        storage.clone(made[0], vol(f"c{index}"), TAGS)
        storage.rollback(pair[1], f"x{index}")
    for index in range(3):
        storage.destroy(vol(f"c{index}"))
    for name in pair:
        storage.destroy(name)


def _race(opener: Opener, verbs: list[str], rounds: int) -> list[list[str]]:
    """What each of the processes, one per verb, met in each round."""
    barrier = FORKED.Barrier(len(verbs))
    pipes = [FORKED.Pipe(duplex=False) for _ in verbs]
    children = [
        FORKED.Process(target=_run_rounds, args=(opener, verb, barrier, pipe[1], rounds))
        for verb, pipe in zip(verbs, pipes, strict=True)
    ]
    for child in children:
        child.start()
    results = [pipe[0].recv() for pipe in pipes]
    for child in children:
        child.join(60)
    for end in itertools.chain.from_iterable(pipes):
        end.close()
    return results


def _run_rounds(
    opener: Opener, verb: str, barrier: Barrier, to: mp.connection.Connection, rounds: int
) -> None:
    storage = opener("home")
    results = []
    for index in range(rounds):
        barrier.wait(60)
        try:
            _act(storage, verb, index)
            results.append("done")
        except LabError as error:
            results.append(type(error).__name__)
    to.send(results)


def _act(storage: Storage, verb: str, index: int) -> None:
    if verb == "create":
        storage.create(vol(f"c{index}"), SIZE, {})
    elif verb == "snapshot":
        storage.snapshot([vol(f"s{index}"), vol("origin")], f"x{index}")
    elif verb == "clone":
        storage.clone(storage.snapshots(vol("origin"))[0], vol(f"c{index}"), {})
    elif verb == "clone own":
        found = storage.snapshots(vol(f"o{index}"))
        if not found:
            raise NotFound("too late")
        storage.clone(found[0], vol(f"c{index}"), {})
    elif verb == "destroy own":
        storage.destroy(vol(f"o{index}"))


def _stream(place: Place, storage: Storage, verb: str) -> bytes:
    """What ``_copy`` makes a volume of that begins with ``data``."""
    data = b"data" + os.urandom(2 * MIB)
    if verb == "write":
        return data
    volume = storage.create(vol("early"), SIZE, {})
    place.put(volume, 0, data)
    with storage.send(storage.snapshot([volume.name], "x")[0]) as pieces:
        return b"".join(pieces)


def _stalled(
    opener: Opener, verb: str, stream: bytes, folder: Path
) -> tuple[mp.context.ForkServerProcess, int]:
    """A process in the middle of making ``late``, and the pipe it waits for more from."""
    fifo = folder / "fifo"
    os.mkfifo(fifo)
    child = FORKED.Process(target=_copy_from, args=(opener, verb, fifo))
    child.start()
    pipe = os.open(fifo, os.O_WRONLY)
    half = stream[: len(stream) // 2]
    # a pipe holds 64 KiB: when more was taken, the other end is past the header
    while half:
        half = half[os.write(pipe, half) :]
    return child, pipe


def _copy_from(opener: Opener, verb: str, fifo: Path) -> None:
    with fifo.open("rb") as source:
        _copy(opener("home"), verb, source)


def _copy(storage: Storage, verb: str, source: BinaryIO) -> None:
    """Make the volume ``late`` of a stream, or of the bytes that it begins with."""
    if verb == "receive":
        storage.receive(vol("late"), source, {})
    else:
        storage.write(vol("late"), "x", Content(SIZE, 3 * MIB, _extents(source)), {})


def _extents(source: BinaryIO) -> Iterator[Extent]:
    offset = 0
    while data := source.read(1 << 16):
        yield offset, data
        offset += len(data)

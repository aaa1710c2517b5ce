"""A process that is killed at any step of any call leaves what is whole, and what is swept."""

from __future__ import annotations

import itertools
import multiprocessing as mp
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
import zfs_site
from storage_place import MIB, SIZE, TAGS, destroy_all, labels, names, vol

from lab.run import Completed, run
from lab.storage import VolumeSnapshot
from lab.storage.zfs.driver import ZfsStorage

MADE = VolumeSnapshot(vol("origin"), "formed", SIZE)
RAW = b"raw." + bytes(MIB)


class Dying:
    """Runs commands as ever, but is killed while the ``at``-th that changes something runs."""

    def __init__(self, at: int) -> None:
        self._left = at

    def __call__(
        self, argv: Sequence[str], *, timeout: float, env: Mapping[str, str], keep: Sequence[int]
    ) -> Completed:
        if keep and self._left == 0:
            subprocess.Popen(argv, env=dict(env), pass_fds=keep, start_new_session=True)
            os.kill(os.getpid(), signal.SIGKILL)
        self._left -= bool(keep)
        return run(argv, timeout=timeout, env=env, keep=keep)


def open_dying(root: str, works: Path, at: int) -> ZfsStorage:
    return ZfsStorage(root, "home", works / "home", runner=Dying(at))


def imported(storage: ZfsStorage, works: Path) -> None:
    source = works / "source.raw"
    source.write_bytes(RAW)
    storage.import_raw(vol("new"), source, TAGS)


Verb = Callable[[ZfsStorage, Path], object]
VERBS: dict[str, Verb] = {
    "create": lambda storage, _: storage.create(vol("new"), SIZE, TAGS),
    "import": imported,
    "clone": lambda storage, _: storage.clone(MADE, vol("new"), TAGS, size=2 * SIZE),
    "snapshot": lambda storage, _: storage.snapshot([vol("origin"), vol("a")], "new"),
    "persist": lambda storage, _: storage.persist([MADE]),
    "rollback": lambda storage, _: storage.rollback(vol("origin"), "second"),
    "rollback further": lambda storage, _: storage.rollback(vol("origin"), "formed"),
    "destroy": lambda storage, _: storage.destroy(vol("a")),
    "sweep": lambda storage, _: storage.sweep(),
}


def act(verb: str, root: str, works: Path, at: int) -> None:
    VERBS[verb](open_dying(root, works, at), works)


@pytest.mark.parametrize("verb", VERBS)
def test_killed_at_each_step(pool: str, tmp_path: Path, verb: str) -> None:
    """Protects from half volumes, lost ones, and litter that nobody can remove."""
    for step in itertools.count():
        works = tmp_path / str(step)
        works.mkdir()
        with zfs_site.parent(pool) as root:
            make_world(root, works)
            child = mp.get_context("spawn").Process(target=act, args=(verb, root, works, step))
            child.start()
            child.join(120)
            check_world(root, works, verb, sweep_first=bool(step % 2))
        if child.exitcode == 0:
            assert step > 0
            return
        assert child.exitcode == -signal.SIGKILL


def make_world(root: str, works: Path) -> None:
    """An origin with two snapshots, a clone with two datasets, and something to sweep."""
    place = zfs_site.place(root, works)
    storage = zfs_site.open_zfs(root, works, "home")
    place.put(storage.create(vol("origin"), SIZE, TAGS), 0, b"early")
    storage.snapshot([vol("origin")], "formed")
    place.put(storage.get(vol("origin")), 0, b"later")
    storage.snapshot([vol("origin")], "second")
    storage.clone(MADE, vol("a"), TAGS)
    storage.snapshot([vol("a")], "x")
    storage.snapshot([vol("a")], "y")
    storage.rollback(vol("a"), "x")
    busy = storage.create(vol("busy"), SIZE, TAGS)
    handle = os.open(busy.path, os.O_RDONLY)
    storage.destroy(vol("busy"))
    os.close(handle)


def check_world(root: str, works: Path, verb: str, *, sweep_first: bool) -> None:
    place = zfs_site.place(root, works)
    storage = zfs_site.open_zfs(root, works, "home")
    if sweep_first:
        storage.sweep()
    made = {volume.name: volume for volume in storage.volumes()}
    assert str(vol("origin")) in names(storage)
    assert labels(storage, vol("origin"))[:2] == ["formed", "second"]
    if new := made.get(vol("new")):
        new = storage.get(vol("new"))
        sizes = {"create": SIZE, "import": 2 * MIB, "clone": 2 * SIZE}
        starts = {"create": bytes(4), "import": RAW[:4], "clone": b"earl"}
        assert (new.size, dict(new.tags)) == (sizes[verb], TAGS)
        assert place.get(new, 0, 4) == starts[verb]
    if vol("a") in made:
        both = ("new" in labels(storage, vol("origin")), "new" in labels(storage, vol("a")))
        assert both[0] == both[1]
        assert labels(storage, vol("a"))[:2] == ["x", "y"]
        assert place.get(storage.get(vol("a")), 0, 5) == b"early"
    else:
        assert verb == "destroy"
    assert place.get(storage.get(vol("origin")), 0, 5) in (b"early", b"later")
    for label, content in (("formed", b"early"), ("second", b"later")):
        clone = storage.clone(VolumeSnapshot(vol("origin"), label, SIZE), vol("check"), {})
        assert place.get(clone, 0, 5) == content
        storage.destroy(vol("check"))
    again = ["create", "import", "clone"] if vol("new") not in made else []
    if verb in again:
        VERBS[verb](storage, works)
    destroy_all(storage)
    storage.sweep()
    assert storage.sweep() == []
    left = zfs_site.zfs("list", "-H", "-r", "-t", "all", "-o", "name", root).splitlines()
    assert left == [root, f"{root}/.work", f"{root}/labs"]

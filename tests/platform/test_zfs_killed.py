"""A process that is killed at any step of any call leaves what is whole, and what is swept."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from lab.run import Completed, run
from lab.storage import Content, VolumeSnapshot
from lab.storage.zfs.driver import ZfsStorage
from tests.contract import zfs_site
from tests.contract.forked import FORKED
from tests.contract.storage_contract import Place
from tests.contract.storage_place import MIB, SIZE, TAGS, destroy_all, labels, vol

pytestmark = [pytest.mark.newest, pytest.mark.rare]

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


def read(storage: ZfsStorage) -> None:
    with storage.read(MADE) as content:
        assert next(content.extents)[1].startswith(b"early")


Verb = Callable[[ZfsStorage, Path, int], object]
VERBS: dict[str, Verb] = {
    "create": lambda storage, *_: storage.create(vol("new"), SIZE, TAGS),
    "import": lambda storage, works, _: imported(storage, works),
    "clone": lambda storage, *_: storage.clone(MADE, vol("new"), TAGS, size=2 * SIZE),
    "read": lambda storage, *_: read(storage),
    "write": lambda storage, *_: storage.write(
        vol("new"), "x", Content(SIZE, len(RAW), iter([(0, RAW)])), TAGS
    ),
    "snapshot": lambda storage, _, at: storage.snapshot([vol("origin"), vol("a")], f"new{at}"),
    "persist": lambda storage, *_: storage.persist([MADE]),
    "rollback": lambda storage, *_: storage.rollback(vol("origin"), "second"),
    "rollback further": lambda storage, *_: storage.rollback(vol("origin"), "formed"),
    "drop": lambda storage, *_: storage.drop(VolumeSnapshot(vol("a"), "x", SIZE)),
    "destroy": lambda storage, *_: storage.destroy(vol("a")),
    "sweep": lambda storage, *_: storage.sweep(),
}


def act(verb: str, root: str, works: Path, at: int) -> None:
    VERBS[verb](open_dying(root, works, at), works, at)


@pytest.mark.parametrize("verb", VERBS)
def test_killed_at_each_step(parent: str, tmp_path: Path, verb: str) -> None:
    """Protects from half volumes, lost ones, and litter that nobody can remove."""
    place = zfs_site.place(parent, tmp_path)
    storage = zfs_site.open_zfs(parent, tmp_path, "home")
    place.put(storage.create(vol("origin"), SIZE, TAGS), 0, b"early")
    storage.snapshot([vol("origin")], "formed")
    place.put(storage.get(vol("origin")), 0, b"later")
    storage.snapshot([vol("origin")], "second")
    for step in itertools.count():
        arrange(storage, verb)
        args = (verb, parent, tmp_path, step)
        child = FORKED.Process(target=act, args=args)
        child.start()
        child.join(120)
        if step % 2:
            storage.sweep()
        check(place, storage, verb, step)
        storage.sweep()
        assert storage.sweep() == []
        assert not [name for name in zfs_site.below(parent) if name.startswith("/.work/")]
        if child.exitcode == 0:
            assert step > 0
            break
        assert child.exitcode == -signal.SIGKILL
    destroy_all(storage)
    assert zfs_site.below(parent) == ["/.work", "/labs"]


def arrange(storage: ZfsStorage, verb: str) -> None:
    """What the verb needs: no ``new``, a volume ``a`` of two datasets, something to sweep."""
    storage.destroy(vol("new"))
    if labels(storage, vol("a")) != ["x", "y"]:
        storage.destroy(vol("a"))
        storage.clone(MADE, vol("a"), TAGS)
        storage.snapshot([vol("a")], "x")
        storage.snapshot([vol("a")], "y")
        storage.rollback(vol("a"), "x")
    if verb == "sweep":
        busy = storage.create(vol("busy"), SIZE, TAGS)
        handle = os.open(busy.path, os.O_RDONLY)
        storage.destroy(vol("busy"))
        os.close(handle)


def check(place: Place, storage: ZfsStorage, verb: str, step: int) -> None:
    """All that is visible is whole, and all that was there still is."""
    made = {volume.name: volume for volume in storage.volumes()}
    ours = labels(storage, vol("origin"))
    assert ours[:2] == ["formed", "second"]
    assert place.get(storage.get(vol("origin")), 0, 5) in (b"early", b"later")
    if vol("new") in made:
        new = storage.get(vol("new"))
        sizes = {"create": SIZE, "import": 2 * MIB, "clone": 2 * SIZE, "write": SIZE}
        starts = {"create": bytes(4), "import": RAW[:4], "clone": b"earl", "write": RAW[:4]}
        assert labels(storage, vol("new")) == (["x"] if verb == "write" else [])
        assert (new.size, dict(new.tags)) == (sizes[verb], TAGS)
        assert place.get(new, 0, 4) == starts[verb]
    if vol("a") in made:
        theirs = labels(storage, vol("a"))
        assert theirs[:2] == ["x", "y"] or (verb == "drop" and theirs == ["y"])
        assert (f"new{step}" in ours) == (f"new{step}" in theirs)
        assert place.get(storage.get(vol("a")), 0, 5) == b"early"
    else:
        assert verb == "destroy"
    if verb.startswith("rollback"):
        for label, content in (("formed", b"early"), ("second", b"later")):
            frozen = VolumeSnapshot(vol("origin"), label, SIZE)
            assert place.get(storage.clone(frozen, vol("check"), {}), 0, 5) == content
            storage.destroy(vol("check"))

"""A user who is not root keeps volumes below a dataset that root delegated."""

from __future__ import annotations

import grp
import io
import multiprocessing as mp
import os
import pwd
import tempfile
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from lab.errors import HostUnfit, LabError
from lab.run import run
from lab.storage.zfs.allow import User
from lab.storage.zfs.commands import Commands
from lab.storage.zfs.setup import Parent, owner, prepare, this_user
from tests.contract import zfs_site
from tests.contract.storage_place import MIB, SIZE, TAGS, labels, names, vol

NOBODY = "nobody"


@pytest.fixture
def works() -> Iterator[Path]:
    """A directory that the user owns and can reach; pytest's let nobody through."""
    with tempfile.TemporaryDirectory() as folder:
        os.chown(folder, pwd.getpwnam(NOBODY).pw_uid, -1)
        yield Path(folder)


def become(groups: list[str]) -> None:
    user = pwd.getpwnam(NOBODY)
    os.setgroups([grp.getgrnam(name).gr_gid for name in groups])
    os.setgid(user.pw_gid)
    os.setuid(user.pw_uid)


def initialise(dataset: str, to: Connection) -> None:
    become([])
    to.send(prepare(dataset, "home", this_user(), Commands(dataset)))


def work(dataset: str, works: Path, groups: list[str], to: Connection) -> None:
    become(groups)
    try:
        to.send(everything(dataset, works))
    except LabError as error:
        to.send(f"{type(error).__name__}: {error} ({error.hint}) {error.details}")


def everything(dataset: str, works: Path) -> str:
    storage = zfs_site.open_zfs(dataset, works, "home")
    storage.create(vol("a"), SIZE, TAGS)
    source = works / "source.raw"
    source.write_bytes(b"raw" + bytes(MIB))
    storage.import_raw(vol("b"), source, TAGS)
    made = storage.snapshot([vol("a"), vol("b")], "x")
    storage.persist(made)
    storage.clone(made[1], vol("c"), TAGS, size=2 * SIZE)
    storage.snapshot([vol("a")], "y")
    storage.rollback(vol("a"), "y")
    storage.rollback(vol("a"), "x")
    with storage.send(made[1]) as pieces:
        storage.receive(vol("d"), io.BytesIO(b"".join(pieces)), TAGS)
    with storage.read(made[1]) as content:
        storage.write(vol("e"), "x", content, TAGS)
    assert names(storage) == [f"labs/{lab}/n1/os" for lab in "abcde"]
    assert labels(storage, vol("d")) == labels(storage, vol("e")) == ["x"]
    for lab in "cbaed":
        storage.destroy(vol(lab))
    assert storage.sweep() == []
    assert storage.pending() == []
    return "done"


def spawned(target: object, *args: object) -> object:
    """What a process of its own sends."""
    ours, theirs = mp.Pipe()
    context = mp.get_context("spawn")
    child = context.Process(target=target, args=(*args, theirs))  # type: ignore[arg-type]
    child.start()
    theirs.close()
    try:
        return ours.recv()
    finally:
        child.join(60)
        ours.close()


@pytest.mark.rare
def test_what_init_prints_is_enough(pool: str, works: Path) -> None:
    """Protects users from a list of permissions that lacks one, on this version of ZFS."""
    dataset = f"{pool}/alice"
    try:
        first = spawned(initialise, dataset)
        assert isinstance(first, Parent)
        assert first.done == ()
        create, allow, rule, reload = first.missing
        assert create.startswith("zfs create ")
        assert dataset in rule
        assert reload.startswith("udevadm ")
        for line in (create, allow):
            run(line.split(), timeout=60)
        refused = spawned(work, dataset, works, [])
        assert "HostUnfit: no permission to open /dev/zvol/" in str(refused)
        # in place of the rule, which would stay on the machine
        assert spawned(work, dataset, works, ["disk"]) == "done"
        assert owner(dataset, Commands(dataset)) == ""
        user = User(NOBODY, ["disk"])
        last = prepare(dataset, "home", user, Commands(dataset))
        assert last.missing == ()
        assert owner(dataset, Commands(dataset)) == "home"
    finally:
        zfs_site.remove(dataset)


def test_a_user_without_permission_is_refused_with_the_remedy(parent: str, works: Path) -> None:
    answer = str(spawned(work, parent, works, ["disk"]))
    assert answer.startswith(f"HostUnfit: no permission for ZFS below {parent}")
    assert "lab host init" in answer


def test_init_twice_and_by_another_home(pool: str) -> None:
    dataset = f"{pool}/shared"
    root = User("root", ())
    try:
        made = prepare(dataset, "home", root, Commands(dataset))
        assert len(made.done) == 2
        assert made.version.startswith("2.")
        assert prepare(dataset, "home", root, Commands(dataset)).done == ()
        with pytest.raises(LabError, match="another home"):
            prepare(dataset, "other", root, Commands(dataset))
        with pytest.raises(HostUnfit, match="there is no dataset"):
            prepare(f"{pool}/none/x", "home", root, Commands(f"{pool}/none/x"))
    finally:
        zfs_site.remove(dataset)

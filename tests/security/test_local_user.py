"""Another user of this host, and the user that QEMU runs as, in a home of root's."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from lab.hypervisor import Capabilities
from lab.lifecycle.labs.down import down
from lab.lifecycle.labs.up import up
from lab.lifecycle.service import token
from lab.names import Owner, VolumeName, template_ref
from lab.storage.qcow2 import Qcow2Storage
from lab.units import MIB
from tests.support.lifecycle_world import World, named
from tests.support.other_user import EVERYBODY, NOBODY, Found, tried

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")

QEMU = (54321, 54322)
"""The user and group that QEMU is said to run as."""

FAKES = re.compile(
    r"fake-guests(/.*)?|storage/(scratch|contents(/.*)?|state\.json)|logs/console/.*"
)
"""What real hypervisors and storages keep otherwise, and other tests look at."""


class RunAs:
    """A hypervisor whose guests run as ``QEMU``."""

    run_as = QEMU

    def __init__(self, real: Any, *, reads_ram: bool) -> None:
        self._real = real
        self._reads_ram = reads_ram

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def capabilities(self) -> Capabilities:
        real: Capabilities = self._real.capabilities()
        return replace(real, reads_ram=self._reads_ram)


@dataclass(frozen=True)
class Place:
    """A home with a lab, a template, tokens and real volumes, tried by two users."""

    home: Path
    key: str
    reads_ram: bool
    stranger: Found
    qemu: Found

    def ours(self, found: Found, what: str) -> set[str]:
        """Without what the fakes keep."""
        return {name for name in found.get(what, set()) if not FAKES.fullmatch(name)}


@pytest.fixture(scope="module", params=[True, False], ids=["reads-ram", "writes-ram"])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    # Not pytest's directory, which only root can enter.
    with tempfile.TemporaryDirectory(prefix="lab-") as directory:
        Path(directory).chmod(0o711)
        yield _place(Path(directory), reads_ram=request.param)


def _place(root: Path, *, reads_ram: bool) -> Place:
    world = World(root / "home")
    with world.open() as opened:
        ctx = replace(opened, hypervisor=RunAs(opened.hypervisor, reads_ram=reads_ram))
        key = up(ctx, named("shop")).template
        assert token.first(ctx.store, ctx.home)
        (ctx.home.sockets / "0123456789abcdef").mkdir(mode=0o700)
        disks = Qcow2Storage(ctx.home.storage, ctx.home.id, QEMU)
        base = VolumeName(Owner("template", key), "n1", "os")
        lab = VolumeName(Owner("lab", "shop"), "n1", "os")
        raw = root / "raw"
        raw.write_bytes(os.urandom(MIB))
        disks.import_raw(base, raw, {})
        formed = disks.snapshot([base], "formed")
        disks.clone(formed[0], lab, {})
        disks.snapshot([lab], "mine")
    stranger, qemu = tried(world.root, NOBODY, NOBODY), tried(world.root, *QEMU)
    return Place(world.root, key, reads_ram, stranger, qemu)


def test_strangers_read_nothing_secret(place: Place) -> None:
    """Protects keys, tokens, passwords, RAM, disks, logs and the record from other users."""
    assert {n for n in place.ours(place.stranger, "read") if not EVERYBODY.fullmatch(n)} == set()
    for secret in ("state.db", "ca.key", "admin-token", f"templates/{place.key}/n1.ram"):
        assert (place.home / secret).exists(), "it would prove nothing"
    assert list((place.home / "labs/shop/private").iterdir())


@pytest.mark.parametrize("what", ["write", "chmod", "rename", "fill", "list", "connect"])
def test_strangers_change_and_find_nothing(place: Place, what: str) -> None:
    assert place.ours(place.stranger, what) == set()


def test_qemu_reads_its_disks_and_little_more(place: Place) -> None:
    """Protects the record, keys, tokens and snapshots of labs from who got out of QEMU."""
    more = {n for n in place.ours(place.qemu, "read") if not EVERYBODY.fullmatch(n)}
    volume = f"storage/templates/{place.key}/n1/os"
    rams = {f"templates/{place.key}/n{number}.ram" for number in (1, 2)}
    seeds = {f"templates/{place.key}/n{number}.seed" for number in (1, 2)}
    below = {f"{volume}/base.raw", f"{volume}/snapshots/formed.qcow2"}
    assert more == rams | seeds | below | {
        f"{volume}/disk.qcow2",
        "storage/labs/shop/n1/os/disk.qcow2",
    }


def test_qemu_changes_disks_that_run_and_no_frozen_file(place: Place) -> None:
    """Protects templates, and with them running labs: each private mapping of a template's RAM
    shows what is written to the file, until the guest wrote to the page itself.
    """
    writable = {
        f"storage/{kind}/n1/os/disk.qcow2" for kind in ("labs/shop", f"templates/{place.key}")
    }
    if not place.reads_ram:
        writable |= {f"templates/{place.key}/n{number}.ram" for number in (1, 2)}
    for what in ("write", "chmod"):
        assert place.ours(place.qemu, what) == writable, what
    for what in ("rename", "fill", "list"):
        assert place.ours(place.qemu, what) == set(), what


def test_a_file_of_ram_is_not_the_one_that_was_written(tmp_path: Path) -> None:
    """Protects from a QEMU that opened a template's RAM while it was formed, and waits."""
    world = World(tmp_path / "home")
    held: list[int] = []

    def hold(step: str) -> None:
        if step == "hypervisor.pause" and not held:
            (ram,) = world.root.glob("templates/*/n1.ram")
            assert ram.stat().st_uid == QEMU[0]
            held.append(os.open(ram, os.O_RDWR))

    with world.open(hold) as opened:
        ctx = replace(opened, hypervisor=RunAs(opened.hypervisor, reads_ram=True))
        key = up(ctx, named("shop")).template
        before = ctx.home.ram(template_ref(key), "n1").read_bytes()
        os.pwrite(held[0], b"changed", 0)
        assert ctx.home.ram(template_ref(key), "n1").read_bytes() == before
        assert not list(ctx.home.template(key).glob("*.frozen"))
        down(ctx, "shop")
        assert up(ctx, named("shop")).template == key
    os.close(held[0])


def test_a_lab_s_snapshot_can_be_cloned() -> None:
    """QEMU may read a lab's snapshots from the first clone on, and none is changed by that."""
    with tempfile.TemporaryDirectory(prefix="lab-") as directory:
        root = Path(directory)
        root.chmod(0o711)
        disks = Qcow2Storage(root, "home", QEMU)
        lab, other = (VolumeName(Owner("lab", name), "n1", "os") for name in ("shop", "copy"))
        disks.create(lab, MIB, {})
        (mine,) = disks.snapshot([lab], "mine")
        seal, frozen = disks.seal(mine), f"{lab}/snapshots/mine.qcow2"
        assert frozen not in tried(root, *QEMU)["read"]
        disks.clone(mine, other, {})
        assert disks.seal(mine) == seal
        assert frozen in tried(root, *QEMU)["read"]
        assert tried(root, NOBODY, NOBODY).get("read", set()) == set()

"""The contract: capturing RAM, and guests that are brought up from it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lab.errors import Conflict, HostUnfit, NotFound, RestoreFailed
from lab.hypervisor import Disk, GuestSpec, Hypervisor, MemoryImage, memory_of
from lab.names import GuestName
from tests.contract.hypervisor_site import MEMORY, MIB, Site, states

Spoil = Callable[[GuestSpec, MemoryImage], tuple[GuestSpec, MemoryImage]]


class Capturing:
    def test_only_a_paused_guest_is_saved(self, site: Site, ours: Hypervisor) -> None:
        guest = site.former()
        state = site.directory / "state"
        assert guest.memory_file
        ours.start(guest)
        with pytest.raises(Conflict, match="pause"):
            memory_of(ours).save_memory(guest.name, guest.memory_file, state)
        assert not state.exists()
        assert states(ours) == {guest.name: "running"}

    def test_only_its_own_memory_file_is_its_ram(self, site: Site, ours: Hypervisor) -> None:
        guest, other = site.former(), site.guest("n2")
        for one in (guest, other):
            ours.start(one)
        memory_of(ours).pause([guest.name, other.name])
        for one in (guest, other):
            with pytest.raises(Conflict):
                memory_of(ours).save_memory(
                    one.name, site.file("x.ram", MEMORY), site.directory / "state"
                )
        assert not (site.directory / "state").exists()

    def test_a_saved_state_is_not_overwritten(self, site: Site, ours: Hypervisor) -> None:
        guest = site.former()
        state = site.put("state", b"precious")
        assert guest.memory_file
        ours.start(guest)
        memory_of(ours).pause([guest.name])
        with pytest.raises(Conflict, match="exists"):
            memory_of(ours).save_memory(guest.name, guest.memory_file, state)
        assert state.read_bytes() == b"precious"

    def test_an_absent_guest_is_not_saved(self, site: Site, ours: Hypervisor) -> None:
        with pytest.raises(NotFound):
            memory_of(ours).save_memory(
                GuestName("lab-ct-absent-n1"), site.directory / "r", site.directory
            )

    def test_an_image_is_what_was_asked_for(self, site: Site, ours: Hypervisor) -> None:
        guest = site.former()
        image = site.capture(ours, guest)
        assert image.ram == guest.memory_file
        assert image.size == MEMORY == image.ram.stat().st_size
        assert image.state.stat().st_size > 0


class Restoring:
    def test_two_clones_of_one_image(self, site: Site, ours: Hypervisor) -> None:
        image = site.capture(ours, site.former())
        before = _digest(image)
        clones = [site.guest("n2"), site.guest("n3")]
        names = [clone.name for clone in clones]
        for clone in clones:
            memory_of(ours).restore(clone, image)
        assert states(ours) == dict.fromkeys(names, "paused")
        memory_of(ours).resume(names)
        assert states(ours) == dict.fromkeys(names, "running")
        for clone in clones:
            ours.stop(clone.name, force=True)
        assert _digest(image) == before, "clones map the image copy-on-write"

    def test_a_clone_can_be_captured(self, site: Site, ours: Hypervisor) -> None:
        image = site.capture(ours, site.former())
        clone = replace(site.guest("n2"), memory_file=image.ram)
        memory_of(ours).restore(clone, image)
        memory_of(ours).resume([clone.name])
        second = site.freeze(ours, clone)
        memory_of(ours).restore(site.guest("n3"), second)
        memory_of(ours).resume([site.guest("n3").name])
        assert states(ours) == {site.guest("n3").name: "running"}

    def test_a_running_name_is_not_restored_over(self, site: Site, ours: Hypervisor) -> None:
        image = site.capture(ours, site.former())
        ours.start(site.guest("n2"))
        with pytest.raises(Conflict):
            memory_of(ours).restore(site.guest("n2"), image)
        assert states(ours) == {site.guest("n2").name: "running"}

    def test_what_cannot_be_restored_leaves_nothing(self, site: Site, ours: Hypervisor) -> None:
        image = site.capture(ours, site.former())
        clone = site.guest("n2")
        # One after the other: a capture takes a second, a refusal much less.
        for what, spoil in _SPOILED.items():
            spoiled = spoil(clone, image)
            with pytest.raises(HostUnfit) as failure:
                memory_of(ours).restore(*spoiled)
            assert failure.value.details, what
            # A missing or truncated file is not a refused restore.
            assert isinstance(failure.value, RestoreFailed) == (what in _NOT_LOADED), what
            assert states(ours) == {}, what
        memory_of(ours).restore(clone, image)
        assert states(ours) == {clone.name: "paused"}

    def test_a_capture_of_another_shape_has_another_fingerprint(
        self, site: Site, ours: Hypervisor
    ) -> None:
        guest = site.former()
        bigger = replace(guest, memory=2 * MEMORY)
        assert ours.fingerprint(guest.shape) != ours.fingerprint(bigger.shape)
        assert ours.fingerprint(guest.shape) == ours.fingerprint(site.guest("n2").shape)


class Copying:
    """Copies of guests that run again afterwards."""

    def test_a_clone_is_copied_and_runs_on(self, site: Site, ours: Hypervisor) -> None:
        image = site.capture(ours, site.former())
        before = _digest(image)
        first, second, third = (site.guest(node) for node in ("n2", "n3", "n4"))
        memory_of(ours).restore(first, image)
        memory_of(ours).resume([first.name])
        copied = site.copy(ours, first, image)
        assert copied.ram == image.ram, "what it did not change is not kept again"
        assert states(ours) == {first.name: "running"}
        memory_of(ours).restore(second, copied)
        memory_of(ours).resume([second.name])
        again = site.copy(ours, second, image)  # its RAM file is the same, whatever its generation
        memory_of(ours).restore(third, again)
        memory_of(ours).resume([third.name])
        assert set(states(ours).values()) == {"running"}
        assert _digest(image) == before
        for copy in (copied, again):
            assert copy.state.stat().st_mode & 0o077 == 0, "others can read what is in RAM"

    def test_a_guest_that_was_booted_is_copied(self, site: Site, ours: Hypervisor) -> None:
        guest = site.guest()
        ours.start(guest)
        site.booted(guest)
        copied = site.copy(ours, guest, None)
        assert copied.ram.stat().st_size == MEMORY
        assert copied.ram.stat().st_mode & 0o077 == 0
        assert states(ours) == {guest.name: "running"}
        site.give(copied.ram)
        memory_of(ours).restore(site.guest("n2"), copied)
        memory_of(ours).resume([site.guest("n2").name])
        third = site.copy(ours, site.guest("n2"), copied)
        assert third.ram == copied.ram
        memory_of(ours).restore(site.guest("n3"), third)

    def test_only_a_paused_guest_is_copied(self, site: Site, ours: Hypervisor) -> None:
        guest = site.guest()
        ours.start(guest)
        new = site.new_image()
        with pytest.raises(Conflict, match="pause"):
            memory_of(ours).copy_memory(guest.name, None, new)
        assert not new.state.exists()

    def test_a_copy_is_of_what_the_guest_was_restored_from(
        self, site: Site, ours: Hypervisor
    ) -> None:
        image = site.capture(ours, site.former())
        other = replace(image, ram=site.file("other.ram", MEMORY))
        clone = site.guest("n2")
        memory_of(ours).restore(clone, image)
        new = site.new_image()
        with pytest.raises(Conflict, match="restored"):
            memory_of(ours).copy_memory(clone.name, other, new)
        new.state.write_bytes(b"precious")
        with pytest.raises(Conflict, match="exists"):
            memory_of(ours).copy_memory(clone.name, image, new)
        assert new.state.read_bytes() == b"precious"

    def test_an_absent_guest_is_not_copied(self, site: Site, ours: Hypervisor) -> None:
        with pytest.raises(NotFound):
            memory_of(ours).copy_memory(GuestName("lab-ct-absent-n1"), None, site.new_image())


def _digest(image: MemoryImage) -> str:
    return hashlib.sha256(image.ram.read_bytes()).hexdigest()


def _state(image: MemoryImage, change: Callable[[bytes], bytes]) -> MemoryImage:
    damaged = image.state.with_suffix(".damaged")
    damaged.write_bytes(change(image.state.read_bytes()))
    return replace(image, state=damaged)


def _short_ram(image: MemoryImage) -> MemoryImage:
    short = image.ram.with_suffix(".short")
    short.write_bytes(image.ram.read_bytes()[: MEMORY // 2])
    short.chmod(0o666)
    return replace(image, ram=short)


def _second(guest: GuestSpec) -> Disk:
    path = guest.disks[0].path.with_suffix(".second")
    path.write_bytes(bytes(MIB))
    path.chmod(0o666)
    return Disk(path, "raw", "lab-data")


def _missing(guest: GuestSpec) -> tuple[Disk, ...]:
    return (replace(guest.disks[0], path=Path("/nowhere/disk")),)


_SPOILED: dict[str, Spoil] = {
    "half a state": lambda guest, image: (guest, _state(image, lambda s: s[: len(s) // 2])),
    "an empty state": lambda guest, image: (guest, _state(image, lambda _: b"")),
    "a flipped state": lambda guest, image: (guest, _state(image, lambda s: b"\xff" + s[1:])),
    "no state": lambda guest, image: (guest, replace(image, state=Path("/nowhere/state"))),
    "no RAM": lambda guest, image: (guest, replace(image, ram=Path("/nowhere/ram"))),
    "half of the RAM": lambda guest, image: (guest, _short_ram(image)),
    "more memory": lambda guest, image: (replace(guest, memory=2 * MEMORY), image),
    "less memory": lambda guest, image: (replace(guest, memory=MEMORY // 2), image),
    "more disks": lambda guest, image: (
        replace(guest, disks=(*guest.disks, _second(guest))),
        image,
    ),
    "a missing disk": lambda guest, image: (replace(guest, disks=_missing(guest)), image),
}

_NOT_LOADED = ("half a state", "an empty state", "a flipped state", "more disks")

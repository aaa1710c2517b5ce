"""The RAM of the fake hypervisor's guests: sparse files, and device states as JSON."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from lab.errors import Conflict, HostUnfit, RestoreFailed
from lab.fake.guests import Guests, Record
from lab.fake.inside import read_inside
from lab.hypervisor import GuestShape, GuestSpec, GuestState, MemoryImage
from lab.names import GuestName


class FakeMemory:
    """See Memory. ``home`` marks the guests of this installation; ``before``: see FakeHypervisor.

    ``fingerprint``: the hypervisor's; a device state of another one cannot be loaded.
    """

    def __init__(
        self,
        guests: Guests,
        home: str,
        fingerprint: Callable[[GuestShape], str],
        before: Callable[[str], None],
    ) -> None:
        self._guests = guests
        self._home = home
        self._fingerprint = fingerprint
        self._before = before

    def pause(self, guests: Sequence[GuestName]) -> None:
        """See Memory."""
        self._before("pause")
        self._all(guests, "paused")

    def resume(self, guests: Sequence[GuestName]) -> None:
        """See Memory."""
        self._before("resume")
        self._all(guests, "running")

    def save_memory(self, guest: GuestName, ram: Path, state: Path) -> MemoryImage:
        """See Memory."""
        self._before("save_memory")
        with self._guests.hold():
            record = self._paused(guest)
            if record.memory_file != ram:
                raise Conflict(f"the memory of {guest} is not in {ram}")
            self._save(record, state)
            self._guests.put(replace(record, saved=True))
        return MemoryImage(ram=ram, state=state, size=ram.stat().st_size)

    def copy_memory(
        self, guest: GuestName, origin: MemoryImage | None, new: MemoryImage
    ) -> Callable[[], MemoryImage]:
        """See Memory."""
        self._before("copy_memory")
        with self._guests.hold():
            record = self._paused(guest)
            if origin is not None and record.memory_file != origin.ram:
                raise Conflict(f"{guest} was not restored from {origin.ram}")
            if origin is None and new.ram.exists():
                raise Conflict(f"{new.ram} exists already")
            self._save(record, new.state)

        def finish() -> MemoryImage:
            self._before("finish")
            if origin is not None:
                return replace(new, ram=origin.ram)
            make_ram(new.ram, new.size)
            return new

        return finish

    def restore(self, guest: GuestSpec, memory: MemoryImage) -> None:
        """See Memory."""
        self._before("restore")
        guest = replace(guest, memory_file=memory.ram)
        with self._guests.hold():
            self._guests.refuse(guest)
            state = read_state(guest, memory)
            if memory.ram.stat().st_size != guest.memory or memory.size != guest.memory:
                raise no_restore(guest, "the RAM image is not of the guest's size")
            if state.get("fingerprint") != self._fingerprint(guest.shape):
                raise not_loaded(guest, "the device state is of another machine")
            # A real one would not notice at once, but the guest would destroy its data.
            if state.get("disk") != read_inside(guest.disks).digest():
                raise not_loaded(guest, "the disk is not of the same moment as the RAM")
            self._guests.create(guest, "paused", time.time(), "is restored")
            # The clock of a real guest is behind by the time since the capture as well.
            record = self._guests.find(guest.name, guest.tags.get("home", ""))
            self._guests.put(replace(record, clock_offset=float(state["clock_offset"])))

    def _all(self, guests: Sequence[GuestName], state: GuestState) -> None:
        with self._guests.hold():
            found = [self._guests.find(guest, self._home) for guest in guests]
            for record in found:
                if record.saved and state == "running":
                    raise HostUnfit(f"{record.name} can only be stopped: its memory was saved")
            self._before("commit")
            for record in found:
                why = record.why if state == "paused" else ""
                self._guests.put(replace(record, state=state, why=why))

    def _paused(self, guest: GuestName) -> Record:
        record = self._guests.find(guest, self._home)
        if record.state != "paused":
            raise Conflict(f"{guest} is {record.state}: pause it before its memory is saved")
        return record

    def _save(self, record: Record, state: Path) -> None:
        if state.exists():
            raise Conflict(f"{state} exists already")
        content = {
            "clock_offset": str(record.clock_offset),
            "fingerprint": self._fingerprint(record.shape),
            "disk": read_inside(record.disks).digest(),
        }
        self._before("commit")
        write_state(state, content)


def size_ram(guest: GuestSpec, ram: Path) -> None:
    """Make the file as large as the guest's memory; raises HostUnfit if it is smaller."""
    size = ram.stat().st_size
    if 0 < size < guest.memory:
        raise HostUnfit(f"starting {guest.name}: {ram} is smaller than the guest's memory")
    if not size:
        with ram.open("r+b") as file:
            file.truncate(guest.memory)


def make_ram(path: Path, size: int) -> None:
    """A new file for the RAM of a guest that was booted, of ``size`` bytes."""
    path.touch(0o600, exist_ok=False)
    os.truncate(path, size)


def write_state(path: Path, content: Mapping[str, str]) -> None:
    """Save a device state so that damage shows."""
    text = json.dumps(content)
    path.touch(0o600)
    path.write_text(f"{hashlib.sha256(text.encode()).hexdigest()}\n{text}\n")


def read_state(guest: GuestSpec, memory: MemoryImage) -> dict[str, str]:
    """The device state of ``memory``; raises HostUnfit if it is absent or damaged."""
    try:
        digest, text, _ = memory.state.read_text().split("\n")
        if hashlib.sha256(text.encode()).hexdigest() != digest:
            raise ValueError
        content: dict[str, str] = json.loads(text)
    except FileNotFoundError:
        raise no_restore(guest, f"{memory.state} does not exist") from None
    except ValueError:
        raise not_loaded(guest, "the device state is damaged") from None
    return content


def no_restore(guest: GuestSpec, why: str) -> HostUnfit:
    """The error for a guest whose files could not be loaded."""
    return HostUnfit(f"{guest.name} could not be restored", details=[why])


def not_loaded(guest: GuestSpec, why: str) -> RestoreFailed:
    """The error for a guest whose files were loaded, but whose content does not match."""
    return RestoreFailed(f"{guest.name} could not be restored", details=[why])

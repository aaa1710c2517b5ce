"""RAM files and device states of the fake hypervisor's guests."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

from lab.errors import HostUnfit, RestoreFailed
from lab.hypervisor import GuestSpec, MemoryImage


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

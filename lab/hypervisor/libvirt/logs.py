"""What QEMU writes, which libvirt keeps in a file for each name that a guest ever had."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

DIRECTORIES = ("/var/log/libvirt/qemu", "~/.cache/libvirt/qemu/log")
"""Where libvirt keeps ``<guest>.log``, and older parts of it: the system's, the user's own."""


def last_words(guest: str) -> list[str]:
    """What QEMU itself wrote last, where the log can be read."""
    for directory in DIRECTORIES:
        with suppress(OSError):
            path = Path(directory).expanduser() / f"{guest}.log"
            return last_lines(path.read_text(errors="replace"))
    return []


def last_lines(log: str) -> list[str]:
    """The last lines that QEMU wrote since it was last started, from libvirt's log of it."""
    # Names are used again: what an earlier guest of this name said would mislead.
    latest = log.rpartition(": starting up libvirt version")[2]
    lines = [line for line in latest.splitlines() if "qemu-system" in line]
    return [line for line in lines if ": " in line and "LC_ALL" not in line][-6:]


def remove(guests: Iterable[str], directories: Iterable[str] = DIRECTORIES) -> None:
    """Remove the logs of guests that ended, where we may."""
    for directory in directories:
        for guest in guests:
            # Where we may not even look there is nothing to remove for us.
            with suppress(OSError):
                place = Path(directory).expanduser()
                for path in (place / f"{guest}.log", *place.glob(f"{guest}.log.[0-9]*")):
                    path.unlink(missing_ok=True)

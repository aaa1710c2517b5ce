"""The logs of QEMU: libvirt keeps a file for each name that a guest ever had."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

DIRECTORIES = ("/var/log/libvirt/qemu", "~/.cache/libvirt/qemu/log")
"""The directories of ``<guest>.log`` and its rotated parts: the system's, the user's."""


_STARTED = ": starting up libvirt version"
"""What libvirt writes at each start, after the time."""


def last_words(guest: str) -> list[str]:
    """The last messages of QEMU; empty if the log cannot be read."""
    for directory in DIRECTORIES:
        with suppress(OSError):
            path = Path(directory).expanduser() / f"{guest}.log"
            return last_lines(path.read_text(errors="replace"))
    return []


def latest(guest: str) -> str:
    """All of the log since the last start of QEMU; empty if it cannot be read."""
    for directory in DIRECTORIES:
        with suppress(OSError):
            text = (Path(directory).expanduser() / f"{guest}.log").read_text(errors="replace")
            before, mark, last = text.rpartition(_STARTED)
            return before.rpartition("\n")[2] + mark + last
    return ""


def last_lines(log: str) -> list[str]:
    """The last lines that QEMU wrote since its last start, from libvirt's log."""
    # Names are reused: messages of an earlier guest of this name would mislead.
    since = log.rpartition(_STARTED)[2]
    lines = [line for line in since.splitlines() if "qemu-system" in line]
    return [line for line in lines if ": " in line and "LC_ALL" not in line][-6:]


def remove(guests: Iterable[str], directories: Iterable[str] = DIRECTORIES) -> None:
    """Remove the logs of guests that ended, as far as permitted."""
    for directory in directories:
        for guest in guests:
            # A directory that cannot be listed has no logs that we could remove.
            with suppress(OSError):
                place = Path(directory).expanduser()
                for path in (place / f"{guest}.log", *place.glob(f"{guest}.log.[0-9]*")):
                    path.unlink(missing_ok=True)

"""Guests as directories of vm-bhyve's default datastore, and whose they are.

A guest is ``<name>/<name>.conf`` there. Next to it we put ``lab.json``: the tags, which the
configuration cannot hold, as vm-bhyve takes quotes and hashes away from its values, and its own
tags may only be words. The directory appears whole, by one rename, so a guest of ours is never
without its tags, and a name goes to one of any number of installations. It ends with the guest:
what is not running is only what is left of it.

``.lab`` holds what is no guest's: for vm-bhyve only ``<name>/<name>.conf`` makes a guest.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from lab.errors import Conflict, HostUnfit
from lab.hypervisor import GuestSpec
from lab.hypervisor.bhyve import config
from lab.names import GuestName
from lab.storage import clone_lock

_TAGS = "lab.json"
_SOCKET_LIMIT = 103
"""Characters in the path of a unix socket on FreeBSD (unix(4): sun_path)."""
_LAST_LINES = 6


@dataclass(frozen=True)
class Kept:
    """What is written next to a guest: tags, its lab's switch, the host's ports that lead to it."""

    tags: Mapping[str, str]
    switch: str
    ports: tuple[int, ...] = ()


class Place:
    """The guests' directories in the datastore at ``root``; ``home`` marks ours."""

    def __init__(self, root: Path, home: str) -> None:
        self.root = root
        self._home = home
        self.own = root / ".lab"

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Keep all other installations out, whose locks are not ours; raises HostUnfit.

        vm-bhyve changes its own configuration, where switches are, without a lock.
        """
        try:
            self.own.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise _unwritable(self.own, error) from error
        with clone_lock.hold(self.own):
            yield

    def directory(self, guest: str) -> Path:
        """Where a guest of that name is."""
        return self.root / guest

    def socket(self, guest: str, port: str) -> Path:
        """Where bhyve makes the socket of a guest's virtio port (lib/vm-run of vm-bhyve)."""
        return self.directory(guest) / f"vtcon.{port}"

    def kept(self, guest: str) -> Kept | None:
        """What we wrote next to a guest; None if it is not ours."""
        kept = self._read(guest)
        return kept if kept is not None and kept.tags.get("home") == self._home else None

    def all_kept(self) -> dict[GuestName, Kept]:
        """All guests of ours, and what is left of those that ended."""
        everyones = self.everyones().items()
        return {name: kept for name, kept in everyones if kept.tags.get("home") == self._home}

    def everyones(self) -> dict[GuestName, Kept]:
        """As ``all_kept``, of all installations."""
        names = sorted(path.name for path in self.root.iterdir() if path.name[0] != ".")
        found = {GuestName(name): self._read(name) for name in names}
        return {name: kept for name, kept in found.items() if kept is not None}

    def ports(self) -> dict[int, GuestName]:
        """The ports that are redirected to guests, of all installations."""
        return {port: name for name, kept in self.everyones().items() for port in kept.ports}

    def _read(self, guest: str) -> Kept | None:
        try:
            found = json.loads((self.directory(guest) / _TAGS).read_text())
            tags = {str(k): str(v) for k, v in found["tags"].items()}
            return Kept(tags, str(found["switch"]), tuple(map(int, found.get("ports", ()))))
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return None

    def put(self, guest: GuestSpec, switch: str) -> None:
        """Make the guest's directory; raises Conflict if there is one, HostUnfit."""
        text = config.render(guest, switch)
        longest = max(len(str(self.socket(guest.name, port))) for port in config.PORTS)
        if longest > _SOCKET_LIMIT:
            raise HostUnfit(
                f"{guest.name} cannot run in {self.root}: the paths of its sockets would have"
                f" {longest} characters, FreeBSD takes {_SOCKET_LIMIT}",
                hint="give vm_dir a shorter mount point",
            )
        # Named after the guest: what a killed start left is used again, never piled up.
        mark = hashlib.sha256(f"{self._home}/{guest.name}".encode()).hexdigest()[:16]
        draft = self.own / f"draft-{mark}"
        try:
            shutil.rmtree(draft, ignore_errors=True)
            draft.mkdir(mode=0o700)
            (draft / _TAGS).write_text(json.dumps(_note(guest, switch)))
            (draft / f"{guest.name}.conf").write_text(text)
            draft.rename(self.directory(guest.name))
        except OSError as error:
            shutil.rmtree(draft, ignore_errors=True)
            if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                raise taken(guest.name) from None
            raise _unwritable(self.root, error) from error

    def remove(self, guest: str) -> None:
        """Remove the directory of a guest of ours that has ended; raises HostUnfit.

        Callers hold the place (``hold``).
        """
        if self.kept(guest) is None:
            return
        gone = self.own / f"gone-{os.getpid()}-{guest}"
        try:
            # Away in one step: half a directory must not look like somebody else's guest.
            self.directory(guest).rename(gone)
            for left in self.own.glob("gone-*"):  # also of those who were killed here
                shutil.rmtree(left, ignore_errors=True)
        except FileNotFoundError:
            return
        except OSError as error:
            raise _unwritable(self.root, error) from error

    def disks(self, guest: str) -> dict[str, bool]:
        """The disks of any guest in this datastore, by path, and whether it writes to them."""
        try:
            text = (self.directory(guest) / f"{guest}.conf").read_text(errors="replace")
        except OSError:
            return {}
        return config.disks_in(text)

    def log(self, guest: str) -> list[str]:
        """What vm-bhyve noted of a guest since it was last started, without the times."""
        with contextlib.suppress(OSError):
            text = (self.directory(guest) / "vm-bhyve.log").read_text(errors="replace")
            latest = text.rpartition(": initialising\n")[2]
            return [line.partition(": ")[2].strip() for line in latest.splitlines()]
        return []

    def last_words(self, guest: str) -> list[str]:
        """What bhyve itself wrote last, and what vm-bhyve said when it gave up."""
        said = []
        with contextlib.suppress(OSError):
            text = (self.directory(guest) / "bhyve.log").read_text(errors="replace")
            said = [line for line in text.splitlines() if line.strip()]
        noted = [line for line in self.log(guest) if line.startswith(("fatal;", "bhyve exited"))]
        return [*said, *noted][-_LAST_LINES:]


def _note(guest: GuestSpec, switch: str) -> dict[str, object]:
    ports = [forward.host_port for forward in guest.network.forwards]
    return {"tags": dict(guest.tags), "switch": switch, "ports": ports}


def taken(guest: str) -> Conflict:
    """What to raise where a name is taken."""
    return Conflict(
        f"starting {guest}: a guest of that name exists already",
        hint="`vm list` shows it; another LAB_HOME may own it",
    )


def _unwritable(path: Path, error: OSError) -> HostUnfit:
    return HostUnfit(
        f"{path} cannot be written: {error.strerror}",
        hint="vm-bhyve works for root only: run lab as root",
    )

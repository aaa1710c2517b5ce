"""The directories of guests in vm-bhyve's default datastore, and their owners.

A guest is ``<name>/<name>.conf`` there. ``lab.json`` next to it has the tags: the configuration
cannot have them, as vm-bhyve removes quotes and hashes from values, and its own tags are single
words. The directory appears by one rename, so a guest of ours always has its tags, and only one
installation gets a name. The directory of a guest that does not run is a leftover.

``.lab`` has files of no guest: vm-bhyve recognises guests by ``<name>/<name>.conf`` only.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from lab.errors import Conflict, HostUnfit
from lab.hypervisor import GuestSpec
from lab.hypervisor.bhyve import config
from lab.names import GuestName
from lab.storage import clone_lock
from lab.values import dataclass

_TAGS = "lab.json"
_SOCKET_LIMIT = 103
"""The maximum length of a unix socket's path on FreeBSD (unix(4): sun_path)."""
_LAST_LINES = 6


@dataclass(frozen=True)
class Kept:
    """The content of ``lab.json``: tags, the lab's switch, ports redirected to the guest."""

    tags: Mapping[str, str]
    switch: str
    ports: tuple[int, ...] = ()


class Place:
    """The guests' directories in the datastore at ``root``; ``home`` is our tag."""

    def __init__(self, root: Path, home: str) -> None:
        self.root = root
        self._home = home
        self.own = root / ".lab"

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Lock the datastore against other installations, which have other locks; raises HostUnfit.

        vm-bhyve changes its configuration, which has the switches, without a lock.
        """
        try:
            self.own.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise _unwritable(self.own, error) from error
        with clone_lock.hold(self.own):
            yield

    def directory(self, guest: str) -> Path:
        """The directory of a guest."""
        return self.root / guest

    def socket(self, guest: str, port: str) -> Path:
        """The socket of a guest's virtio port, which bhyve creates (lib/vm-run of vm-bhyve)."""
        return self.directory(guest) / f"vtcon.{port}"

    def kept(self, guest: str) -> Kept | None:
        """The ``lab.json`` of a guest; None if the guest is not ours."""
        kept = self._read(guest)
        return kept if kept is not None and kept.tags.get("home") == self._home else None

    def all_kept(self) -> dict[GuestName, Kept]:
        """All guests of ours, also leftovers of those that ended."""
        everyones = self.everyones().items()
        return {name: kept for name, kept in everyones if kept.tags.get("home") == self._home}

    def everyones(self) -> dict[GuestName, Kept]:
        """The guests of all installations, with what is kept of each."""
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
        except (OSError, ValueError, RecursionError, TypeError, KeyError, AttributeError):
            return None

    def put(self, guest: GuestSpec, switch: str) -> None:
        """Create the guest's directory; raises Conflict if it exists, HostUnfit."""
        text = config.render(guest, switch)
        longest = max(len(str(self.socket(guest.name, port))) for port in config.PORTS)
        if longest > _SOCKET_LIMIT:
            raise HostUnfit(
                f"{guest.name} cannot run in {self.root}: the paths of its sockets would have"
                f" {longest} characters, FreeBSD takes {_SOCKET_LIMIT}",
                hint="use a shorter mount point for vm_dir",
            )
        # Named after the guest: a leftover of a killed start is reused, so they cannot accumulate.
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

        Callers hold the lock (``hold``).
        """
        if self.kept(guest) is None:
            return
        gone = self.own / f"gone-{os.getpid()}-{guest}"
        try:
            # Removed by one rename: an incomplete directory would look like a guest of others.
            self.directory(guest).rename(gone)
            for left in self.own.glob("gone-*"):  # also leftovers of killed processes
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
        """The messages of vm-bhyve about a guest since its last start, without the times."""
        with contextlib.suppress(OSError):
            text = (self.directory(guest) / "vm-bhyve.log").read_text(errors="replace")
            latest = text.rpartition(": initialising\n")[2]
            return [line.partition(": ")[2].strip() for line in latest.splitlines()]
        return []

    def last_words(self, guest: str) -> list[str]:
        """The last messages of bhyve, and vm-bhyve's fatal ones."""
        messages = []
        with contextlib.suppress(OSError):
            text = (self.directory(guest) / "bhyve.log").read_text(errors="replace")
            messages = [line for line in text.splitlines() if line.strip()]
        noted = [line for line in self.log(guest) if line.startswith(("fatal;", "bhyve exited"))]
        return [*messages, *noted][-_LAST_LINES:]


def _note(guest: GuestSpec, switch: str) -> dict[str, object]:
    ports = [forward.host_port for forward in guest.network.forwards]
    return {"tags": dict(guest.tags), "switch": switch, "ports": ports}


def taken(guest: str) -> Conflict:
    """The error for a name that is taken."""
    return Conflict(
        f"starting {guest}: a guest of that name exists already",
        hint="`vm list` shows it; another LAB_HOME may own it",
    )


def _unwritable(path: Path, error: OSError) -> HostUnfit:
    return HostUnfit(
        f"{path} cannot be written: {error.strerror}",
        hint="vm-bhyve works for root only: run lab as root",
    )

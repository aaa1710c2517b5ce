"""Device state in and out of a running QEMU, over unix sockets.

RAM stays where it is: in the guest's memory file. With the migration capability
``x-ignore-shared`` QEMU's migration stream then holds only the device state, about half a
megabyte, and the RAM that is not shared: all of it for a guest that was itself restored,
whose RAM file is mapped copy-on-write. libvirt forbids QEMU to start processes, so ``exec:``
streams are out; ``unix:`` ones work with every QEMU and libvirt that we support.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lab.errors import HostUnfit, NotReady
from lab.paths import REACHABLE, unwritable
from lab.storage import clone_lock
from lab.wait import Deadline, attempts

Monitor = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""Sends one QMP command to one guest and returns its answer's ``return``."""

MOVE_SECONDS = 30.0
_SLOWEST = 20 << 20
"""Bytes of RAM that are saved or loaded in a second on a busy host, at least."""
_UNLIMITED = 1 << 40
"""Bytes a second; QEMU's default of 128 MiB is for networks, and the guest is paused."""
_CHUNK = 1 << 20


def save(
    monitor: Monitor,
    sockets: Path,
    to: Path,
    owner: tuple[int, int] | None,
    *,
    private: int = 0,
) -> None:
    """Write the device state of a paused guest, and RAM that is not shared, to the new file ``to``.

    ``sockets``: a directory for the socket; ``owner``: the uid and gid of QEMU, None if
    ours. ``private``: bytes of RAM that is not shared, at most. Raises HostUnfit when QEMU reports
    a failed migration or stops talking; there is no file then.
    """
    deadline = Deadline.after(patience_for(private))
    _ignore_shared(monitor)
    monitor({"execute": "migrate-set-parameters", "arguments": {"max-bandwidth": _UNLIMITED}})
    with _socket(sockets, None) as path, socket.socket(socket.AF_UNIX) as listener:
        # In a directory of ours: in one of QEMU's user the owner of another file could be changed.
        path.parent.chmod(REACHABLE)
        listener.bind(str(path))
        path.chmod(0o600)
        if owner is not None:
            os.chown(path, *owner)
        listener.listen(1)
        listener.settimeout(deadline.left)
        try:
            monitor({"execute": "migrate", "arguments": {"uri": f"unix:{path}"}})
            _receive(listener, to, deadline)
            _saved(monitor, deadline)
        except BaseException:
            to.unlink(missing_ok=True)
            raise


def patience_for(size: int) -> float:
    """Seconds after which a transfer of ``size`` bytes, and of device state, has failed."""
    return MOVE_SECONDS + size / _SLOWEST


def save_devices(monitor: Monitor, sockets: Path, owner: tuple[int, int] | None) -> bytes:
    """The state of a paused guest's devices, and nothing of its RAM; the guest may run afterwards.

    Arguments as for ``save``. Raises HostUnfit when QEMU reports an error.
    """
    with _socket(sockets, None) as path:
        path.parent.chmod(REACHABLE)
        # Made by us, in a directory of ours: QEMU's user cannot put another file in its place.
        with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), "rb") as file:
            if owner is not None:
                os.chown(path, *owner)
            # live: the disks stay QEMU's own, as the guest is to run again
            arguments = {"filename": str(path), "live": False}
            monitor({"execute": "xen-save-devices-state", "arguments": arguments})
            return file.read()


def load(
    monitor: Monitor,
    sockets: Path,
    state: Path,
    owner: tuple[int, int] | None,
    *,
    patience: float = 0.0,
) -> None:
    """Feed the device state in ``state`` to a QEMU that was started with ``-incoming defer``.

    Returns once it is complete and paused; raises HostUnfit, and NotReady if that takes longer
    than ``patience`` seconds, by default what its size may take. ``sockets``, ``owner``: see
    ``save``.
    """
    deadline = Deadline.after(patience or patience_for(state.stat().st_size))
    _ignore_shared(monitor)
    with _socket(sockets, owner) as path, socket.socket(socket.AF_UNIX) as connection:
        monitor({"execute": "migrate-incoming", "arguments": {"uri": f"unix:{path}"}})
        connection.settimeout(deadline.left)
        try:
            connection.connect(str(path))
            with state.open("rb") as file:
                connection.sendfile(file)
        except TimeoutError:
            raise _late() from None
        except OSError as error:
            raise HostUnfit(f"QEMU refused the device state: {error}") from None
    _loaded(monitor, deadline)


@contextmanager
def _socket(sockets: Path, owner: tuple[int, int] | None) -> Iterator[Path]:
    """A free path for a socket, in a directory to which only ``owner`` may write, or we if None.

    It is short, since the limit for the whole path is 107 bytes. The directory is held: what
    a killed process left is distinguished from what is in use.
    """
    with clone_lock.scratch(sockets) as directory:
        if owner is not None:
            os.chown(directory, *owner)
        yield directory / "s"


def _ignore_shared(monitor: Monitor) -> None:
    capability = {"capability": "x-ignore-shared", "state": True}
    monitor({"execute": "migrate-set-capabilities", "arguments": {"capabilities": [capability]}})


def _loaded(monitor: Monitor, deadline: Deadline) -> None:
    for _ in attempts(deadline, first=0.003, most=0.05):
        status = monitor({"execute": "query-status"})["status"]
        if status != "inmigrate":
            break
    else:
        raise _late()
    if status not in ("paused", "prelaunch"):
        raise HostUnfit(f"QEMU is in state {status} after loading the device state")


def _late() -> NotReady:
    return NotReady(
        "QEMU did not load the device state in time", hint="the host is overloaded: try again"
    )


def _receive(listener: socket.socket, to: Path, deadline: Deadline) -> None:
    try:
        connection, _ = listener.accept()
        to.touch(0o600, exist_ok=False)
        with connection, to.open("wb") as file:
            connection.settimeout(deadline.left)
            while chunk := connection.recv(_CHUNK):
                file.write(chunk)
    except TimeoutError:
        raise HostUnfit("QEMU did not send its device state in time") from None
    except OSError as error:
        raise unwritable(to, error) from error


def _saved(monitor: Monitor, deadline: Deadline) -> None:
    for _ in attempts(deadline, first=0.003, most=0.05):
        answer = monitor({"execute": "query-migrate"})
        status = answer.get("status")
        if status == "completed":
            return
        if status in ("failed", "cancelled"):
            why = str(answer.get("error-desc", status))
            raise HostUnfit("saving the device state failed", details=[why])
    raise HostUnfit("QEMU did not save its device state in time", hint="the host is overloaded")

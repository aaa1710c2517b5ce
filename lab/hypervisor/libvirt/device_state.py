"""Saves and loads the device state of a running QEMU, over unix sockets.

RAM stays where it is: in the guest's memory file. With the migration capability
``x-ignore-shared`` QEMU's migration stream then holds only the device state, about half a
megabyte, and the RAM that is not shared: all of it for a guest that was itself restored,
whose RAM file is mapped copy-on-write. libvirt does not let QEMU start processes, so ``exec:``
streams cannot be used; ``unix:`` works with every supported QEMU and libvirt.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lab.errors import HostUnfit, NotReady
from lab.hypervisor.libvirt.stream import PAGE
from lab.paths import REACHABLE, new_file
from lab.storage import clone_lock
from lab.wait import Deadline, attempts

Monitor = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""Sends a QMP command to a guest, and returns the ``return`` of the answer."""

MOVE_SECONDS = 30.0
_SLOWEST = 20 << 20
"""The minimum rate at which RAM is saved or loaded on a busy host, in bytes a second."""
_UNLIMITED = 1 << 40
"""Bytes a second; QEMU's default of 128 MiB is for networks, and the guest is paused."""
_CHUNK = 1 << 20
_DEVICES = 64 << 20
"""The most bytes of device state, the RAM of devices included: display memory takes 16 MiB."""
_PER_PAGE = 9
"""Bytes that a stream adds to a page of 4 KiB: flags and offset, and one for a page of zeros."""


class Refused(Exception):
    """QEMU did not write its device state; the text says why."""


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
    this process's. ``private``: the maximum of RAM that is not shared, in bytes. Raises HostUnfit
    if QEMU reports a failed migration or sends more than that takes, or on timeout; there is no
    file then.
    """
    most = _DEVICES + private + private // PAGE * _PER_PAGE
    deadline = Deadline.after(patience_for(private))
    _ignore_shared(monitor)
    monitor({"execute": "migrate-set-parameters", "arguments": {"max-bandwidth": _UNLIMITED}})
    with _socket(sockets, None) as path, socket.socket(socket.AF_UNIX) as listener:
        # In our directory: in one of QEMU's user, chown could be diverted to another file.
        path.parent.chmod(REACHABLE)
        listener.bind(str(path))
        path.chmod(0o600)
        if owner is not None:
            os.chown(path, *owner)
        listener.listen(1)
        listener.settimeout(deadline.left)
        try:
            monitor({"execute": "migrate", "arguments": {"uri": f"unix:{path}"}})
            _receive(listener, to, deadline, most)
            _saved(monitor, deadline)
        except BaseException:
            to.unlink(missing_ok=True)
            raise


def patience_for(size: int) -> float:
    """The timeout of a transfer of ``size`` bytes and the device state, in seconds."""
    return MOVE_SECONDS + size / _SLOWEST


def save_devices(monitor: Monitor, sockets: Path, owner: tuple[int, int] | None) -> bytes:
    """The device state of a paused guest without RAM; the guest may be resumed afterwards.

    Arguments as for ``save``. Raises Refused when QEMU reports an error, or has more than
    devices have.
    """
    with _socket(sockets, None) as path:
        path.parent.chmod(REACHABLE)
        # Created by us in our directory: QEMU's user cannot replace it.
        with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), "rb") as file:
            if owner is not None:
                os.chown(path, *owner)
            # live: QEMU keeps the disks' locks, as the guest is resumed
            arguments = {"filename": str(path), "live": False}
            try:
                monitor({"execute": "xen-save-devices-state", "arguments": arguments})
            except HostUnfit as error:
                raise Refused(str(error)) from error
            found = file.read(_DEVICES + 1)
            if len(found) > _DEVICES:
                raise Refused(f"the device state has more than {_DEVICES} bytes")
            return found


def load(
    monitor: Monitor,
    sockets: Path,
    state: Path,
    owner: tuple[int, int] | None,
    *,
    patience: float = 0.0,
) -> None:
    """Load the device state in ``state`` into a QEMU that was started with ``-incoming defer``.

    Returns once it is loaded and the guest is paused; raises HostUnfit, and NotReady after
    ``patience`` seconds (default: the timeout for its size). ``sockets``, ``owner``: see ``save``.
    """
    deadline = Deadline.after(patience or patience_for(state.stat().st_size))
    _ignore_shared(monitor)
    # Or guests send their addresses five times, for which Linux's virtio_net waits in a loop for
    # QEMU each time: 0.1 s where two processors emulate three guests. Nobody is to learn them, as
    # their networks begin and end in QEMU.
    monitor({"execute": "migrate-set-parameters", "arguments": {"announce-rounds": 0}})
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
    """An unused path for a socket, in a directory that only ``owner`` (None: we) may write to.

    It is short, as the limit for the whole path is 107 bytes. The directory is locked, so that
    leftovers of killed processes are distinguished from directories in use.
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
        "QEMU did not load the device state in time", hint="the host is overloaded: retry"
    )


def _receive(listener: socket.socket, to: Path, deadline: Deadline, most: int) -> None:
    try:
        connection, _ = listener.accept()
        with connection, new_file(to) as file:
            while chunk := _next(connection, deadline):
                most -= file.write(chunk)
                if most < 0:
                    raise HostUnfit("QEMU sent more device state than the guest has memory")
    except TimeoutError:
        raise HostUnfit("QEMU did not send its device state in time") from None
    except OSError as error:  # of the socket
        raise HostUnfit(f"QEMU did not send its device state: {error.strerror}") from error


def _next(connection: socket.socket, deadline: Deadline) -> bytes:
    if deadline.passed:  # a socket with a timeout of 0 does not wait at all
        raise TimeoutError
    connection.settimeout(deadline.left)
    return connection.recv(_CHUNK)


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

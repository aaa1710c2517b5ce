"""Device state in and out of a running QEMU, over unix sockets.

RAM stays where it is: in the guest's memory file. With the migration capability
``x-ignore-shared`` QEMU's migration stream then holds only the
device state, about half a megabyte. libvirt forbids QEMU to start processes, so ``exec:``
streams are out; ``unix:`` ones work with every QEMU and libvirt that we support.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lab.errors import HostUnfit
from lab.wait import Deadline, attempts

Monitor = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""Sends one QMP command to one guest and returns its answer's ``return``."""

MOVE_SECONDS = 30.0
_CHUNK = 1 << 20


def socket_path(directory: Path) -> Path:
    """A fresh name for a socket; short, since the limit for the whole path is 107 bytes."""
    return directory / f"{secrets.token_hex(6)}.sock"


def save(monitor: Monitor, directory: Path, to: Path, owner: tuple[int, int] | None) -> int:
    """Write the device state of a paused guest to ``to``; returns its size in bytes.

    Raises HostUnfit when QEMU reports a failed migration or stops talking.
    """
    path = socket_path(directory)
    deadline = Deadline.after(MOVE_SECONDS)
    _leave_out_ram(monitor)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        try:
            path.chmod(0o600)
            if owner is not None:
                os.chown(path, *owner)
            listener.listen(1)
            listener.settimeout(deadline.left)
            monitor({"execute": "migrate", "arguments": {"uri": f"unix:{path}"}})
            size = _receive(listener, to, deadline)
        finally:
            path.unlink(missing_ok=True)
    _finished(monitor, deadline, "saving the device state")
    return size


def load(monitor: Monitor, directory: Path, state: Path) -> None:
    """Give the device state in ``state`` to a paused QEMU that waits for one.

    Raises HostUnfit when QEMU refuses it or stops talking.
    """
    path = socket_path(directory)
    deadline = Deadline.after(MOVE_SECONDS)
    _leave_out_ram(monitor)
    monitor({"execute": "migrate-incoming", "arguments": {"uri": f"unix:{path}"}})
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(deadline.left)
        try:
            connection.connect(str(path))
            connection.sendall(state.read_bytes())
        except OSError as error:
            raise HostUnfit(f"QEMU refused the device state: {error}") from None
        finally:
            path.unlink(missing_ok=True)
    for _ in attempts(deadline, first=0.003, most=0.05):
        status = monitor({"execute": "query-status"})["status"]
        if status != "inmigrate":
            break
    if status not in ("paused", "prelaunch"):
        raise HostUnfit(f"QEMU is in state {status} after loading the device state")


def _leave_out_ram(monitor: Monitor) -> None:
    capability = {"capability": "x-ignore-shared", "state": True}
    arguments = {"capabilities": [capability]}
    monitor({"execute": "migrate-set-capabilities", "arguments": arguments})


def _receive(listener: socket.socket, to: Path, deadline: Deadline) -> int:
    size = 0
    try:
        connection, _ = listener.accept()
        with connection, to.open("xb") as file:
            connection.settimeout(deadline.left)
            while chunk := connection.recv(_CHUNK):
                file.write(chunk)
                size += len(chunk)
    except TimeoutError:
        raise HostUnfit("QEMU did not send its device state in time") from None
    return size


def _finished(monitor: Monitor, deadline: Deadline, doing: str) -> None:
    for _ in attempts(deadline, first=0.003, most=0.05):
        answer = monitor({"execute": "query-migrate"})
        status = answer.get("status")
        if status == "completed":
            return
        if status in ("failed", "cancelled"):
            raise HostUnfit(f"{doing} failed", details=[str(answer.get("error-desc", status))])
    raise HostUnfit(f"{doing} took longer than {MOVE_SECONDS:g} s")

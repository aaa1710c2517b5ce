"""Device state in and out of a running QEMU, over unix sockets.

RAM stays where it is: in the guest's memory file. With the migration capability
``x-ignore-shared`` (set in ``domain.py``) QEMU's migration stream then holds only the
device state, about half a megabyte. libvirt forbids QEMU to start processes, so ``exec:``
streams are out; ``unix:`` ones work with every QEMU and libvirt that we support.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
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


def load(path: Path, state: Path, deadline: Deadline, given_up: threading.Event) -> None:
    """Feed the device state in ``state`` to a QEMU that will listen on the socket ``path``.

    Returns once QEMU has taken all of it, or when ``given_up`` is set before it listens.
    Raises HostUnfit if it does not within the deadline.
    """
    content = state.read_bytes()
    with socket.socket(socket.AF_UNIX) as connection:
        for _ in attempts(deadline, first=0.002, most=0.02):
            with suppress(FileNotFoundError, ConnectionRefusedError):
                connection.connect(str(path))
                break
            if given_up.is_set():
                return
        else:
            raise HostUnfit("QEMU did not open its socket for the device state in time")
        connection.settimeout(max(deadline.left, 0.1))
        try:
            connection.sendall(content)
        except OSError as error:
            raise HostUnfit(f"QEMU refused the device state: {error}") from None


def loaded(monitor: Monitor, deadline: Deadline) -> None:
    """Wait until a QEMU that was fed by ``load`` is complete and paused; raises HostUnfit."""
    for _ in attempts(deadline, first=0.003, most=0.05):
        status = monitor({"execute": "query-status"})["status"]
        if status != "inmigrate":
            break
    else:
        raise HostUnfit("QEMU did not finish loading the device state in time")
    if status not in ("paused", "prelaunch"):
        raise HostUnfit(f"QEMU is in state {status} after loading the device state")


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

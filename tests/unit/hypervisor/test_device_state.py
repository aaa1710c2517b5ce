"""Device state out of QEMU and into it: what is refused, and what is only late."""

from __future__ import annotations

import os
import socket
import stat
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from lab.errors import HostUnfit, NotReady
from lab.hypervisor.libvirt import device_state
from lab.hypervisor.libvirt.device_state import Refused, load, save, save_devices


class Slow:
    """A QEMU that takes the device state and never finishes loading it."""

    def __init__(self) -> None:
        self.took = bytearray()
        self._listener = socket.socket(socket.AF_UNIX)

    def __call__(self, command: Mapping[str, Any]) -> Mapping[str, Any]:
        if command["execute"] == "migrate-incoming":
            self._listener.bind(command["arguments"]["uri"].removeprefix("unix:"))
            self._listener.listen(1)
            threading.Thread(target=self._take, daemon=True).start()
        return {"status": "inmigrate"}

    def _take(self) -> None:
        with suppress(OSError), self._listener, self._listener.accept()[0] as connection:
            while piece := connection.recv(4096):
                self.took += piece


def test_a_slow_host_is_no_reason_to_doubt_the_files(short: Path) -> None:
    """Protects templates: a restore that is late is not RestoreFailed, which marks them broken."""
    state = short / "n1.state"
    state.write_bytes(b"state")
    (short / "run").mkdir()
    slow = Slow()
    with pytest.raises(NotReady, match="in time"):
        load(slow, short / "run", state, None, patience=0.3)
    assert slow.took == b"state"


class Quick:
    """A QEMU that hands out its device state, and notes whose the socket's directory was.

    ``written``: the modes of ``state`` before it is complete.
    """

    def __init__(self, state: Path) -> None:
        self.modes: list[tuple[int, int, int]] = []
        self.written: list[int] = []
        self._state = state

    def __call__(self, command: Mapping[str, Any]) -> Mapping[str, Any]:
        if command["execute"] == "migrate":
            path = Path(command["arguments"]["uri"].removeprefix("unix:"))
            for one in (path.parent, path):
                status = one.stat()
                self.modes.append((status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)))
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(str(path))
                connection.send(b"state")
        if command["execute"] == "query-migrate":
            self.written.append(stat.S_IMODE(self._state.stat().st_mode))
        return {"status": "completed"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_the_owner_of_no_other_file_can_be_changed(short: Path) -> None:
    """Protects root's files from QEMU's user, who would put a link in the place of the socket."""
    (short / "run").mkdir()
    quick = Quick(short / "n1.state")
    save(quick, short / "run", short / "n1.state", (54321, 54322))
    assert quick.modes == [(0, 0, 0o711), (54321, 54322, 0o600)]
    assert (short / "n1.state").read_bytes() == b"state"
    assert list((short / "run").iterdir()) == []


def test_nobody_else_can_ever_open_the_state(short: Path) -> None:
    """Protects what a guest has in its registers, while its state is being saved."""
    (short / "run").mkdir()
    quick = Quick(short / "n1.state")
    before = os.umask(0)
    try:
        save(quick, short / "run", short / "n1.state", None)
    finally:
        os.umask(before)
    assert quick.written == [0o600]


class Endless:
    """A QEMU, taken over by its guest, whose device state has no end."""

    def __call__(self, command: Mapping[str, Any]) -> Mapping[str, Any]:
        if command["execute"] == "migrate":
            path = command["arguments"]["uri"].removeprefix("unix:")
            threading.Thread(target=self._send, args=[path], daemon=True).start()
        if command["execute"] == "xen-save-devices-state":
            Path(command["arguments"]["filename"]).write_bytes(bytes(2048))
        return {"status": "completed"}

    @staticmethod
    def _send(path: str) -> None:
        with suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
            connection.connect(path)
            while True:
                connection.sendall(bytes(4096))


def test_what_qemu_sends_has_an_end(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects the host's disk and memory from a guest that has taken over its QEMU."""
    monkeypatch.setattr(device_state, "_DEVICES", 1024)
    (short / "run").mkdir()
    with pytest.raises(HostUnfit, match="more device state"):
        save(Endless(), short / "run", short / "n1.state", None, private=8192)
    assert not (short / "n1.state").exists()
    with pytest.raises(Refused, match="more than 1024 bytes"):
        save_devices(Endless(), short / "run", None)


def test_a_refused_state_is_told_from_an_unfit_host(short: Path) -> None:
    """Protects snapshots: without this command RAM is saved as a stream."""
    (short / "run").mkdir()

    def refuse(command: Mapping[str, Any]) -> Mapping[str, Any]:
        raise HostUnfit(f"{command['execute']} was not found")

    with pytest.raises(Refused, match="xen-save-devices-state was not found"):
        save_devices(refuse, short / "run", None)

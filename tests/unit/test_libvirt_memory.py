"""Device state into QEMU: what is refused, and what is only late."""

from __future__ import annotations

import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from lab.errors import NotReady
from lab.hypervisor.libvirt.memory import load


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

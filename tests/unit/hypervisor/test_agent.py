"""Programs that the guest agent runs: their output is bounded in the guest, before it is sent."""

from __future__ import annotations

import base64
import os
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from lab.errors import CommandFailed
from lab.hypervisor import TooLong
from lab.hypervisor.agent import AgentChannel
from lab.names import GuestName
from lab.progress import never_halt
from lab.wait import Deadline

pytestmark = pytest.mark.skipif(not os.access("/run", os.W_OK), reason="/run is not ours")


class Here:
    """The ports of a guest whose agent runs programs on this host."""

    def __init__(self) -> None:
        self.longest = 0
        self._done: subprocess.CompletedProcess[bytes] | None = None

    def ask(self, request: dict[str, Any], timeout: float) -> Any:
        if request["execute"] == "guest-exec":
            asked = request["arguments"]
            self._done = subprocess.run(
                [asked["path"], *asked["arg"]],
                input=base64.b64decode(asked.get("input-data", "")),
                capture_output=True,
                timeout=timeout,
                check=False,
            )
            return {"pid": 1}
        assert self._done is not None
        out, err = (
            base64.b64encode(text).decode() for text in (self._done.stdout, self._done.stderr)
        )
        self.longest = max(self.longest, len(out), len(err))
        code = self._done.returncode
        return {"exited": True, "exitcode": code, "out-data": out, "err-data": err}

    def personalise(
        self, message: bytes, deadline: Deadline, halt: Callable[[], None] = never_halt
    ) -> str:
        raise AssertionError((message, deadline, halt))


def test_output_is_cut_where_it_is_made() -> None:
    """Protects the agent of a node: an answer that libvirt cannot take ends it until a restart."""
    for script in ("head -c 20000000 /dev/zero", "head -c 20000000 /dev/zero >&2", "yes"):
        ports = Here()
        channel = AgentChannel(ports, GuestName("lab-a-n1"))
        with pytest.raises(TooLong, match="sh in lab-a-n1 wrote more than 1K") as refused:
            channel.run(["sh", "-c", script], timeout=60, most=1024)
        assert refused.value.exit_code == 6
        assert ports.longest < 2048


def test_what_is_short_enough_is_as_it_was() -> None:
    channel = AgentChannel(Here(), GuestName("lab-a-n1"))
    assert channel.run(["cat"], stdin=b"a\0b\n", timeout=60, most=1024) == b"a\0b\n"
    assert channel.run(["head", "-c", "1024", "/dev/zero"], timeout=60, most=1024) == bytes(1024)
    with pytest.raises(CommandFailed) as failed:
        channel.run(["sh", "-c", "echo no >&2; exit 9"], timeout=60, most=1024)
    assert (failed.value.status, failed.value.stderr) == (9, "no\n")
    with pytest.raises(CommandFailed) as failed:
        channel.run(["nosuchcmd"], timeout=60, most=1024)
    assert failed.value.status == 127
    assert "nosuchcmd: not found" in failed.value.stderr

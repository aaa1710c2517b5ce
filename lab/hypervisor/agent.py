"""The QEMU guest agent of a guest, and the program beside it, whatever leads to their ports.

Protocol: the QEMU Guest Agent Protocol Reference (guest-ping, guest-exec, guest-exec-status).
bhyve's guests run the same agent.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, Protocol

from lab.errors import CommandFailed, NotReady
from lab.names import GuestName
from lab.wait import Deadline, attempts

GUEST_AGENT = "org.qemu.guest_agent.0"
PERSONALISE = "org.lab.personalise.0"
"""The virtio ports of a guest: QEMU's agent, and the program that makes a clone itself."""


class Ports(Protocol):
    """The way to the two ports of one guest."""

    def ask(self, request: dict[str, Any], timeout: float) -> Any:
        """What the agent returns; raises NotReady without an answer in ``timeout`` seconds."""

    def personalise(self, message: bytes, deadline: Deadline) -> str:
        """The line that answers ``message``; raises NotReady."""


class AgentChannel:
    """A ``GuestChannel`` over the QEMU guest agent."""

    def __init__(self, ports: Ports, guest: GuestName) -> None:
        self._ports = ports
        self._guest = guest

    def ping(self, timeout: float) -> bool:
        """See GuestChannel."""
        try:
            self._ask("guest-ping", timeout=timeout)
        except NotReady:
            return False
        return True

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout: float) -> bytes:
        """See GuestChannel."""
        deadline = Deadline.after(timeout)
        arguments: dict[str, Any] = {
            "path": argv[0],
            "arg": list(argv[1:]),
            "capture-output": True,
        }
        if stdin:
            arguments["input-data"] = base64.b64encode(stdin).decode()
        pid = self._ask("guest-exec", arguments, timeout=deadline.left)["pid"]
        for _ in attempts(deadline, first=0.01, most=0.25):
            answer = self._ask("guest-exec-status", {"pid": pid}, timeout=max(deadline.left, 5.0))
            if answer["exited"]:
                return self._output(argv, answer)
        raise NotReady(f"{argv[0]} in {self._guest} did not end within {timeout:g} s")

    def clock(self, *, timeout: float) -> float:
        """See GuestChannel."""
        nanoseconds: int = self._ask("guest-get-time", timeout=timeout)
        return nanoseconds / 1e9

    def personalise(self, message: bytes, *, timeout: float) -> None:
        """See GuestChannel."""
        framed = b"begin\n" + message + b"end\n"
        answer = self._ports.personalise(framed, Deadline.after(timeout))
        word, _, reason = answer.partition(" ")
        if word != "ok":
            text = bytes.fromhex(reason).decode(errors="replace")
            raise CommandFailed(["personalise"], 1, stderr=text, where=str(self._guest))

    def write(self, path: str, content: bytes, *, mode: int = 0o600) -> None:
        """See GuestChannel."""
        # A file is created with its final mode, so that a secret is never readable by others.
        script = 'umask 077; cat >"$1.new" && chmod "$2" "$1.new" && mv -f "$1.new" "$1"'
        argv = ["/bin/sh", "-c", script, "sh", path, f"{mode:o}"]
        self.run(argv, stdin=content, timeout=30.0)

    def _output(self, argv: Sequence[str], answer: dict[str, Any]) -> bytes:
        stdout = base64.b64decode(answer.get("out-data", ""))
        if answer.get("signal") or answer.get("exitcode", 0) != 0:
            status = -answer["signal"] if "signal" in answer else answer["exitcode"]
            stderr = base64.b64decode(answer.get("err-data", "")).decode(errors="replace")
            text = stderr or stdout.decode(errors="replace")
            raise CommandFailed(argv, status, stderr=text, where=str(self._guest))
        return stdout

    def _ask(self, command: str, arguments: dict[str, Any] | None = None, *, timeout: float) -> Any:
        request: dict[str, Any] = {"execute": command}
        if arguments:
            request["arguments"] = arguments
        return self._ports.ask(request, timeout)

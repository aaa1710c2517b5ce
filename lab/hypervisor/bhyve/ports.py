"""The virtio ports of a guest, at the sockets that bhyve creates for them.

bhyve(8), "Virtio console device backends", and pci_virtio_console.c: a port takes one connection
at a time and closes any other at once; data sent before the guest has opened its port is lost
without an error. So requests are serialised, and begin with a marker that the guest returns.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from lab.errors import NotReady
from lab.hypervisor.agent import GUEST_AGENT, PERSONALISE, loaded
from lab.hypervisor.bhyve.place import Place
from lab.hypervisor.lines import next_line
from lab.locks import flock
from lab.names import GuestName
from lab.progress import never_halt
from lab.wait import Deadline, attempts

_OUTPUT = 1 << 25
"""The maximum length of the agent's answer: 16 MiB of a program's output, as base64."""
_SYNC_SECONDS = 1.0
"""Seconds after which a marker that was not returned is sent again."""


class SocketPorts:
    """See ``lab.hypervisor.agent.Ports``."""

    def __init__(self, place: Place, guest: GuestName) -> None:
        self._agent = place.socket(guest, GUEST_AGENT)
        self._personalise = place.socket(guest, PERSONALISE)
        self._guest = guest

    def personalise(
        self, message: bytes, deadline: Deadline, halt: Callable[[], None] = never_halt
    ) -> str:
        """See Ports."""
        try:
            with self._turn(self._personalise, deadline), socket.socket(socket.AF_UNIX) as port:
                port.settimeout(max(deadline.left, 0.05))
                port.connect(str(self._personalise))
                _until_awake(port, deadline, halt)
                port.settimeout(max(deadline.left, 0.05))
                port.sendall(message)
                answer = next_line(port, deadline, halt=halt)
                return answer.decode(errors="replace").strip()
        except OSError as error:
            raise NotReady(
                f"{self._guest} does not answer at its port", details=[str(error)]
            ) from None

    def ask(self, request: dict[str, Any], timeout: float) -> Any:
        """See Ports."""
        deadline = Deadline.after(timeout)
        why = "timed out before connecting"
        with self._turn(self._agent, deadline):
            for _ in attempts(deadline, first=0.01, most=0.25):
                with socket.socket(socket.AF_UNIX) as port:
                    try:
                        answers = _in_step(port, self._agent, deadline)
                        why = "no answer"
                    except OSError as error:
                        answers, why = False, str(error)
                    if answers:
                        # Sent once only: the request may start a program.
                        return self._answer(port, request, deadline)
        raise self._silent(why)

    def _answer(self, port: socket.socket, request: dict[str, Any], deadline: Deadline) -> Any:
        try:
            port.sendall(json.dumps(request).encode() + b"\n")
            left = Deadline.after(max(deadline.left, 0.05))
            line = next_line(port, left, most=_OUTPUT)
        except OSError as error:
            raise self._silent(str(error)) from None
        try:
            answer = loaded(line)
            if "error" in answer:
                raise NotReady(
                    f"the guest agent of {self._guest} rejects {request['execute']}",
                    details=[str(answer["error"].get("desc", answer["error"]))],
                )
            return answer["return"]
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise NotReady(
                f"the guest agent of {self._guest} sent an invalid answer",
                details=[line[:200].decode(errors="replace")],
            ) from None

    def _silent(self, why: str) -> NotReady:
        return NotReady(f"the guest agent of {self._guest} does not answer", details=[why])

    @contextmanager
    def _turn(self, path: Path, deadline: Deadline) -> Iterator[None]:
        """Lock a port for this process; raises NotReady after ``deadline``."""
        try:
            turn = path.with_name(f"turn.{path.name}")
            handle = os.open(turn, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise NotReady(f"{self._guest} does not run", details=[str(error)]) from None
        try:
            if not flock.take_until(handle, deadline):
                raise NotReady(f"{self._guest} is busy with another request")
            yield
        finally:
            os.close(handle)


def _in_step(port: socket.socket, path: Path, deadline: Deadline) -> bool:
    """Connect, and discard the agent's answers to earlier requests.

    guest-sync-delimited of the protocol: 0xFF makes the agent discard an incomplete request, and
    its answer begins with 0xFF.
    """
    soon = Deadline.after(min(_SYNC_SECONDS, max(deadline.left, 0.05)))
    port.settimeout(max(soon.left, 0.05))
    port.connect(str(path))
    sign = secrets.randbelow(2**31)
    sync = {"execute": "guest-sync-delimited", "arguments": {"id": sign}}
    port.sendall(b"\xff" + json.dumps(sync).encode() + b"\n")
    while not soon.passed:
        line = next_line(port, soon, most=_OUTPUT).rpartition(b"\xff")[2]
        try:
            if loaded(line).get("return") == sign:
                return True
        except (ValueError, AttributeError, RecursionError):
            continue  # the rest of an answer to an earlier request
    return False


def _until_awake(port: socket.socket, deadline: Deadline, halt: Callable[[], None]) -> None:
    """Wait until the program behind the port answers; raises OSError, and the errors of ``halt``.

    The marker is an item with a random name, which the program rejects by that name. Answers
    before that one belong to earlier requests.
    """
    for _ in attempts(deadline, first=0.01, most=0.05):
        halt()
        name = secrets.token_hex(8)
        port.sendall(f"begin\n{name}\nend\n".encode())
        soon = Deadline.after(min(_SYNC_SECONDS, max(deadline.left, 0.05)))
        with suppress(TimeoutError):
            while name.encode().hex().encode() not in next_line(port, soon):
                continue
            return
    raise TimeoutError("no answer")

"""One conversation with the agent in a guest."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from typing import BinaryIO

from lab.errors import CommandFailed, NotReady
from lab.wait import Deadline
from testvm import wire

_CHUNK = 1 << 16


class Session:
    """Talks to the agent over ``channel``; every wait ends at ``deadline``.

    All methods raise NotReady if the guest goes away or the deadline passes. ``facts`` is
    what the guest reported.
    """

    facts: Mapping[str, str] = {}

    def __init__(self, channel: socket.socket, deadline: Deadline) -> None:
        self._channel = channel
        self._deadline = deadline
        self._lines = wire.Lines()
        self._waiting: list[wire.Message] = []

    def hello(self, token: str) -> None:
        """Begin: wait until the guest has booted.

        ``token`` is new in each conversation: what an earlier one left is passed over.
        """
        self._send({"hello": token})
        message = self._next()
        while message.get("hello") != token:
            message = self._next()
        self.facts = message["facts"]

    def unpack(self, directory: str, archive: bytes) -> None:
        """Replace ``directory`` in the guest by the contents of a tar.gz archive."""
        self._send({"unpack": directory, "tar": wire.pack(archive)})
        self._expect("done")

    def run(self, argv: Sequence[str], *, cwd: str, env: Mapping[str, str], out: BinaryIO) -> int:
        """Run ``argv`` in the guest, copy its output to ``out`` as it comes; its exit status.

        Raises CommandFailed if it could not be started.
        """
        self._send({"run": list(argv), "cwd": cwd, "env": dict(env)})
        while True:
            message = self._next()
            if "out" in message:
                out.write(wire.unpack(message["out"]))
                out.flush()
            elif "exit" in message:
                return int(message["exit"])
            elif "error" in message:
                raise CommandFailed(list(argv), 127, stderr=message["error"], where="the guest")

    def off(self) -> None:
        """Have the machine switched off; does not wait for it."""
        self._send({"off": True})

    def _expect(self, key: str) -> None:
        while True:
            message = self._next()
            if key in message:
                return
            if "error" in message:
                raise CommandFailed(["tar"], 1, stderr=message["error"], where="the guest")

    def _send(self, message: wire.Message) -> None:
        try:
            self._channel.settimeout(max(self._deadline.left, 0.01))
            self._channel.sendall(wire.encode(message))
        except TimeoutError:
            raise _late() from None
        except OSError:
            raise _gone() from None

    def _next(self) -> wire.Message:
        while not self._waiting:
            try:
                self._channel.settimeout(max(self._deadline.left, 0.01))
                data = self._channel.recv(_CHUNK)
            except TimeoutError:
                raise _late() from None
            except OSError:
                raise _gone() from None
            if not data:
                raise _gone()
            self._waiting += self._lines.feed(data)
        return self._waiting.pop(0)


def _late() -> NotReady:
    return NotReady("the guest did not finish in time")


def _gone() -> NotReady:
    return NotReady("the guest ended before the command in it did")

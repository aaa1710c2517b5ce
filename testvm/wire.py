"""The messages between the host and the agent in the guest: one JSON object a line.

A line that is no message is passed over, so that both ends find each other again after a
conversation was cut off. Bytes travel as base64.

======  ================================  =============================================
to      message                           meaning
======  ================================  =============================================
guest   hello: token                      a new conversation: whatever ran is ended
guest   unpack: directory, tar: base64    replace the directory by a tar.gz archive
guest   run: argv, env, cwd               run a command; its output comes as it appears
guest   off: true                         switch the machine off
host    hello: token, facts: {}           the agent is there, and what is in the guest
host    done: true                        unpacked
host    out: base64                       output of the command, both streams
host    exit: status                      it ended; 128 + n if by signal n
host    error: text                       the last request failed
======  ================================  =============================================
"""

from __future__ import annotations

import base64
import json
from typing import Any

Message = dict[str, Any]

PORT = "lab.test.agent"
"""The name of the virtio port."""


def encode(message: Message) -> bytes:
    """``message`` as a line. The line before it is ended too, whatever it was."""
    return b"\n" + json.dumps(message, separators=(",", ":")).encode() + b"\n"


def pack(data: bytes) -> str:
    """``data`` as it stands in a message."""
    return base64.b64encode(data).decode("ascii")


def unpack(text: str) -> bytes:
    """What ``pack`` was given."""
    return base64.b64decode(text)


class Lines:
    """Turns received bytes into messages."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def feed(self, data: bytes) -> list[Message]:
        """The messages that ``data`` completes."""
        *ended, rest = data.split(b"\n")
        if not ended:
            self._parts.append(rest)
            return []
        lines = [b"".join([*self._parts, ended[0]]), *ended[1:]]
        self._parts = [rest]
        return [message for line in lines if (message := _decode(line)) is not None]


def _decode(line: bytes) -> Message | None:
    try:
        message = json.loads(line) if line else None
    except ValueError:
        return None
    return message if isinstance(message, dict) else None

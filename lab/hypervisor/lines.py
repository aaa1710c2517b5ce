"""Lines from guests: who is root in one decides what comes, how much of it, and when."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable

from lab.errors import NotReady
from lab.names import GuestName
from lab.progress import go_on
from lab.wait import Deadline

LONGEST = 1 << 16
"""Bytes that an answer may have, unless it holds the output of a program."""
_HALT_EVERY = 0.25
"""Seconds of silence after which the caller's halt is asked."""


def next_line(
    port: socket.socket,
    deadline: Deadline,
    *,
    most: int = LONGEST,
    halt: Callable[[], None] = go_on,
) -> bytes:
    """What comes from ``port`` up to the end of a line: ``most`` bytes at most.

    Raises TimeoutError at ``deadline``, whatever has come by then, ConnectionResetError if the
    port is closed, another OSError if the line is too long, and what ``halt`` raises.
    """
    line = bytearray()
    while not line.endswith(b"\n"):
        halt()
        if deadline.passed:
            raise TimeoutError(f"no end of the line in time, after {len(line)} bytes")
        port.settimeout(min(max(deadline.left, 0.001), _HALT_EVERY))
        try:
            chunk = port.recv(LONGEST)
        except TimeoutError:
            continue
        if not chunk:
            raise ConnectionResetError("the port was closed")
        line += chunk
        if len(line) > most:
            raise OSError(errno.EMSGSIZE, f"a line of more than {most} bytes came")
    return bytes(line)


def exchange(
    path: str, message: bytes, deadline: Deadline, guest: GuestName, halt: Callable[[], None]
) -> str:
    """Send ``message`` to the socket of a guest's port and return the line that comes back.

    Raises NotReady, and what ``halt`` raises.
    """
    with socket.socket(socket.AF_UNIX) as port:
        try:
            port.settimeout(max(deadline.left, 0.1))
            port.connect(path)
            port.sendall(message)
            answer = next_line(port, deadline, halt=halt)
        except ConnectionResetError:
            raise NotReady(f"{guest} ended before it answered at its port") from None
        except OSError as error:
            raise NotReady(f"{guest} does not answer at its port", details=[str(error)]) from None
    return answer.decode(errors="replace").strip()

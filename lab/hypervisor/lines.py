"""Lines from guests, which are untrusted: limits of length and time apply."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable

from lab.errors import NotReady
from lab.names import GuestName
from lab.progress import never_halt
from lab.wait import Deadline

LONGEST = 1 << 16
"""The maximum length of an answer in bytes, unless it has the output of a program."""
_HALT_EVERY = 0.25
"""The interval in seconds at which ``halt`` is called while nothing is received."""


def next_line(
    port: socket.socket,
    deadline: Deadline,
    *,
    most: int = LONGEST,
    halt: Callable[[], None] = never_halt,
) -> bytes:
    """The next line from ``port``, of at most ``most`` bytes.

    Raises TimeoutError at ``deadline``, ConnectionResetError if the port is closed, another OSError
    if the line is too long, and the errors of ``halt``.
    """
    line = bytearray()
    while not line.endswith(b"\n"):
        halt()
        if deadline.passed:
            raise TimeoutError(f"timed out within a line, after {len(line)} bytes")
        port.settimeout(min(max(deadline.left, 0.001), _HALT_EVERY))
        try:
            chunk = port.recv(LONGEST)
        except TimeoutError:
            continue
        if not chunk:
            raise ConnectionResetError("the port was closed")
        line += chunk
        if len(line) > most:
            raise OSError(errno.EMSGSIZE, f"a line of more than {most} bytes was received")
    return bytes(line)


def exchange(
    path: str, message: bytes, deadline: Deadline, guest: GuestName, halt: Callable[[], None]
) -> str:
    """Send ``message`` to the socket of a guest's port, and return the line of the answer.

    Raises NotReady, and the errors of ``halt``.
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

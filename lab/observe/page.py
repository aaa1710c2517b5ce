"""Pages of nodes, such as a proxy's statistics: whether one is there.

Whoever is root in a node decides what answers, so an answer has a limit of bytes and one of time.
"""

from __future__ import annotations

import re
import socket

from lab.errors import NotReady
from lab.wait import Deadline

_MOST = 512
"""Bytes that are read: the first line of an answer is shorter."""
_STATUS = re.compile(rb"HTTP/1\.[01] ([0-9]{3})\b")


def status(host: str, port: int, *, timeout: float) -> str:
    """The HTTP status of the page ``/`` at a port, such as 200; raises NotReady.

    ``timeout``: seconds for all of it.
    """
    deadline = Deadline.after(timeout)
    try:
        with socket.create_connection((host, port), max(deadline.left, 0.001)) as connected:
            connected.sendall(b"GET / HTTP/1.0\r\n\r\n")
            return received(connected, deadline)
    except OSError as error:
        raise NotReady(f"no page at {host}:{port}", details=[str(error)]) from None


def received(connected: socket.socket, deadline: Deadline) -> str:
    """The HTTP status that a server sends, such as 200; raises OSError without one in time."""
    head = b""
    while len(head) < _MOST and b"\n" not in head:
        connected.settimeout(max(deadline.left, 0.001))
        part = connected.recv(_MOST - len(head))
        if not part:
            break
        if deadline.passed:  # whatever trickles in
            raise TimeoutError("timed out")
        head += part
    found = _STATUS.match(head)
    if found is None:
        raise OSError("it does not speak HTTP")
    return found[1].decode()

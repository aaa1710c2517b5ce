"""Who is at the other end of a connection on this host, by the kernel's own list."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

LIST = Path("/proc/net/tcp")
"""A line for each TCP socket over IPv4: Linux, Documentation/networking/proc_net_tcp."""


def owner_of(connected: socket.socket, *, path: Path = LIST) -> int | None:
    """The user (id) whose program accepted a connection over IPv4 on this host; None: not known.

    It is known once that program has sent something: until it accepts, the socket is nobody's,
    which Linux lists as root's.
    """
    wanted = _written(connected.getpeername()), _written(connected.getsockname())
    try:
        lines = path.read_text(encoding="ascii").splitlines()[1:]
    except OSError:
        return None
    for line in lines:
        fields = line.split()
        if (fields[1], fields[2]) == wanted:
            return int(fields[7])
    return None


def _written(address: tuple[str, int]) -> str:
    host, port = address
    return f"{int.from_bytes(socket.inet_aton(host), sys.byteorder):08X}:{port:04X}"

"""Connections that are begun before the client that uses them is loaded.

Loading it takes a command 20 ms. In these an emulated guest, which needs 5 ms of a processor to
accept a connection and greet, can do so: 9 nodes on two processors answer 7 ms earlier.
"""

from __future__ import annotations

import errno
import os
import select
import socket

from lab.wait import Deadline


def begin(host: str, port: int) -> socket.socket | None:
    """A connection to an IPv4 address that is being made; does not wait.

    None where it cannot be begun: the address is a name, it is refused at once, there are too many
    files. The caller then makes it in the usual way, and learns why not.
    """
    try:
        address = socket.inet_ntoa(socket.inet_aton(host)), port
        begun = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    except OSError:
        return None
    begun.setblocking(False)
    if begun.connect_ex(address) not in (0, errno.EINPROGRESS):
        begun.close()
        return None
    return begun


def finish(begun: socket.socket, deadline: Deadline) -> None:
    """Wait until a connection is made; raises OSError if it is not."""
    poll = select.poll()
    poll.register(begun, select.POLLOUT)
    if not poll.poll(max(deadline.left, 0.0) * 1000):
        raise TimeoutError("timed out")
    if error := begun.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
        raise OSError(error, os.strerror(error))

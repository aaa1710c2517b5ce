"""What it takes to read a large answer."""

from __future__ import annotations

import math
import socket
import threading
import time

from lab.observe.sql import _Bounded
from lab.wait import Deadline

SIZE = (1 << 24) - 1
"""Bytes of the longest packet of MySQL's protocol."""


def test_a_long_packet_takes_as_long_as_its_bytes() -> None:
    """Protects `lab sql` of large values: what was read is not copied at each part that comes."""
    here, there = socket.socketpair()
    there.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
    thread = threading.Thread(target=there.sendall, args=[b"x" * SIZE])
    connection = _Bounded(user="lab", password="", defer_connect=True)
    connection.left, connection.end = math.inf, Deadline.after(60)
    with here, there:
        connection._sock = here
        thread.start()
        began = time.thread_time()
        found = connection._read_bytes(SIZE)
        took = time.thread_time() - began
        thread.join()
        connection._sock = None
    assert found == b"x" * SIZE
    assert took < 1.0

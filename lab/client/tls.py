"""A TLS connection that one thread reads while another writes, as `websockets.sync` does."""

from __future__ import annotations

import errno
import os
import select
import ssl
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from lab.wait import Deadline

T = TypeVar("T")


class SerializedSocket(ssl.SSLSocket):
    """A TLS socket whose threads call OpenSSL in turns.

    OpenSSL allows one thread at a time for a connection (openssl-threads(7)), and Python does not
    see to it. Where a session ticket was read while a request was written, the request was lost,
    and its answer was awaited until the time was over. No thread waits for the network in its turn:
    after the handshake the socket does not block, and what waits is ``poll``.
    """

    _turn: threading.Lock
    _limit: float | None = None

    def __new__(cls, *args: Any, **named: Any) -> SerializedSocket:
        """As its base's; ``ssl`` makes the objects itself."""
        made: SerializedSocket = super().__new__(cls, *args, **named)
        made._turn = threading.Lock()
        return made

    def settimeout(self, value: float | None, /) -> None:
        """Set the seconds that the handshake, or each later read and write, may take."""
        self._limit = value
        if self.gettimeout() != 0.0:
            super().settimeout(value if self.version() is None else 0.0)

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        """As its base's; raises TimeoutError."""
        step = super().recv
        return self._in_turns(lambda: step(buflen, flags), select.POLLIN)

    def send(self, data: Any, flags: int = 0) -> int:
        """As its base's, of which ``sendall`` makes use; raises TimeoutError."""
        step = super().send
        return self._in_turns(lambda: step(data, flags), select.POLLOUT)

    def shutdown(self, how: int) -> None:
        """As its base's: it also ends TLS, which no other thread may be using then."""
        with self._turn:
            super().shutdown(how)

    def _in_turns(self, step: Callable[[], T], event: int) -> T:
        limit = self._limit
        deadline = None if limit is None else Deadline.after(limit)
        while True:
            try:
                with self._turn:
                    return step()
            except ssl.SSLWantReadError:
                wanted = select.POLLIN
            except ssl.SSLWantWriteError:
                wanted = select.POLLOUT
            except BlockingIOError:  # after ``shutdown``, without TLS
                wanted = event
            if not self._wait(wanted, deadline):
                raise TimeoutError(f"the service did not answer within {limit:g} s")

    def _wait(self, event: int, deadline: Deadline | None) -> bool:
        """Wait for ``event``; False once ``deadline`` has passed, whatever came until then."""
        handle = self.fileno()
        if handle < 0:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        poll = select.poll()
        poll.register(handle, event)
        return bool(poll.poll(None if deadline is None else deadline.left * 1000))

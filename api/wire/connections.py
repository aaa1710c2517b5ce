"""Connections on which nothing is being answered: their number and their duration are limited.

``_TimedProtocol`` extends uvicorn's ``H11Protocol``, which is not a public interface. The state
that the limits need is known only there: that a head has begun and is not complete, that an answer
is not read, and that a client has left while its next request is buffered. An ASGI application is
called after the head, and is not called while the last bytes of an answer are unread. Tests in
``tests/security/test_hostile_client.py`` fail if another version of uvicorn differs.

No connection is refused: at the limit, the oldest one of the address that has the most is closed.
So clients behind one address, such as a proxy, a NAT or the loopback, do not block each other: a
request that arrives in one piece is answered before its connection is the oldest.

uvicorn alone closes neither a silent connection nor one with half a head (0.54; watched for 60 s).
One client without a token takes all 1024 files of the process with them, and then no request of
others is accepted.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import hashlib
import ipaddress
import socket
from collections.abc import Callable
from functools import partial
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from lab.api.core.fleet import CERTIFIED

_STRANGERS = 256
_KNOWN = 512
BACKLOG = 512
"""Connections that wait to be accepted."""
AT_ONCE = 32
"""Connections that are accepted before data of earlier ones is read: far fewer than may be quiet,
so that no connection is closed whose request has arrived."""

_AHEAD = 256 << 10
"""Bytes that are read of further requests while one is being answered."""
_COLLECT = 128
"""Connections after which garbage is collected. Where TLS was not agreed, asyncio leaves a cycle
with a buffer of 256 KiB (before Python 3.13), and Python collects by the number of objects, not
by their size."""

Peer = tuple[str, int]
"""Address and port of the other end."""


class QuietConnections:
    """At most ``most`` connections; one more closes the oldest of the address that has the most.

    Connections closed elsewhere may stay in it: they soon are the oldest. For use in the
    service's loop only.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._by: dict[str, dict[Peer, Callable[[], object]]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by.values()))

    def __contains__(self, peer: Peer) -> bool:
        return peer in self._by.get(_network(peer[0]), {})

    def add(self, peer: Peer, close: Callable[[], object]) -> None:
        """Nothing is being answered there from now on."""
        self.remove(peer)
        self._by.setdefault(_network(peer[0]), {})[peer] = close
        if len(self) > self.most:
            most = max(self._by.values(), key=len)
            oldest = next(iter(most))
            shut = most[oldest]
            self.remove(oldest)
            shut()

    def close_by(self, peer: Peer, close: Callable[[], object]) -> bool:
        """Replace the function that closes a connection; False if it is closed already."""
        if peer not in self:
            return False
        self._by[_network(peer[0])][peer] = close
        return True

    def remove(self, peer: Peer) -> None:
        """Something is being answered there, or it is closed; fine if it is not known."""
        network = _network(peer[0])
        found = self._by.get(network, {})
        found.pop(peer, None)
        if not found:
            self._by.pop(network, None)


def _network(address: str) -> str:
    """The address; of IPv6 its network of 64 bits, which one client usually has."""
    if ":" not in address:
        return address
    if mapped := ipaddress.IPv6Address(address.partition("%")[0]).ipv4_mapped:
        return str(mapped)
    return str(ipaddress.ip_network((address.partition("%")[0], 64), strict=False))


class Connections:
    """All quiet connections: of strangers, and of those whose last request had a valid token."""

    def __init__(self) -> None:
        self.strangers = QuietConnections(_STRANGERS)
        self.known = QuietConnections(_KNOWN)


class Listening(socket.socket):
    """A socket that listens. Each connection is quiet from the first, also before TLS is agreed."""

    connections: Connections
    _accepted = 0

    def listen(self, backlog: int = BACKLOG) -> None:
        """See ``socket.listen``; the server asks for less, as it accepts so many at once."""
        super().listen(max(backlog, BACKLOG))

    def accept(self) -> tuple[socket.socket, Any]:
        """See ``socket.accept``."""
        connection, peer = super().accept()
        self._accepted += 1
        if self._accepted % _COLLECT == 0:
            gc.collect()
        self.connections.strangers.add(peer[:2], partial(_shut, connection))
        return connection, peer


def _shut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # closed already
        connection.shutdown(socket.SHUT_RDWR)


def _certified(transport: asyncio.Transport) -> tuple[str, str] | None:
    """The name in the certificate that the other end has shown, and its digest; None without."""
    tls = transport.get_extra_info("ssl_object")
    der = tls.getpeercert(binary_form=True) if tls else None
    found: Any = transport.get_extra_info("peercert") or {}
    names = [name for kind, name in found.get("subjectAltName", ()) if kind == "DNS"]
    return (str(names[0]), hashlib.sha256(der).hexdigest()) if names and der else None


class _TimedProtocol(H11Protocol):
    """HTTP/1.1 whose connections are counted, and on which the head of a request has a time limit.

    uvicorn has a limit between two requests, but none for a head. ``patience``: its seconds;
    ``all``: where it counts.
    """

    patience: float
    all: Connections
    _late: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None
    _quiet: QuietConnections | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if found := _certified(transport):
            self.app_state = {**self.app_state, CERTIFIED: found}
        self._quiet = self.all.strangers
        if self.client is None or not self._quiet.close_by(self.client, transport.abort):
            transport.abort()
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()
        self._settle()

    def handle_events(self) -> None:
        """See ``H11Protocol``, which stops reading once the next request begins to arrive.

        Then a disconnect would not be noticed, so we keep reading. A client that sends too much
        ahead is disconnected: it may repeat unanswered requests (RFC 9112, 9.3.2).
        """
        super().handle_events()
        if self.flow.read_paused and self.conn.their_state is h11.DONE:
            if len(self.conn.trailing_data[0]) > _AHEAD:
                self.transport.abort()
            else:
                self.flow.resume_reading()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._settle()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._abort_later()
        self._settle()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.transport.is_closing():
            self._read_again()
        self._settle()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        self._move(None)
        super().handle_websocket_upgrade(event)

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        self._read_again()
        self._move(None)
        super().connection_lost(exc)
        self._unset_keepalive_if_required()  # else it would be kept until then, if it was cut

    def _watch(self) -> None:
        if self.conn.their_state is not h11.IDLE:
            self._unwatch()  # all of the head is here
        elif self._late is None:
            self._late = self.loop.call_later(self.patience, self.transport.close)

    def _unwatch(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _abort_later(self) -> None:
        """Close the connection unless the client resumes reading within ``patience``."""
        if self._unread is None:
            self._unread = self.loop.call_later(self.patience, self.transport.abort)

    def _read_again(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _settle(self) -> None:
        """Count the connection as quiet, or not; without a token, a stalled one is quiet too."""
        if self not in self.connections:
            return  # a WebSocket has it now, or it is closed
        if self.transport.is_closing():  # once all is read that was sent
            self._abort_later()
            self._move(self.all.strangers)
            return
        known = self.cycle is not None and self.scope["state"].get("caller") is not None
        asked = self.cycle is not None and not self.cycle.response_complete
        stalls = self.conn.their_state is h11.SEND_BODY or self.flow.write_paused
        if asked and (known or not stalls):
            self._move(None)
        else:
            self._move(self.all.known if known else self.all.strangers)

    def _move(self, quiet: QuietConnections | None) -> None:
        if quiet is self._quiet or self.client is None:
            return
        if self._quiet is not None:
            self._quiet.remove(self.client)
        if quiet is not None:
            quiet.add(self.client, self.transport.abort)
        self._quiet = quiet


def protocol(patience: float, connections: Connections) -> type[H11Protocol]:
    """``_TimedProtocol`` with these settings, as uvicorn makes protocols."""
    return type("Protocol", (_TimedProtocol,), {"patience": patience, "all": connections})

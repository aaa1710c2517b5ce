"""WebSockets of a service, to nodes and for archives; the token is sent in a header."""

from __future__ import annotations

import contextlib
import json
import os
import select
import threading

from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
from websockets.http11 import Response
from websockets.sync.client import ClientConnection, connect
from websockets.sync.connection import Connection

from lab.client.problem import refusal
from lab.client.tls import SerializedSocket
from lab.client.transport import path_of, trusted
from lab.errors import HostUnfit, LabError, NotReady

PIECE = 1 << 16
_OPEN = 20.0
_CLOSE = 2.0
_LARGEST = 1 << 20
_NORMAL = (1000, 1005)


def open_tunnel(url: str, token: str, lab: str, node: str, kind: str) -> ClientConnection:
    """A connection to a node's ``kind`` (ssh, console); raises as ``open_socket`` does."""
    return open_socket(url, token, "labs", lab, "nodes", node, kind)


def open_socket(url: str, token: str, *path: str, query: str = "") -> ClientConnection:
    """A WebSocket of the service at ``url``.

    Raises the error that the service reports, and HostUnfit if it cannot be reached.
    """
    secure = url.startswith("https:")
    tls = trusted(url) if secure else None
    if tls is not None:  # two threads use the connection
        tls.sslsocket_class = SerializedSocket
    where = f"{path_of(*path)}{'?' if query else ''}{query}"
    try:
        return connect(
            f"{'wss' if secure else 'ws'}:{url.partition(':')[2]}{where}",
            additional_headers={"Authorization": f"Bearer {token}"},
            user_agent_header="lab",
            ssl=tls,
            compression=None,
            open_timeout=_OPEN,
            close_timeout=_CLOSE,
            max_size=_LARGEST,
        )
    except InvalidStatus as error:
        raise _refused(error.response) from None
    except (OSError, WebSocketException) as error:
        raise HostUnfit(
            f"the service at {url} cannot be reached",
            hint="check LAB_URL, and that proxies pass WebSockets on",
            details=[str(error) or type(error).__name__],
        ) from None


def relay(connection: Connection, source: int, sink: int, *, leave: bytes = b"") -> None:
    """Copy bytes from the file ``source`` and to the file ``sink`` until either side ends.

    ``leave``: bytes of ``source`` that end it. Raises NotReady with the service's reason.
    """
    ended, end = os.pipe()
    thread = threading.Thread(target=_receive, args=(connection, sink, end), daemon=True)
    thread.start()
    try:
        with contextlib.suppress(ConnectionClosed):
            while ended not in select.select([source, ended], [], [])[0]:
                data = os.read(source, PIECE)
                before, found, _ = data.partition(leave) if leave else (data, b"", b"")
                if before:
                    connection.send(before)
                if found or not data:
                    break
    finally:
        connection.close()
        thread.join(_CLOSE)
        os.close(ended)
    if connection.close_code not in _NORMAL:
        raise NotReady(
            "the connection to the node ended",
            details=[connection.close_reason or "the connection to the service broke"],
        )


def _receive(connection: Connection, sink: int, end: int) -> None:
    """Write received data to ``sink``; close ``end`` at the end."""
    try:
        with contextlib.suppress(ConnectionClosed, OSError):
            for message in connection:
                left = message if isinstance(message, bytes) else message.encode()
                while left:
                    left = left[os.write(sink, left) :]
    finally:
        os.close(end)


def _refused(response: Response) -> LabError:
    try:
        problem = json.loads(bytes(response.body or b""))
    except (ValueError, RecursionError):
        problem = None
    return refusal(
        problem, status=response.status_code, retry_after=response.headers.get("Retry-After", "")
    )

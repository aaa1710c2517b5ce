"""Connections as the kernel lists them: also those that no program has accepted or read."""

from __future__ import annotations

import socket
import sys
import time

import pytest

from lab.errors import HostUnfit
from lab.host import sockets

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sock_diag is Linux's")


def test_connections_and_their_data() -> None:
    """Protects clients of a lab that is asleep: each of these is what wakes it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        assert sockets.listening({port, port + 1}) == {port}
        assert sockets.connections({port}) == []
        began = time.monotonic()
        with socket.create_connection(("127.0.0.1", port)) as client:  # nobody accepts it
            (found,) = sockets.connections({port})
            assert (found.port, sockets.connections({port + 1})) == (port, [])
            assert found.quiet <= time.monotonic() - began + 0.02
            time.sleep(0.3)
            (found,) = sockets.connections({port})
            assert 0.25 < found.quiet <= time.monotonic() - began + 0.02
            client.send(b"x")  # nobody reads it
            sent = time.monotonic()
            (found,) = sockets.connections({port})
            assert found.quiet <= time.monotonic() - sent + 0.02
        assert sockets.connections({port}) == [], "its client has closed it"


def test_arrivals() -> None:
    """Protects clients of a lab that is asleep: each that comes changes what is looked at first."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        before = arrived()
        with socket.create_connection(server.getsockname()) as client:
            opened = arrived()
            assert opened[0] > before[0]
            assert opened[1] > before[1]
            client.send(b"x")
            assert arrived()[1] > opened[1]


def arrived() -> tuple[int, int]:
    found = sockets.arrivals()
    assert found is not None
    return found


def test_many() -> None:
    """Protects from an answer of several messages: 200 connections, with their attributes."""
    with socket.create_server(("127.0.0.1", 0), backlog=256) as server:
        port: int = server.getsockname()[1]
        clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(200)]
        try:
            assert len(sockets.connections({port})) == 200
        finally:
            for one in clients:
                one.close()


def test_another_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "freebsd14")
    with pytest.raises(HostUnfit, match="on Linux only"):
        sockets.connections({1})

"""The client and certificates."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from websockets.asyncio.server import ServerConnection, serve

from lab.client import Client
from lab.client.tls import SerializedSocket
from lab.client.tunnel import open_socket, open_tunnel
from lab.errors import HostUnfit, InvalidSpec
from lab.run import run
from tests.support.answering import answering
from tests.support.serve_world import site

REFUSED = (422, "application/problem+json", b'{"status": 422, "detail": "enough"}')


def certified(directory: Path) -> tuple[Path, Path]:
    """A certificate for the loopback, and its key."""
    cert, key = directory / "tls.crt", directory / "tls.key"
    run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
         "-nodes", "-keyout", str(key), "-out", str(cert), "-days", "2",
         "-subj", "/CN=x", "-addext", "subjectAltName=IP:127.0.0.1"], timeout=30)  # fmt: skip
    return cert, key


def test_only_the_service_itself_gets_the_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects the token from a man in the middle: no certificate, no request, an error at once."""
    cert, key = certified(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(cert, key)
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    with answering(REFUSED, tls=tls) as (url, heard):
        began = time.monotonic()
        with Client(url, "x") as stranger, pytest.raises(HostUnfit) as failed:
            stranger.labs()
        assert "certificate" in failed.value.details[0]
        assert time.monotonic() - began < 2.5
        assert heard == []
        monkeypatch.setenv("SSL_CERT_FILE", str(cert))
        with Client(url, "x") as known, pytest.raises(InvalidSpec, match="enough"):
            known.labs()
        assert [headers["Authorization"] for headers in heard] == ["Bearer x"]


def test_tunnels_take_the_same_certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects shells and archives, whose token would go to anybody else."""
    cert, key = certified(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(cert))
    with site(tmp_path / "home", tls_cert=str(cert), tls_key=str(key)) as here:
        url = str(here.client.base_url)
        here.make("shop")
        with open_tunnel(url, here.admin, "shop", "n1", "console") as connection:
            assert "lab-shop-n1" in str(connection.recv(timeout=10, decode=True))
        monkeypatch.delenv("SSL_CERT_FILE")
        with pytest.raises(HostUnfit, match="cannot be reached") as failed:
            open_tunnel(url, here.admin, "shop", "n1", "console")
    assert "certificate" in failed.value.details[0].lower()


def test_a_service_sends_nothing_after_the_handshake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects tunnels, whose request was lost if a ticket came just then: one in a hundred."""
    cert, key = certified(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(cert))
    with site(tmp_path / "home", tls_cert=str(cert), tls_key=str(key)) as here:
        tls, port = ssl.create_default_context(), here.client.base_url.port
        assert port is not None
        with (
            socket.create_connection(("127.0.0.1", port), timeout=10) as plain,
            tls.wrap_socket(plain, server_hostname="127.0.0.1") as there,
        ):
            there.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert there.recv(1024).startswith(b"HTTP/1.1 ")
            assert there.version() == "TLSv1.3"
            assert there.session is None or not there.session.has_ticket


@contextmanager
def echoing(tls: ssl.SSLContext) -> Iterator[str]:
    """The URL of a service that sends each message of a WebSocket back."""
    ready, urls, loop = threading.Event(), [], asyncio.new_event_loop()
    over = asyncio.Event()

    async def echo(connection: ServerConnection) -> None:
        async for message in connection:
            await connection.send(message)

    async def run_it() -> None:
        async with serve(echo, "127.0.0.1", 0, ssl=tls, compression=None) as server:
            urls.append(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}")
            ready.set()
            await over.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(run_it()))
    thread.start()
    try:
        assert ready.wait(10)
        yield urls[0]
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(10)
        loop.close()


def test_a_ticket_does_not_meet_a_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects tunnels through a proxy with TLS, which sends tickets whatever the service does.

    Requests were lost, or the connection broke: one thread read the tickets, another wrote.
    """
    cert, key = certified(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(cert))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(cert, key)
    tls.num_tickets = 400
    data = bytes(range(256)) * 16
    with echoing(tls) as url:
        for _ in range(100):
            with open_socket(url, "token", "any") as connection:
                for _ in range(50):
                    connection.send(data)
                assert all(connection.recv(timeout=10) == data for _ in range(50))


def test_the_limit_of_a_read_is_kept(tmp_path: Path) -> None:
    """Protects who closes a tunnel: what arrives without data, a byte at a time, is no answer."""
    cert, key = certified(tmp_path)
    tls, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    tls.load_cert_chain(cert, key)
    client.load_verify_locations(cert)
    client.sslsocket_class = SerializedSocket
    over = threading.Event()

    def trickle(raw: socket.socket) -> None:
        with tls.wrap_socket(raw, server_side=True, suppress_ragged_eofs=True) as there:
            ours = socket.socket(fileno=os.dup(there.fileno()))
            with ours, suppress(OSError):
                ours.sendall(b"\x17\x03\x03\x40\x00")  # the head of a record of 16 KiB
                while not over.wait(0.05):
                    ours.sendall(b"x")

    ours, theirs = socket.socketpair()
    thread = threading.Thread(target=trickle, args=(theirs,))
    thread.start()
    try:
        with client.wrap_socket(ours, server_hostname="127.0.0.1") as there:
            there.settimeout(0.5)
            began = time.monotonic()
            with pytest.raises(TimeoutError, match=r"within 0\.5 s"):
                there.recv(1024)
            assert time.monotonic() - began < 3
    finally:
        over.set()
        thread.join(10)

"""A long transfer to another host, through a real server."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import uvicorn
from fastapi import FastAPI, WebSocket
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from lab.api.wire.giving import SocketTalk, serve_archive
from lab.errors import NotFound
from lab.wait import Deadline, until


@contextmanager
def giving(work: Callable[[SocketTalk], object]) -> Iterator[str]:
    """The URL at which ``work`` talks to whoever connects; pings come each 0.3 s."""
    app = FastAPI()

    @app.websocket("/")
    async def give(websocket: WebSocket) -> None:
        await serve_archive(websocket, work)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        config = uvicorn.Config(
            app, ws="websockets-sansio", log_config=None, ws_ping_interval=0.3, ws_ping_timeout=0.6
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        try:
            assert until(lambda: server.started, Deadline.after(20))
            yield f"ws://127.0.0.1:{listening.getsockname()[1]}/"
        finally:
            server.should_exit = True
            thread.join(20)


def test_it_is_not_taken_for_broken() -> None:
    """Protects transfers that take long: the other host reports while nobody listens to it."""
    heard: list[bytes] = []

    def work(talk: SocketTalk) -> None:
        for _ in range(60):
            talk.write(b"x" * 1000)
            time.sleep(0.05)
        talk.close()
        heard.extend(talk.line(1000) for _ in range(3))

    found = b""
    with giving(work) as url, connect(url, ping_interval=None, compression=None) as peer:
        while piece := peer.recv(timeout=10):
            assert isinstance(piece, bytes)
            if len(found) % 20_000 == 0:
                peer.send(f"doing {len(found)}")
            found += piece
        assert until(lambda: len(heard) == 3, Deadline.after(10))
    assert len(found) == 60_000
    assert heard[1] == b"doing 20000"


def test_who_disconnects_ends_the_work() -> None:
    """Protects a host from threads that wait for hosts that are gone."""
    ended = threading.Event()

    def work(talk: SocketTalk) -> None:
        try:
            talk.line(1000)
        finally:
            ended.set()

    with giving(work) as url:
        with connect(url, compression=None):
            time.sleep(0.2)
        assert ended.wait(10)


def test_a_failure_is_said() -> None:
    """Protects the other host from a silence that it would have to wait out."""

    def work(talk: SocketTalk) -> None:
        talk.write(b"begin")
        raise NotFound("there is no such image here")

    with giving(work) as url, connect(url, compression=None) as peer:
        assert peer.recv(timeout=10) == b"begin"
        assert "no such image" in str(peer.recv(timeout=10))
        with suppress(ConnectionClosed):
            peer.recv(timeout=10)

"""Streams beside busy neighbours, and a webhook whose answer trickles."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from lab.api.events import webhooks
from lab.api.events.webhooks import NotDelivered, Webhook
from lab.api.wire import sse
from tests.support.serve_world import site


def test_a_stream_says_that_it_is_alive_whatever_others_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects streams from proxies that end idle ones: a busy project has many events."""
    monkeypatch.setattr(sse, "_ALIVE_EVERY", 0.5)
    over = threading.Event()
    with site(tmp_path) as here:
        token = here.token("quiet", project="quiet")

        def busy() -> None:
            while not over.wait(0.05):
                here.service.core.notifier.notify("job:of-another")

        thread = threading.Thread(target=busy)
        thread.start()
        try:
            head = {"Authorization": f"Bearer {token}", "Accept": sse.MEDIA_TYPE}
            with here.client.stream("GET", "/v1/events", headers=head, timeout=5.0) as answer:
                lines = answer.iter_lines()
                assert next(line for line in lines if line.startswith(":")) == ": alive"
        finally:
            over.set()
            thread.join()


@contextmanager
def _trickling() -> Iterator[int]:
    """The port of a server that sends a byte of its answer now and then, without end."""
    over = threading.Event()

    def serve(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 2")
            while not over.wait(0.2):
                connection.sendall(b"0")

    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            with suppress(OSError):
                while True:
                    threading.Thread(target=serve, args=[server.accept()[0]], daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield server.getsockname()[1]
        over.set()


def test_a_webhook_that_trickles_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects other messages: few are sent at the same time, and each has a limit of time."""
    monkeypatch.setattr(webhooks, "_TIMEOUT", 1.0)
    with _trickling() as port:
        hook = Webhook(f"http://127.0.0.1:{port}/", b"0123456789abcdef", lambda _: None)
        began, raised = time.monotonic(), list[BaseException]()

        def send() -> None:
            try:
                hook.send("webhook-1", {"event": "ready"})
            except NotDelivered as error:
                raised.append(error)

        thread = threading.Thread(target=send, daemon=True)
        thread.start()
        thread.join(6.0)
        assert not thread.is_alive()
        assert raised
        assert time.monotonic() - began < 5.0

"""One archive through a WebSocket to a host of the same fleet, which says what it wants of it.

Binary messages are the archive, an empty one is its end; texts are the other host's lines
(``lab.exchange.talk``), or at last the problem for which it gets nothing.
"""

from __future__ import annotations

import asyncio
import json
import queue
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import anyio
from fastapi import WebSocket, WebSocketDisconnect

from lab.api.core.problem import internal, problem
from lab.api.telemetry.logs import log
from lab.errors import HostUnfit, LabError

STALL = 600.0
"""Seconds that the other host may take nothing, or say nothing when it is asked."""


_LINES = 10_000
"""Lines that may wait to be read: a step of an import says one."""


class Gone(HostUnfit):
    """The other host has disconnected, or is silent."""


class SocketTalk:
    """The other host, as a thread talks to it.

    ``read`` takes what it says as it comes: while nobody reads, the answers to pings are not read
    either, and the connection is taken for broken.
    """

    def __init__(self, socket: WebSocket, loop: asyncio.AbstractEventLoop) -> None:
        self._socket, self._loop = socket, loop
        self._said: queue.Queue[str | None] = queue.Queue(_LINES)

    async def read(self) -> None:
        """Take what the other host says, until it disconnects or says too much."""
        with suppress(queue.Full):
            while (message := await self._socket.receive())["type"] == "websocket.receive":
                self._said.put_nowait(message.get("text") or "")
        with suppress(queue.Full):
            self._said.put_nowait(None)

    def write(self, data: bytes, /) -> int:
        """Send a piece of the archive; raises Gone."""
        if data:
            self._send(data)
        return len(data)

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        """The archive is at its end; raises Gone."""
        self._send(b"")

    def line(self, limit: int) -> bytes:
        """The next line that the other host says; raises Gone, also if it is too long."""
        try:
            text = self._said.get(timeout=STALL)
        except queue.Empty:
            raise _silent() from None
        if text is None or len(text) > limit:
            self._said.put(None)
            raise Gone("the other host has disconnected")
        return text.encode()

    def _send(self, data: bytes) -> None:
        running = asyncio.run_coroutine_threadsafe(self._socket.send_bytes(data), self._loop)
        try:
            running.result(STALL)
        except TimeoutError:
            running.cancel()
            raise _silent() from None
        except (OSError, RuntimeError, WebSocketDisconnect) as error:
            raise Gone("the other host has disconnected") from error


def _silent() -> Gone:
    return Gone(f"the other host was silent for {STALL:.0f} s")


async def serve_archive(socket: WebSocket, work: Callable[[SocketTalk], object]) -> None:
    """Let ``work`` talk to the other host in a thread of its own, and say if it failed."""
    await socket.accept()
    talk = SocketTalk(socket, asyncio.get_running_loop())

    def run() -> dict[str, Any] | None:
        try:
            work(talk)
        except Gone:
            return None
        except LabError as error:
            return dict(problem(error))
        except Exception as error:  # noqa: BLE001  # whatever it is: the other side gets a problem
            log.error("an archive was not given to another host", exc_info=error)
            return dict(internal())
        return None

    reading = asyncio.ensure_future(talk.read())
    try:
        found = await anyio.to_thread.run_sync(run, limiter=anyio.CapacityLimiter(1))
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
    with suppress(OSError, RuntimeError, WebSocketDisconnect):  # it is gone
        if found is not None:
            await socket.send_text(json.dumps(found))
        await socket.close()

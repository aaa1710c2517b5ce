"""One archive through a WebSocket to a host of the same fleet, which says what it wants of it.

Binary messages are the archive, an empty one is its end; texts are the other host's lines
(``lab.exchange.talk``), or at last the problem for which it gets nothing.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

import anyio
from fastapi import WebSocket, WebSocketDisconnect

from lab.api.core.problem import internal, problem
from lab.api.telemetry.logs import log
from lab.errors import HostUnfit, LabError

T = TypeVar("T")

STALL = 600.0
"""Seconds that the other host may take nothing, or say nothing when it is asked."""


class Gone(HostUnfit):
    """The other host has disconnected, or is silent."""


class SocketTalk:
    """The other host, as a thread talks to it."""

    def __init__(self, socket: WebSocket, loop: asyncio.AbstractEventLoop) -> None:
        self._socket, self._loop = socket, loop

    def write(self, data: bytes, /) -> int:
        """Send a piece of the archive; raises Gone."""
        if data:
            self._do(self._socket.send_bytes(data))
        return len(data)

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        """The archive is at its end; raises Gone."""
        self._do(self._socket.send_bytes(b""))

    def line(self, limit: int) -> bytes:
        """The next line that the other host says; raises Gone, also if it is too long."""
        message = self._do(self._socket.receive())
        text = message.get("text")
        if message["type"] != "websocket.receive" or text is None or len(text) > limit:
            raise Gone("the other host has disconnected")
        return str(text).encode()

    def _do(self, what: Coroutine[Any, Any, T]) -> T:
        running = asyncio.run_coroutine_threadsafe(what, self._loop)
        try:
            return running.result(STALL)
        except TimeoutError:
            running.cancel()
            raise Gone(f"the other host was silent for {STALL:.0f} s") from None
        except (OSError, RuntimeError, WebSocketDisconnect) as error:
            raise Gone("the other host has disconnected") from error


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

    found = await anyio.to_thread.run_sync(run, limiter=anyio.CapacityLimiter(1))
    with suppress(OSError, RuntimeError, WebSocketDisconnect):  # it is gone
        if found is not None:
            await socket.send_text(json.dumps(found))
        await socket.close()

"""Bytes between a WebSocket and a connection or terminal, until one of them is closed.

A tunnel also ends when its token expires, when it is idle, and with the service.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import field
from typing import Any

from fastapi import WebSocket, WebSocketDisconnect

from lab.api.core.threads import in_thread
from lab.values import dataclass

PIECE = 1 << 16
_LOOK_EVERY = 0.5
_CHECK_EVERY = 5.0
"""Seconds between two checks of the token."""
_GOING_AWAY, _REFUSED, _NORMAL = 1001, 1008, 1000
"""Status codes of closing a WebSocket (RFC 6455)."""

Ending = tuple[int, str]


@dataclass
class Tunnel:
    """A WebSocket, and a file (a connection or a terminal) that is not blocking."""

    socket: WebSocket
    file: int
    allowed: Callable[[], bool]
    """Whether the token is valid."""
    stopping: Callable[[], bool]
    """Whether the service ends."""
    idle: float
    """Seconds without a byte after which it is closed."""
    carried: int = 0
    """Bytes so far."""
    _active: float = field(default_factory=time.monotonic)

    async def run(self) -> str:
        """Transfer bytes until the end; why it ended, empty if one side closed."""
        os.set_blocking(self.file, False)
        tasks = [asyncio.ensure_future(one()) for one in (self._out, self._in, self._watch)]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        code, why = next((ended for task in done if (ended := _ending(task))[1]), (_NORMAL, ""))
        with suppress(RuntimeError, WebSocketDisconnect):  # closed already
            await self.socket.close(code, why)
        return why

    async def _out(self) -> Ending:
        """From the file to the WebSocket."""
        while data := await read(self.file):
            self._count(data)
            await self.socket.send_bytes(data)
        return _NORMAL, ""

    async def _in(self) -> Ending:
        """From the WebSocket to the file."""
        while (message := await self.socket.receive())["type"] == "websocket.receive":
            data = message.get("bytes") or (message.get("text") or "").encode()
            self._count(data)
            await write(self.file, data)
        return _NORMAL, ""

    async def _watch(self) -> Ending:
        return await watch(self.allowed, self.stopping, self.idle, lambda: self._active)

    def _count(self, data: bytes) -> None:
        self.carried += len(data)
        self._active = time.monotonic()


async def watch(
    allowed: Callable[[], bool],
    stopping: Callable[[], bool],
    idle: float,
    active: Callable[[], float],
) -> Ending:
    """Wait until a WebSocket must end: see ``Tunnel``; ``active``: the time of the last byte."""
    checked = time.monotonic()
    while True:
        await asyncio.sleep(min(_LOOK_EVERY, idle / 4))
        now = time.monotonic()
        if stopping():
            return _GOING_AWAY, "the service is stopping"
        if now - active() >= idle:
            return _REFUSED, f"idle for {idle:g} s"
        if now - checked >= _CHECK_EVERY:
            checked = now
            if not await in_thread(allowed):
                return _REFUSED, "the token is no longer valid"


async def read(file: int) -> bytes:
    """The next bytes; empty at the end, which terminals and connections report as errors."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            return os.read(file, PIECE)
        except BlockingIOError:
            await _until(file, loop.add_reader, loop.remove_reader)
        except OSError:
            return b""


async def write(file: int, data: bytes) -> None:
    """Write all of ``data``; raises OSError if the other end is closed."""
    loop = asyncio.get_running_loop()
    while data:
        try:
            data = data[os.write(file, data) :]
        except BlockingIOError:
            await _until(file, loop.add_writer, loop.remove_writer)


async def _until(file: int, add: Callable[..., object], remove: Callable[[int], object]) -> None:
    """Wait until ``file`` is ready, as ``add`` reports."""
    ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def report() -> None:
        if not ready.done():
            ready.set_result(None)

    add(file, report)
    try:
        await ready
    finally:
        remove(file)


def _ending(task: asyncio.Future[Any]) -> Ending:
    """How a direction ended; a closed side is no failure."""
    error = task.exception()
    if error is None:
        found: Ending = task.result()
        return found
    if isinstance(error, OSError | RuntimeError | WebSocketDisconnect):
        return _NORMAL, ""
    raise error

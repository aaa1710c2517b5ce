"""Archives through WebSockets: bytes as they are, and what is told beside them as JSON.

A message of bytes is a piece of the archive; a text is one of ``{"event": ...}`` (a step of the
lifecycle), ``{"done": ...}`` or ``{"problem": ...}``, the last of all. Who sends an archive ends it
with an empty text. Work is done in a thread that reads or writes a pipe: if the other side goes,
the pipe is closed, and the lifecycle undoes what it has begun.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import Callable, Coroutine
from dataclasses import asdict, dataclass, field
from typing import Any

import anyio
from fastapi import WebSocket, WebSocketDisconnect

from lab.api.http import problems
from lab.api.http.tunnel import read, watch, write
from lab.api.telemetry.logs import log
from lab.errors import LabError
from lab.progress import Event, Listener

_NORMAL = 1000

Work = Callable[[int, Listener], object]
"""Reads an archive from a file, or writes one to it, and closes that; gives a view."""


@dataclass
class Transfer:
    """An archive on its way. ``allowed``, ``stopping``, ``idle`` are as in ``Tunnel``."""

    socket: WebSocket
    allowed: Callable[[], bool]
    stopping: Callable[[], bool]
    idle: float
    carried: int = 0
    _pipe: int = -1
    _active: float = field(default_factory=time.monotonic)

    async def send(self, work: Work) -> str:
        """Send the archive that ``work`` writes; why it ended early, if it did."""
        self._pipe, its = os.pipe()
        return await self._run(work, its, self._out(), self._until_gone())

    async def receive(self, work: Work) -> str:
        """Let ``work`` read the archive that comes; why it ended early, if it did."""
        its, self._pipe = os.pipe()
        return await self._run(work, its, asyncio.sleep(0), self._in())

    async def _run(
        self,
        work: Work,
        its: int,
        carried: Coroutine[Any, Any, None],
        gone: Coroutine[Any, Any, None],
    ) -> str:
        """``work`` and ``carried`` to their ends, or to that of ``gone``: nobody is there."""
        os.set_blocking(self._pipe, False)
        loop, events = asyncio.get_running_loop(), asyncio.Queue[Event]()

        def hear(event: Event) -> None:
            loop.call_soon_threadsafe(events.put_nowait, event)

        job = asyncio.ensure_future(_in_thread(work, its, hear))
        whole = asyncio.gather(asyncio.shield(job), carried)
        watching = asyncio.ensure_future(
            watch(self.allowed, self.stopping, self.idle, lambda: self._active)
        )
        ends = [whole, watching, asyncio.ensure_future(gone)]
        telling = asyncio.ensure_future(self._tell(events))
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            code, why = watching.result() if watching.done() else (_NORMAL, "")
        finally:
            for task in (*ends, telling):
                task.cancel()
            await asyncio.gather(*ends, telling, return_exceptions=True)
            self._shut()
            told = await job
        if not why:
            while not events.empty():
                await self._text(event=asdict(events.get_nowait()))
            await self._text(**told)
        with contextlib.suppress(RuntimeError, WebSocketDisconnect):  # it is gone
            await self.socket.close(code, why)
        return why

    async def _out(self) -> None:
        """The archive from the pipe to the other side."""
        while data := await read(self._pipe):
            self._count(data)
            await self.socket.send_bytes(data)

    async def _in(self) -> None:
        """The archive from the other side into the pipe, which is closed behind it."""
        while (message := await self.socket.receive())["type"] == "websocket.receive":
            data = message.get("bytes")
            if not data:
                self._shut()
                return await self._until_gone()
            self._count(data)
            try:
                await write(self._pipe, data)
            except OSError:  # it is not read any more
                return await self._until_gone()
        return None

    async def _until_gone(self) -> None:
        """Wait until the other side is gone."""
        while (await self.socket.receive())["type"] == "websocket.receive":
            pass

    def _shut(self) -> None:
        """Close our end of the pipe, once."""
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1

    async def _tell(self, events: asyncio.Queue[Event]) -> None:
        while True:
            event = await events.get()
            self._active = time.monotonic()
            await self._text(event=asdict(event))

    async def _text(self, **told: Any) -> None:
        with contextlib.suppress(RuntimeError, WebSocketDisconnect):  # it is gone
            await self.socket.send_text(json.dumps(told))

    def _count(self, data: bytes) -> None:
        self.carried += len(data)
        self._active = time.monotonic()


async def _in_thread(work: Work, file: int, hear: Listener) -> dict[str, Any]:
    """What came of ``work``, as it is told."""

    def run() -> dict[str, Any]:
        try:
            return {"done": vars(work(file, hear))}
        except LabError as error:
            return {"problem": problems.problem(error)}
        except BrokenPipeError:
            return {}  # nobody reads it any more
        except Exception as error:  # noqa: BLE001  # whatever it is: the other side is to know
            log.error("a transfer failed", exc_info=error)
            return {"problem": problems.internal()}

    return await anyio.to_thread.run_sync(run, limiter=anyio.CapacityLimiter(1))

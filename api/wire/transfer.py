"""Archives through WebSockets: bytes as they are, and events as JSON.

A binary message is a piece of the archive; a text is one of ``{"event": ...}`` (a step of the
lifecycle), ``{"done": ...}`` or ``{"problem": ...}``, the last of all. The sender of an archive
ends it with an empty text. A thread of the lifecycle reads or writes a pipe: if the other side
disconnects, the pipe is closed, and the lifecycle undoes what it has begun.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import Callable, Coroutine
from dataclasses import asdict, field
from typing import Any

import anyio
from fastapi import WebSocket, WebSocketDisconnect

from lab.api.core.problem import internal, problem
from lab.api.http.answers import answer
from lab.api.telemetry.logs import log
from lab.api.wire.tunnel import read, watch, write
from lab.errors import LabError
from lab.progress import Event, Listener
from lab.values import dataclass
from lab.views.archives import ExportView, ImportView
from lab.views.datasets import UploadView

_NORMAL = 1000

Work = Callable[[int, Listener], ExportView | ImportView | UploadView]
"""Reads an archive from a file, or writes one to it, and closes the file."""


@dataclass
class Transfer:
    """One archive that is sent or received through a WebSocket."""

    socket: WebSocket
    allowed: Callable[[], bool]
    """Whether the token is valid."""
    stopping: Callable[[], bool]
    """Whether the service ends."""
    idle: float
    """Seconds without ``least`` bytes after which it is closed."""
    least: int = 1
    """Bytes that the other side must send within ``idle`` seconds; else it is idle."""
    carried: int = 0
    whole: bool = False
    """Whether the other side reported that it sent all of it."""
    _pipe: int = -1
    _active: float = field(default_factory=time.monotonic)
    _marked: int = 0

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
        """Run ``work`` and ``carried`` to their ends, or until ``gone``: the client has left."""
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
        reporting = asyncio.ensure_future(self._report(events))
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            code, why = watching.result() if watching.done() else (_NORMAL, "")
        finally:
            for task in (*ends, reporting):
                task.cancel()
            await asyncio.gather(*ends, reporting, return_exceptions=True)
            self._shut()
            result = await job
        if not why:
            while not events.empty():
                await self._text(event=asdict(events.get_nowait()))
            await self._text(**result)
        with contextlib.suppress(RuntimeError, WebSocketDisconnect):  # it is gone
            await self.socket.close(code, why)
        return why

    async def _out(self) -> None:
        """The archive from the pipe to the other side."""
        while data := await read(self._pipe):
            self._count(data)
            await self.socket.send_bytes(data)

    async def _in(self) -> None:
        """The archive from the other side into the pipe, which is closed at its end."""
        while (message := await self.socket.receive())["type"] == "websocket.receive":
            data = message.get("bytes")
            if not data:
                self.whole = True
                self._active = time.monotonic()
                self._shut()
                return await self._until_gone()
            self._count(data)
            try:
                await write(self._pipe, data)
            except OSError:  # the reader has closed it
                return await self._until_gone()
        return None

    async def _until_gone(self) -> None:
        """Wait until the other side disconnects."""
        while (await self.socket.receive())["type"] == "websocket.receive":
            pass

    def _shut(self) -> None:
        """Close our end of the pipe, once."""
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1

    async def _report(self, events: asyncio.Queue[Event]) -> None:
        while True:
            event = await events.get()
            self._active = time.monotonic()
            await self._text(event=asdict(event))

    async def _text(self, **message: Any) -> None:
        with contextlib.suppress(RuntimeError, WebSocketDisconnect):  # it is gone
            await self.socket.send_text(json.dumps(message))

    def _count(self, data: bytes) -> None:
        self.carried += len(data)
        if self.carried - self._marked >= self.least:
            self._marked, self._active = self.carried, time.monotonic()


async def _in_thread(work: Work, file: int, hear: Listener) -> dict[str, Any]:
    """The result of ``work``, as its last message."""

    def run() -> dict[str, Any]:
        try:
            return {"done": answer(work(file, hear)).model_dump(mode="json")}
        except LabError as error:
            return {"problem": problem(error)}
        except BrokenPipeError:
            return {}  # the other side has disconnected
        except Exception as error:  # noqa: BLE001  # whatever it is: the other side gets a problem
            log.error("a transfer failed", exc_info=error)
            return {"problem": internal()}

    return await anyio.to_thread.run_sync(run, limiter=anyio.CapacityLimiter(1))

"""Connections on which a request does not come: they are closed, as there are only so many.

uvicorn has a time limit between two requests, but none for the head of one.
"""

from __future__ import annotations

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol


def protocol(patience: float) -> type[H11Protocol]:
    """HTTP/1.1 on which the head of a request takes at most ``patience`` seconds."""

    class Patient(H11Protocol):
        _late: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._watch()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            self._unwatch()
            super().connection_lost(exc)

        def _watch(self) -> None:
            if self.conn.their_state is not h11.IDLE:
                self._unwatch()  # all of the head is here
            elif self._late is None:
                self._late = self.loop.call_later(patience, self.transport.close)

        def _unwatch(self) -> None:
            if self._late is not None:
                self._late.cancel()
                self._late = None

    return Patient

"""Waking those who wait for something to happen, from any thread."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import defaultdict

HOST = "*"
"""The topic that every ring rings too."""


class Bell:
    """Who waits for a topic is woken when it rings; what happened is read from the record.

    Waiting is for coroutines, ringing for any thread.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._waiting: dict[str, set[tuple[asyncio.AbstractEventLoop, asyncio.Event]]]
        self._waiting = defaultdict(set)
        self.closed = False

    def ring(self, *topics: str) -> None:
        """Wake those who wait for one of ``topics``, or for anything."""
        with self._guard:
            woken = [one for topic in {*topics, HOST} for one in self._waiting.get(topic, ())]
        for loop, event in woken:
            with contextlib.suppress(RuntimeError):  # its loop has ended
                loop.call_soon_threadsafe(event.set)

    def close(self) -> None:
        """Wake everybody: nothing will happen any more."""
        self.closed = True
        with self._guard:
            topics = list(self._waiting)
        self.ring(*topics)

    def listen(self, topic: str) -> Ear:
        """Be woken by ``topic`` from now on; to be used in a ``with`` block."""
        return Ear(self, topic)

    def add(self, topic: str, one: tuple[asyncio.AbstractEventLoop, asyncio.Event]) -> None:
        """Let ``one`` wait for a topic."""
        with self._guard:
            self._waiting[topic].add(one)

    def remove(self, topic: str, one: tuple[asyncio.AbstractEventLoop, asyncio.Event]) -> None:
        """Undo ``add``."""
        with self._guard:
            self._waiting[topic].discard(one)
            if not self._waiting[topic]:
                del self._waiting[topic]


class Ear:
    """One that listens. What rings between two waits is not missed."""

    def __init__(self, bell: Bell, topic: str) -> None:
        self._bell = bell
        self._topic = topic
        self._event = asyncio.Event()
        self._one = (asyncio.get_running_loop(), self._event)

    def __enter__(self) -> Ear:
        self._bell.add(self._topic, self._one)
        return self

    def __exit__(self, *_: object) -> None:
        self._bell.remove(self._topic, self._one)

    def wake(self) -> None:
        """End the wait, or the next one; for use in its loop."""
        self._event.set()

    async def wait(self, seconds: float) -> bool:
        """Wait until it rings, at most ``seconds``; whether it did."""
        try:
            await asyncio.wait_for(self._event.wait(), seconds)
        except asyncio.TimeoutError:
            return False
        self._event.clear()
        return True

"""Waking coroutines that wait for an event, from any thread."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import defaultdict

HOST = "*"
"""The topic that every notification is about as well."""


class Notifier:
    """Wakes the subscribers of a topic; what happened is read from the record.

    Subscriptions are for coroutines, notifications for any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[str, set[tuple[asyncio.AbstractEventLoop, asyncio.Event]]]
        self._waiting = defaultdict(set)

    def notify(self, *topics: str) -> None:
        """Wake the subscribers of ``topics``, and those of ``HOST``."""
        with self._lock:
            woken = [one for topic in {*topics, HOST} for one in self._waiting.get(topic, ())]
        for loop, event in woken:
            with contextlib.suppress(RuntimeError):  # its loop has ended
                loop.call_soon_threadsafe(event.set)

    def close(self) -> None:
        """Wake all subscribers: the service ends."""
        with self._lock:
            topics = list(self._waiting)
        self.notify(*topics)

    def subscribe(self, topic: str) -> Subscription:
        """A subscription to ``topic``, for a ``with`` block."""
        return Subscription(self, topic)

    def add(self, topic: str, one: tuple[asyncio.AbstractEventLoop, asyncio.Event]) -> None:
        """Set the event of ``one`` at each notification about a topic."""
        with self._lock:
            self._waiting[topic].add(one)

    def remove(self, topic: str, one: tuple[asyncio.AbstractEventLoop, asyncio.Event]) -> None:
        """Undo ``add``."""
        with self._lock:
            self._waiting[topic].discard(one)
            if not self._waiting[topic]:
                del self._waiting[topic]


class Subscription:
    """One subscriber. A notification between two waits is not missed."""

    def __init__(self, notifier: Notifier, topic: str) -> None:
        self._notifier = notifier
        self._topic = topic
        self._event = asyncio.Event()
        self._one = (asyncio.get_running_loop(), self._event)

    def __enter__(self) -> Subscription:
        self._notifier.add(self._topic, self._one)
        return self

    def __exit__(self, *_: object) -> None:
        self._notifier.remove(self._topic, self._one)

    def wake(self) -> None:
        """End the wait, or the next one; for use in its loop."""
        self._event.set()

    async def wait(self, seconds: float) -> bool:
        """Wait for a notification, at most ``seconds``; whether there was one."""
        try:
            await asyncio.wait_for(self._event.wait(), seconds)
        except asyncio.TimeoutError:
            return False
        self._event.clear()
        return True

"""Stores the steps of all jobs, in a thread of its own, so that no job waits for the disk."""

from __future__ import annotations

import queue
import threading
import time

from lab.api.events.notifier import Notifier
from lab.api.telemetry.logs import log
from lab.errors import LabError
from lab.progress import Event
from lab.state.records import EventRecord
from lab.state.store import Store

_AT_ONCE = 200


def topic(job: str) -> str:
    """The owner of a job's events in the record; also the topic of notifications about it."""
    return f"job:{job}"


class EventLog:
    """Takes events from any thread and stores them in order.

    A service that is killed loses those of the last milliseconds, and nothing else.
    """

    def __init__(self, store: Store, notifier: Notifier) -> None:
        self._store = store
        self._notifier = notifier
        self._queue: queue.SimpleQueue[EventRecord | threading.Event | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="lab-events", daemon=True)
        self._thread.start()

    def add(self, job: str, event: Event) -> None:
        """Store a step of a job, soon."""
        self._queue.put(
            EventRecord(
                0, time.time(), topic(job), event.step, event.state, event.text, event.seconds
            )
        )

    def flush(self, timeout: float = 10.0) -> None:
        """Return once all that was added is stored, or after ``timeout`` seconds."""
        done = threading.Event()
        self._queue.put(done)
        done.wait(timeout)

    def close(self) -> None:
        """Store what is left and end."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while True:
            found: list[EventRecord] = []
            waiting: list[threading.Event] = []
            item = self._queue.get()
            while True:
                if isinstance(item, EventRecord):
                    found.append(item)
                elif item is not None:
                    waiting.append(item)
                if item is None or self._queue.empty() or len(found) >= _AT_ONCE:
                    break
                item = self._queue.get()
            self._write(found)
            for done in waiting:
                done.set()
            if item is None:
                return

    def _write(self, found: list[EventRecord]) -> None:
        if not found:
            return
        try:
            self._store.events.add_all(found)
        except LabError as error:
            # Progress is for people to read: no job fails for its sake.
            log.warning("cannot store events", extra={"error": error.what})
        self._notifier.notify(*{one.owner for one in found})

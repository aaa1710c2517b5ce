"""Periodic tasks of the service, each in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from lab.api.telemetry.logs import log
from lab.errors import LabError
from lab.wait import Deadline


class Periodic:
    """A thread that calls ``task`` every ``every`` seconds, and at once when ``wake`` is set.

    If a run fails, that is logged, and the next one takes place all the same.
    """

    def __init__(
        self,
        name: str,
        task: Callable[[], object],
        every: float,
        wake: threading.Event | None = None,
    ) -> None:
        self._name = name
        self._task = task
        self._every = every
        self._woken = threading.Event() if wake is None else wake
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"lab-{name}", daemon=True)

    @property
    def ending(self) -> bool:
        """True once no more runs are to begin: a long one may end early."""
        return self._ending.is_set()

    def start(self) -> None:
        """Start the thread; the first run is after ``every`` seconds, or when woken."""
        self._thread.start()

    def wake(self) -> None:
        """Run the task now; if it is running, once more after that."""
        self._woken.set()

    def stop(self) -> None:
        """Begin no more runs; does not wait for a run in progress."""
        self._ending.set()
        self._woken.set()

    def join(self) -> None:
        """Return once the run in progress has ended."""
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            self._woken.wait(self._every)
            self._woken.clear()
            if self.ending:
                return
            try:
                self._task()
            except LabError as error:
                log.warning(
                    "a periodic task failed", extra={"task": self._name, "error": error.what}
                )
            except Exception as error:  # noqa: BLE001  # the next run takes place whatever happened
                log.error("a periodic task failed", extra={"task": self._name}, exc_info=error)


@contextmanager
def isolated(task: str, lab: str) -> Iterator[None]:
    """An error in the block concerns one lab: it is logged, and the run continues."""
    try:
        yield
    except LabError as error:
        log.warning("a lab was skipped", extra={"task": task, "lab": lab, "error": error.what})
    except Exception as error:  # noqa: BLE001  # a defect of ours that one lab's state shows
        log.error("a lab was skipped", extra={"task": task, "lab": lab}, exc_info=error)


def close_all(parts: Mapping[str, Callable[[], object]], seconds: float) -> None:
    """Call all ``parts`` at the same time, and wait ``seconds`` for them together.

    One that fails, or has not returned by then, is logged.
    """

    def call(name: str, part: Callable[[], object]) -> None:
        try:
            part()
        except Exception as error:  # noqa: BLE001  # the others are to be closed all the same
            log.warning("a part failed to close", extra={"part": name}, exc_info=error)

    deadline = Deadline.after(seconds)
    threads = {
        name: threading.Thread(target=call, args=(name, part), name=f"lab-end-{name}", daemon=True)
        for name, part in parts.items()
    }
    for thread in threads.values():
        thread.start()
    for name, thread in threads.items():
        thread.join(deadline.left)
        if thread.is_alive():
            log.warning("timed out waiting for a part to close", extra={"part": name})

"""What the service does beside its requests: again and again, each in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from lab.api.telemetry.logs import log
from lab.errors import LabError
from lab.wait import Deadline


class Rounds:
    """A thread that calls ``go`` every ``every`` seconds, and as soon as it is woken.

    What goes wrong is told, and the next round is made all the same.
    """

    def __init__(self, name: str, go: Callable[[], object], every: float) -> None:
        self._name = name
        self._go = go
        self._every = every
        self._woken = threading.Event()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"lab-{name}", daemon=True)

    @property
    def ending(self) -> bool:
        """True once there are to be no more rounds: a long one may end early."""
        return self._ending.is_set()

    def start(self) -> None:
        """Begin; the first round is made after ``every`` seconds, or when woken."""
        self._thread.start()

    def wake(self) -> None:
        """Have a round made now; if one is being made, another after it."""
        self._woken.set()

    def stop(self) -> None:
        """Begin no more rounds; does not wait for the one that is being made."""
        self._ending.set()
        self._woken.set()

    def join(self) -> None:
        """Return once the round that is being made is done."""
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            self._woken.wait(self._every)
            self._woken.clear()
            if self.ending:
                return
            try:
                self._go()
            except LabError as error:
                log.warning("a round failed", extra={"round": self._name, "error": error.what})
            except Exception as error:  # noqa: BLE001  # the next one is made whatever happened
                log.error("a round failed", extra={"round": self._name}, exc_info=error)


@contextmanager
def alone(name: str, lab: str) -> Iterator[None]:
    """An error in the block concerns one lab: it is logged, and the round continues."""
    try:
        yield
    except LabError as error:
        log.warning("a lab was skipped", extra={"round": name, "lab": lab, "error": error.what})
    except Exception as error:  # noqa: BLE001  # a fault of ours that one lab's state shows
        log.error("a lab was skipped", extra={"round": name, "lab": lab}, exc_info=error)


def end(parts: Mapping[str, Callable[[], object]], seconds: float) -> None:
    """Call all ``parts`` at the same time, and wait ``seconds`` for them, together.

    One that has not come to its end by then is told of and left alone, one that fails as well.
    """

    def call(name: str, part: Callable[[], object]) -> None:
        try:
            part()
        except Exception as error:  # noqa: BLE001  # the others are to end all the same
            log.warning("not ended well", extra={"part": name}, exc_info=error)

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
            log.warning("not waited for any longer", extra={"part": name})

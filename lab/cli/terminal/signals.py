"""Ctrl-C, SIGTERM and SIGHUP: the first one undoes, none of them breaks the undoing.

The first raises KeyboardInterrupt, so that each ``with Undo()`` on the stack cleans up. During
the clean-up a second one only prints a message, and a third ends the process immediately.

Python calls a handler wherever it is, also in a callback of a weak reference, of the collector or
of a library in C, from which no exception gets out. One that was lost there is raised once more,
and none is raised where it would be lost without a trace (``values.generating``).
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any, Literal, NoReturn

from lab.errors import Interrupted
from lab.undo import Undo
from lab.values import generating

_AGAIN = 0.01
"""Seconds after which a signal comes again whose exception was lost, or would be: that callback is
over then."""

HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def write_stderr(text: str) -> None:
    """Write immediately, without Python's buffers.

    They are not reentrant, so a signal handler must not use them; and a closed terminal must
    not stop the clean-up.
    """
    with contextlib.suppress(OSError):
        os.write(2, text.encode(errors="backslashreplace"))


class Interrupts:
    """Handles the signals while it is entered.

    ``doing``: the clean-up after an interrupt, such as ``removing the lab``; ``left``: what then
    remains, and the remedy; verbs set them.
    ``on_first`` is called before anything is written.
    """

    def __init__(self) -> None:
        self.doing = ""
        self.left = ""
        self.on_first: Callable[[], None] = lambda: None
        self.came = 0
        self._last = int(signal.SIGINT)
        self._during_cleaning = 0
        self._raised = False
        self._line: Literal["", "open", "ended"] = ""
        self._shielded = ""
        self._patience = 1
        self._receiver: Callable[[int], None] | None = None
        self._before: dict[signal.Signals, Any] = {}
        self._hooks = (sys.unraisablehook, sys.excepthook)

    def __enter__(self) -> Interrupts:
        for number in HANDLED:
            # nohup and a shell's background jobs ignore signals on purpose.
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._handle)
        self._hooks = (sys.unraisablehook, sys.excepthook)
        sys.unraisablehook = self._unraisable
        sys.excepthook = self._printed
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        sys.unraisablehook, sys.excepthook = self._hooks
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    @contextlib.contextmanager
    def shield(self, doing: str) -> Iterator[None]:
        """No signal raises in the block; ``doing`` is what the message on a signal says.

        Nor afterwards, if ``protect`` was called in it.
        """
        before, self._shielded = self._shielded, doing
        try:
            yield
        finally:
            if self._shielded == doing:
                self._shielded = before

    def protect(self, doing: str) -> None:
        """No signal raises from now on, and it takes one more to end the process."""
        self._shielded = doing
        self._patience = 2

    @contextlib.contextmanager
    def unshielded(self, doing: str) -> Iterator[None]:
        """The first signal raises in the block, although ``protect`` was called before.

        ``doing``: what comes after it, which no signal stops.
        """
        before = self._shielded, self.doing
        self._shielded, self.doing = "", doing
        try:
            yield
        finally:
            self._shielded, self.doing = before

    @contextlib.contextmanager
    def to(self, receiver: Callable[[int], None]) -> Iterator[None]:
        """In the block signals are passed to ``receiver`` (a child process) only."""
        self._receiver = receiver
        try:
            yield
        finally:
            self._receiver = None

    def finish(self, *, failed: bool = False) -> None:
        """End the line that the handler began; called after the clean-up."""
        if self._line == "open":
            write_stderr("\n" if failed else " done\n")
        elif self._line == "ended" and not failed:
            write_stderr("lab: done\n")
        self._line = ""

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if generating(frame):
            self._later(number)
            return
        self.came += 1
        self._last = number
        if self._receiver is not None:
            self._receiver(number)
        elif self._raised or self._shielded or _undoing(frame):
            self._during_cleaning += 1
            if self._left() < 0:
                self._give_up()
            doing = self._shielded or self.doing or "cleaning up"
            self._answer(f"lab: still {doing}; {self._threat()}\n")
        else:
            self._raised = True
            self.on_first()
            if self.doing and not self._line:
                write_stderr(f"lab: interrupted, {self.doing} ...")
                self._line = "open"
            raise KeyboardInterrupt

    def _unraisable(self, lost: sys.UnraisableHookArgs) -> None:
        """Python's hook for what was raised in one of its own callbacks."""
        if not self._lost(lost.exc_type):
            self._hooks[0](lost)

    def _printed(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        """Python's hook for what is printed: here by a library in C that cannot pass it on."""
        if not self._lost(kind):
            self._hooks[1](kind, error, trace)

    def _lost(self, kind: type[BaseException]) -> bool:
        """Whether it was the exception of a signal; it will come again."""
        here = threading.current_thread() is threading.main_thread()
        if not (here and self._raised and issubclass(kind, KeyboardInterrupt)):
            return False
        self._raised, self.came = False, self.came - 1
        self._later(self._last)
        return True

    def _later(self, number: int) -> None:
        again = threading.Timer(_AGAIN, os.kill, (os.getpid(), number))
        again.daemon = True
        again.start()

    def _left(self) -> int:
        """How many more signals only print a message: the third one ends the process."""
        began = self._raised or bool(self._shielded)
        return self._patience + (not began) - self._during_cleaning

    def _threat(self) -> str:
        if self._left():
            return "please wait"
        return "one more interrupt stops at once and leaves the rest"

    def _answer(self, text: str) -> None:
        write_stderr(f"\n{text}" if self._line == "open" else text)
        self._line = "ended"

    def _give_up(self) -> NoReturn:
        self._answer("lab: error: stopped while cleaning up\nhint: `lab gc` removes what is left\n")
        os._exit(Interrupted.exit_code)


def _undoing(frame: FrameType | None) -> bool:
    """Whether an undo runs in the frame that the signal interrupted."""
    while frame is not None:
        if frame.f_code is Undo.__exit__.__code__:
            return True
        frame = frame.f_back
    return False

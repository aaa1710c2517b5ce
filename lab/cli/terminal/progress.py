"""Progress on stderr: a spinner on a terminal; elsewhere notes, and a line a minute.

The import of a library for it (rich: 38 ms) would be part of each command's start-up time.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TextIO

from lab.cli.terminal.table import tick
from lab.progress import Event
from lab.units import format_duration

CLEAR = "\r\x1b[K"
_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_PLAIN_FRAMES = "|/-\\"
_WORTH_KEEPING = 1.0
"""Seconds from which on a step's line stays on the screen."""


_EVERY = 60.0
"""Seconds between two lines about what takes long, where nothing can be drawn over."""


class _Steps:
    """The steps under way, and how far they are."""

    def __init__(self) -> None:
        self._open: list[tuple[str, str, float]] = []
        self._far: dict[str, str] = {}

    def hear(self, event: Event) -> None:
        """Take in an event that is no note."""
        if event.state == "begin":
            self._open.append((event.step, event.text, time.monotonic()))
        elif event.state == "update":
            self._far[event.step] = f": {event.text}"
        else:
            self._far.pop(event.step, None)
            for place in range(len(self._open) - 1, -1, -1):
                if self._open[place][0] == event.step:
                    del self._open[place]
                    break

    def line(self) -> str:
        """The innermost one, how far it is, and since when; empty for none."""
        if not self._open:
            return ""
        step, text, since = self._open[-1]
        took = format_duration(time.monotonic() - since)
        return f"{text or step}{self._far.get(step, '')}  {took}"


class Notes:
    """A listener that prints notes, one a line, and every minute what takes that long.

    ``every``: seconds.
    """

    def __init__(self, stream: TextIO, *, every: float = _EVERY) -> None:
        self._stream = stream
        self._every = every
        self._lock = threading.Lock()
        self._steps = _Steps()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._silent = False

    def __enter__(self) -> Notes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.silence()
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def __call__(self, event: Event) -> None:
        """Handle an event; called from any thread."""
        with self._lock:
            if self._silent:
                return
            if event.state == "note":
                self._write(event.text)
                return
            self._steps.hear(event)
            if self._thread is None:
                self._thread = _started(self._repeat)

    def silence(self) -> None:
        """Print nothing more; safe in a signal handler, so it takes no lock."""
        self._silent = True

    def _repeat(self) -> None:
        while not self._stop.wait(self._every):
            with self._lock:
                if not self._silent and (line := self._steps.line()):
                    self._write(line)

    def _write(self, text: str) -> None:
        try:
            self._stream.write(f"{text}\n")
            self._stream.flush()
        except OSError:
            self._silent = True  # nobody reads it any more; the command continues


class Spinner:
    """A listener that shows the current step, and leaves a line about each long one."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self._steps = _Steps()
        self._stop = threading.Event()
        self._silent = False
        self._thread: threading.Thread | None = None
        self._tick = tick(stream)
        self._frames = _FRAMES if self._tick == "✓" else _PLAIN_FRAMES

    def __enter__(self) -> Spinner:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            with self._lock:
                if not self._silent:
                    self._write(CLEAR)

    def __call__(self, event: Event) -> None:
        """Handle an event; called from any thread."""
        with self._lock:
            if self._silent:
                return
            if event.state == "note":
                self._write(f"{CLEAR}{event.text}\n")
                return
            self._steps.hear(event)
            if event.state == "begin":
                self._start()
            elif event.state == "end" and event.seconds >= _WORTH_KEEPING:
                text = event.text or event.step
                self._write(f"{CLEAR}{self._tick} {text}  {event.seconds:.1f} s\n")

    def silence(self) -> None:
        """Draw nothing more; safe in a signal handler, so it takes no lock."""
        self._silent = True

    def _start(self) -> None:
        if self._thread is None:
            self._thread = _started(self._spin)

    def _spin(self) -> None:
        turn = 0
        while not self._stop.wait(0.1):
            with self._lock:
                if self._silent:
                    return
                if line := self._steps.line():
                    frame = self._frames[turn % len(self._frames)]
                    self._write(CLEAR + f"{frame} {line}"[: self._width() - 1])
            turn += 1

    def _width(self) -> int:
        try:
            return os.get_terminal_size(self._stream.fileno()).columns or 80
        except (OSError, ValueError):
            return 80

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError:
            self._silent = True  # the terminal is gone; the command continues


def _started(run: Callable[[], None]) -> threading.Thread:
    """A thread that runs.

    It is nobody's until it does: an interrupt within ``start`` leaves one that cannot be joined.
    """
    thread = threading.Thread(target=run, name="progress", daemon=True)
    thread.start()
    return thread


def listener(*, quiet: bool) -> Notes | Spinner:
    """The listener for the kind of stderr."""
    stream = sys.stderr
    if quiet:
        silent = Notes(stream)
        silent.silence()
        return silent
    if stream.isatty() and os.environ.get("TERM") != "dumb":
        return Spinner(stream)
    return Notes(stream)

"""Runs programs for the user: one that owns the terminal while it runs, or several at once."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from lab.cli.terminal.signals import Interrupts
from lab.errors import NoProgram

_LOOK = 200
"""Milliseconds without output after which it is looked whether a program has ended."""
_LONGEST = 1 << 16
"""Bytes of a line that is printed whole."""
GRACE = 10.0
"""Seconds that a child has to end after SIGTERM or SIGHUP, before it is killed."""


def find(program: str) -> str:
    """The program's path; raises NoProgram."""
    path = shutil.which(program)
    if path is None:
        raise NoProgram(f"program {program!r} not found", hint="give its path, or check PATH")
    return path


def run_child(
    argv: Sequence[str],
    interrupts: Interrupts,
    *,
    env: Mapping[str, str] | None = None,
    impatient: bool = False,
) -> int:
    """Run ``argv`` to its end; its exit code, 128 + n if signal n ended it.

    Signals are passed to the child. ``impatient``: a second one ends it, a third kills it, and
    after SIGTERM or SIGHUP it has ``GRACE`` seconds; otherwise signals are only passed on.

    Raises NoProgram.
    """
    find(argv[0])
    sys.stdout.flush()
    child = _Child(argv, env, impatient=impatient)
    with interrupts.to(child.hear):
        code = child.run()
    return 128 - code if code < 0 else code


def run_several(
    commands: Sequence[Sequence[str]],
    interrupts: Interrupts,
    *,
    at_once: int,
    hear: Callable[[int, str], None],
) -> list[int | None]:
    """Run programs to their ends, ``at_once`` of them at the same time; their exit codes.

    ``hear`` is called, from any thread, with the number of a program and a line that it printed, on
    either stream. Their standard input is empty. Signals are passed to those that run, and no other
    one is started then: its code is None.
    """
    several = _Several(commands, hear)
    with interrupts.to(several.pass_on), ThreadPoolExecutor(at_once) as threads:
        return list(threads.map(several.run, range(len(commands))))


class _Several:
    def __init__(self, commands: Sequence[Sequence[str]], hear: Callable[[int, str], None]) -> None:
        self._commands, self._hear = commands, hear
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._stopped = False
        # Not held by the main thread, in which signals are handled.
        self._lock = threading.Lock()

    def run(self, number: int) -> int | None:
        with self._lock:
            if self._stopped:
                return None
            process = subprocess.Popen(
                self._commands[number], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            self._running[number] = process
        for line in _lines(process):
            self._hear(number, line)
        code = process.wait()
        with self._lock:
            del self._running[number]
        return 128 - code if code < 0 else code

    def pass_on(self, number: int) -> None:
        """A signal came; called from its handler."""
        with self._lock:
            self._stopped = True
            for process in self._running.values():
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(number)


def _lines(process: subprocess.Popen[bytes]) -> Iterator[str]:
    """What a program prints until it ends; programs that it left behind may keep the pipe open."""
    assert process.stdout is not None  # noqa: S101  # for the type checker
    with process.stdout as pipe:
        poll, rest = select.poll(), b""
        poll.register(pipe, select.POLLIN)
        while True:
            ended = process.poll() is not None
            if not poll.poll(0 if ended else _LOOK):
                if ended:
                    break
                continue
            read = os.read(pipe.fileno(), _LONGEST)
            if not read:
                break
            *whole, rest = (rest + read).split(b"\n")
            if len(rest) > _LONGEST:
                whole, rest = [*whole, rest], b""
            yield from (line.decode(errors="replace") for line in whole)
        if rest:
            yield rest.decode(errors="replace")


class _Child:
    def __init__(
        self, argv: Sequence[str], env: Mapping[str, str] | None, *, impatient: bool
    ) -> None:
        self._argv = list(argv)
        self._env = env
        self._impatient = impatient
        # On a terminal the child must be in our process group to read from it, and gets the
        # terminal's signals (Ctrl-C) as we do. Elsewhere it has its own session, so that signals
        # that are passed on reach its children as well.
        self._on_terminal = sys.stdin is not None and sys.stdin.isatty()
        self._process: subprocess.Popen[bytes] | None = None
        self._heard = 0
        self._early = 0
        self._timer: threading.Timer | None = None

    def run(self) -> int:
        try:
            self._process = subprocess.Popen(
                self._argv, env=self._env, start_new_session=not self._on_terminal
            )
        except OSError as error:
            raise NoProgram(f"cannot run {self._argv[0]!r}: {error.strerror}") from None
        if self._early:
            self._send(self._early)
        try:
            return self._process.wait()
        finally:
            if self._timer is not None:
                self._timer.cancel()

    def hear(self, number: int) -> None:
        """A signal came; called from its handler."""
        self._heard += 1
        if self._process is None:
            # The child may have been started already; then it got Ctrl-C from the terminal. A
            # lost signal can be repeated by the user, a doubled one not be taken back.
            self._early = 0 if number == signal.SIGINT and self._on_terminal else number
            return
        if self._impatient and self._heard > 1:
            self._send(signal.SIGTERM if self._heard == 2 else signal.SIGKILL)
        elif number != signal.SIGINT or not self._on_terminal:
            self._send(number)
        if self._impatient and number != signal.SIGINT and self._timer is None:
            self._timer = threading.Timer(GRACE, self._send, (signal.SIGKILL,))
            self._timer.daemon = True
            self._timer.start()

    def _send(self, number: int) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):  # it ended by itself just now
            if self._on_terminal:
                os.kill(process.pid, number)
            else:
                os.killpg(process.pid, number)

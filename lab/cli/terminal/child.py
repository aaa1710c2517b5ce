"""Runs a program for the user that owns the terminal while it runs."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence

from lab.cli.terminal.signals import Interrupts
from lab.errors import NoProgram

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

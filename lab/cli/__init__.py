"""The command line: it parses and prints, and decides nothing.

::

    program            the process
    main               signals, errors to exit codes
      commands         the table of verbs
        verbs/         one file a group of verbs: flags in, a view out
          app flags manual complete    what verbs share
            backend/   the session: this host, or a service elsewhere
            terminal/  tables, JSON, progress, signals, errors
"""

from __future__ import annotations

import contextlib
import gc
import io
import os
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from lab.cli.terminal.signals import HANDLED, Interrupts

if TYPE_CHECKING:
    from lab.cli.app import App
    from lab.cli.backend.local import Lifecycle

BROKEN_PIPE = 141
"""What a shell reports for a program that SIGPIPE ended."""
COLLECTED_EVERY = 250_000
"""Objects that a command makes before Python looks for garbage among them."""


def program(*, lifecycle: Lifecycle | None = None) -> NoReturn:
    """The program ``lab``: run ``main`` and end the process.

    By ``os._exit``: the interpreter's own shutdown takes a sixth of the time of ``lab ls``, and
    nothing is left to be closed.
    """
    _open_standard_streams()
    _own_surroundings()
    code = main(lifecycle=lifecycle)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _open_standard_streams() -> None:
    """Open those that are closed (``>&-``) on /dev/null: else the database would be file 1."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            setattr(sys, name, open(number, mode, encoding="utf-8"))  # noqa: SIM115, PTH123


def _own_surroundings() -> None:
    """Set what we inherit and depend on; what a user's program gets from us stays theirs.

    Nothing that we create is for others to write, whatever the umask; a stricter one holds. Ends of
    programs are reported (where SIGCHLD is ignored, each seems to succeed), signals arrive, and
    text that the terminal's encoding lacks is printed as escapes.
    """
    os.umask(os.umask(0o077) | 0o022)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (*HANDLED, signal.SIGCHLD))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def main(argv: Sequence[str] | None = None, *, lifecycle: Lifecycle | None = None) -> int:
    """Run one command and return its exit code.

    ``lifecycle``: the verbs of this host; tests pass fakes.
    """
    args = list(sys.argv[1:] if argv is None else argv)
    if argv is None:
        # Imports make many objects and no garbage: 52,000 for `lab ls`, 115,000 for `lab up`, and
        # each collection among them takes 10 ms or more.
        gc.set_threshold(COLLECTED_EVERY, 20, 50)
    # From here on, so that an interrupt during the imports is handled as any other.
    with Interrupts() as interrupts:
        try:
            from lab.cli.app import App
            from lab.cli.backend.local import Lifecycle

            return _guarded(args, App(lifecycle or Lifecycle(), interrupts))
        except KeyboardInterrupt:
            return 130  # before there was anything to undo, or after the output


def _guarded(args: list[str], app: App) -> int:
    from lab.cli.terminal.failure import broken_stdout, report

    try:
        code = _dispatch(args, app)
        sys.stdout.flush()
    except BaseException as error:  # noqa: BLE001  # the one place where all errors end
        if isinstance(error, BrokenPipeError) and broken_stdout():
            return BROKEN_PIPE
        return report(error, app.interrupts, debug=app.debug)
    app.interrupts.finish()
    return code


def _dispatch(args: list[str], app: App) -> int:
    from lab.cli.commands import root_command

    command = root_command()
    if "_LAB_COMPLETE" in os.environ:
        command.main(args=args, prog_name="lab", obj=app, standalone_mode=False)
        return 0
    with command.make_context("lab", args, obj=app) as context:
        code = command.invoke(context)
    return code if isinstance(code, int) else 0

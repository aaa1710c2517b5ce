"""Errors as text on stderr, and the exit code of each."""

from __future__ import annotations

import contextlib
import os
import re
import select
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import typer

from lab.errors import HostUnfit, Interrupted, LabError
from lab.paths import is_full, no_space
from lab.suggest import did_you_mean
from lab.texts import harmless

if TYPE_CHECKING:
    from lab.cli.terminal.signals import Interrupts

_DEV_FULL = os.makedev(1, 7)
_OF_VERBS = ("-o", "--output")
_EXTRA = re.compile(r"unexpected extra arguments?(?:\(s\))? \((.*)\)")


@runtime_checkable
class _ParserError(Protocol):
    """What Typer raises for a wrong command line; its base class depends on the release."""

    exit_code: int

    def format_message(self) -> str: ...


def report(error: BaseException, interrupts: Interrupts, *, debug: bool = False) -> int:
    """Print an error on stderr, with ``debug`` its traceback as well, and return the exit code.

    SystemExit and typer's ``Exit`` are not failures: only their code is returned.
    """
    if isinstance(error, typer.Exit):
        return int(error.exit_code)
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else 0 if error.code is None else 1
    if isinstance(error, KeyboardInterrupt | Interrupted | typer.Abort):
        return _interrupted(error, interrupts)
    interrupts.finish(failed=True)
    if debug:
        import traceback

        _write("".join(traceback.format_exception(error)))
    if isinstance(error, _ParserError):
        shown = _usage(error)
    elif isinstance(error, LabError):
        shown = error
    elif isinstance(error, OSError) and is_full(error):
        shown = _full(error)
    else:
        shown = LabError(
            f"internal error: {type(error).__name__}: {error}",
            hint="please report it, with the output of the same command with --debug",
        )
    _write(describe(shown, colour=_colour()))
    return error.exit_code if isinstance(error, _ParserError) else shown.exit_code


def describe(error: LabError, *, colour: bool = False) -> str:
    """The lines that report an error: what, details, hint."""
    begin, end = ("\x1b[1;31m", "\x1b[0m") if colour else ("", "")
    lines = [f"lab: {begin}error:{end} {harmless(error.what)}"]
    lines += [f"  {harmless(line)}" for detail in error.details for line in detail.splitlines()]
    if error.hint:
        lines.append(f"hint: {harmless(error.hint)}")
    return "\n".join(lines) + "\n"


def broken_stdout() -> bool:
    """Whether the reader of stdout is gone; if so, stdout becomes /dev/null.

    The kernel is asked, as a BrokenPipeError may also come from the socket of a guest.
    """
    number = sys.stdout.fileno()
    poll = select.poll()
    poll.register(number, select.POLLOUT)
    if not any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0)):
        return False
    # Else the interpreter reports the rest of the buffer as unwritable when it ends.
    os.dup2(os.open(os.devnull, os.O_WRONLY), number)
    return True


def _meant(path: str, extra: str, hint: str) -> str:
    """A hint for a label that was given as an argument, not as a flag's value; else ``hint``."""
    flag = {"lab snapshot take": "--label", "lab rollback": "--to"}.get(path)
    return f"did you mean `{flag} {extra}`?" if flag and " " not in extra else hint


def _full(error: OSError) -> LabError:
    """The error for a write that failed with "no space left": to stdout, or to a file."""
    if error.filename is None and _stdout_full():
        return LabError(f"the output cannot be written: {error.strerror}")
    if error.filename is not None:
        return no_space(Path(os.fsdecode(error.filename)))
    return HostUnfit(
        "a file cannot be written: no space is left on its file system",
        hint="`lab doctor` shows what is free; `lab gc` removes leftovers, `lab down` a lab",
    )


def _stdout_full() -> bool:
    try:
        sys.stdout.flush()  # what could not be written is still in its buffer
        number = sys.stdout.fileno()
        status, space = os.fstat(number), os.fstatvfs(number)
    except (OSError, ValueError):
        return True
    if stat.S_ISCHR(status.st_mode):
        return status.st_rdev == _DEV_FULL
    return stat.S_ISREG(status.st_mode) and not space.f_bavail


def _interrupted(error: BaseException, interrupts: Interrupts) -> int:
    details = error.details if isinstance(error, LabError) else ()
    interrupts.finish(failed=bool(details))
    if details and isinstance(error, LabError):
        _write(describe(error))
    elif interrupts.left:
        _write(f"lab: interrupted: {interrupts.left}\n")
    return Interrupted.exit_code


def _usage(error: _ParserError) -> LabError:
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "lab"
    hint = f"`{path} --help`"
    unknown = getattr(error, "option_name", "")
    if unknown in _OF_VERBS and path == "lab":
        return LabError(
            f"{unknown} is not a global option", hint="put it after the command: `lab ls -o json`"
        )
    if unknown and hasattr(error, "possibilities"):
        known = [flag for param in context.command.params for flag in param.opts] if context else []
        return LabError(
            f"{path} has no flag {unknown!r}",
            hint=did_you_mean(unknown, [*known, "--help"], otherwise=f"{hint} lists them"),
        )
    message = error.format_message().rstrip(".")
    if extra := _EXTRA.search(message):
        if getattr(context and context.command, "takes_command", False):
            hint = f"put two dashes before a command: `{path} ... -- CMD`"
        return LabError(
            f"{path}: unexpected argument {extra[1]!r}", hint=_meant(path, extra[1], hint)
        )
    return LabError(message[:1].lower() + message[1:], hint=hint)


def _colour() -> bool:
    # https://no-color.org: present and not empty
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return sys.stderr.isatty() and not plain


def _write(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()  # its own failure is not the one to report
    with contextlib.suppress(OSError):  # stderr is closed
        sys.stderr.write(text)
        sys.stderr.flush()

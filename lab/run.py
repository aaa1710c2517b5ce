"""The one door to other programs: argv lists, a deadline, and errors that tell."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from lab.errors import CommandFailed, HostUnfit


@dataclass(frozen=True)
class Completed:
    """What a command printed. Both texts are decoded as UTF-8, bad bytes replaced."""

    stdout: str
    stderr: str


def run(
    argv: Sequence[str | os.PathLike[str]],
    *,
    timeout: float,
    stdin: bytes = b"",
    log: IO[bytes] | None = None,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    hint: str = "",
) -> Completed:
    """Run ``argv`` to its end and return what it printed.

    ``log`` receives both streams instead, as they come. The command starts in a session
    of its own and is killed with all of its children after ``timeout`` seconds or when
    we are interrupted, so that it never outlives its caller's decision.

    Raises HostUnfit if the program is not installed, CommandFailed if it exits non-zero
    or runs into the deadline.
    """
    command = [os.fspath(arg) for arg in argv]
    require(command[0])
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=log if log is not None else subprocess.PIPE,
        stderr=subprocess.STDOUT if log is not None else subprocess.PIPE,
        cwd=cwd,
        env=None if env is None else dict(env),
        start_new_session=True,
    )
    try:
        out, err = process.communicate(stdin, timeout=timeout)
    except subprocess.TimeoutExpired:
        _kill_session(process)
        raise CommandFailed(
            command, -9, stderr=f"no result after {timeout:g} s", hint=hint
        ) from None
    except BaseException:
        _kill_session(process)
        raise
    stdout = (out or b"").decode(errors="replace")
    stderr = (err or b"").decode(errors="replace")
    if process.returncode != 0:
        raise CommandFailed(command, process.returncode, stderr=stderr or stdout, hint=hint)
    return Completed(stdout, stderr)


def lines(argv: Sequence[str]) -> Iterator[str]:
    """The lines that ``argv`` prints to stdout, as they come, until it ends or we close it.

    Raises HostUnfit if the program is not installed, CommandFailed if it exits non-zero.
    """
    require(argv[0])
    process = subprocess.Popen(
        list(argv),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        for line in process.stdout or ():
            yield line.decode(errors="replace").rstrip("\n")
        if process.wait() != 0:
            raise CommandFailed(list(argv), process.returncode)
    finally:
        _kill_session(process)


def require(program: str, *, package: str = "") -> str:
    """The path of ``program``; raises HostUnfit with the package to install."""
    path = shutil.which(program)
    if path is None:
        hint = f"install the package {package}" if package else "`lab doctor` lists what is missing"
        raise HostUnfit(f"{program} is not installed", hint=hint)
    return path


def _kill_session(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, 9)
    process.communicate()

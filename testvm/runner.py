"""Running the tests: in a guest that lives just for that, or on the host itself."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, BinaryIO, NoReturn

from lab.errors import CommandFailed, LabError, NotReady
from lab.run import run
from lab.wait import Deadline
from testvm import machine
from testvm.checkout import archive
from testvm.release import ROOT, Release
from testvm.session import Session

TESTS = "tests/platform"
CHECKOUT = "/srv/checkout"
PYTEST = ("python3", "-m", "pytest")
NO_TESTS = 5
"""pytest's exit status if no test was selected."""

_GRACE = 10.0
"""Seconds after the deadline until QEMU is killed: the conversation ends first, and tells."""

# Not /tmp, which is memory there.
_ENVIRONMENT = {
    "HOME": "/root",
    "LC_ALL": "C.UTF-8",
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "PYTHONPATH": f"{CHECKOUT}:/opt/python",
    "PYTHONUNBUFFERED": "1",
    "TMPDIR": "/var/tmp",  # noqa: S108  a path in the guest
    "LAB_TEST_ZFS_DISKS": ":".join(machine.DISKS),
}


@dataclass
class _Outcome:
    """What a conversation ended with: a status or a failure."""

    status: int | None = None
    failure: LabError | None = None


def environment(release: Release, given: Path | None = None) -> dict[str, str]:
    """The environment of a command in the guest, which was ``given`` a file."""
    colour = {"FORCE_COLOR": "1"} if sys.stdout.isatty() else {}
    columns = {"COLUMNS": str(shutil.get_terminal_size().columns)}
    handed = handed_over(given, machine.GIVEN)
    return {**_ENVIRONMENT, **colour, **columns, **handed, "LAB_TEST_ZFS_VERSION": release.zfs}


def handed_over(given: Path | None, where: Path | str | None) -> dict[str, str]:
    """How the tests hear of a file that is handed over: where it is, and its size in bytes."""
    return {"LAB_TEST_GIVEN": f"{where}:{given.stat().st_size}"} if given else {}


def pytest_options(options: Sequence[str]) -> list[str]:
    """The arguments of pytest: all platform tests, unless ``options`` name files themselves."""
    named = any((ROOT / word.split("::")[0]).exists() for word in options)
    return ["-p", "no:cacheprovider", *([] if named else [TESTS]), *options]


def on_host(options: Sequence[str], *, timeout: float) -> int:
    """Run the tests here; pytest's exit status, that of an interrupt after ``timeout`` seconds.

    In this process, so that an interrupt lets the tests remove their pools.
    """
    import pytest

    def late(_signal: int, _frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt(f"no end within {timeout:g} s")

    signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, timeout)
    try:
        return int(pytest.main(pytest_options(options)))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def in_guest(
    image: Path,
    release: Release,
    options: Sequence[str],
    out: BinaryIO,
    *,
    accelerator: machine.Accelerator,
    memory: int,
    timeout: float,
    load: machine.Load = machine.Load.TESTS,
    given: Path | None = None,
) -> int:
    """Boot ``image``, run the tests in it, copy their output to ``out``; pytest's exit status.

    Raises NotReady with the console's last lines if the guest does not get to an end within
    ``timeout`` seconds, CommandFailed if QEMU or pytest cannot be started.
    """
    deadline = Deadline.after(timeout)
    outcome = _Outcome()
    name = f"lab-test-{os.getpid()}-{secrets.token_hex(4)}"
    work = archive(ROOT)
    with (
        _listening(name) as listener,
        tempfile.TemporaryFile() as console,
        machine.initrd(image) as initrd,
    ):
        argv = machine.argv(
            image, initrd, accelerator, f"socket,path={name},abstract=on",
            console="stdio,signal=off", memory=memory, once=True, load=load, given=given,
        )  # fmt: skip

        def talk() -> None:
            try:
                channel = _accepted(listener, deadline)
                with channel:
                    session = Session(channel, deadline)
                    _converse(session, outcome, release, work, options, out, given)
            except LabError as failure:
                outcome.failure = failure

        thread = threading.Thread(target=talk, daemon=True)
        thread.start()
        try:
            run(argv, timeout=timeout + _GRACE, log=console)
        except CommandFailed as error:
            outcome.failure = outcome.failure or error
        finally:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            thread.join(_GRACE)
        return _judge(outcome, console)


def check(facts: Mapping[str, str], release: Release) -> None:
    """Raise NotReady unless the guest has the OpenZFS that it is there for."""
    version = facts.get("zfs", "")
    if not version.startswith(f"{release.zfs}."):
        raise NotReady(
            f"the guest {release.suite} has {f'ZFS {version}' if version else 'no ZFS'} "
            f"in its kernel, not {release.zfs}"
        )


def describe(facts: Mapping[str, str]) -> str:
    """The facts of a guest in one line."""
    return (
        f"ZFS {facts['zfs']}, Linux {facts['kernel']}, Python {facts['python']}, "
        f"up in {float(facts['uptime']):.0f} s"
    )


def _converse(
    session: Session,
    outcome: _Outcome,
    release: Release,
    work: bytes,
    options: Sequence[str],
    out: BinaryIO,
    given: Path | None,
) -> None:
    session.hello(secrets.token_hex(8))
    check(session.facts, release)
    out.write(f"test-zfs: {release.suite}: {describe(session.facts)}\n".encode())
    out.flush()
    session.unpack(CHECKOUT, work)
    outcome.status = session.run(
        [*PYTEST, *pytest_options(options)],
        cwd=CHECKOUT, env=environment(release, given), out=out,
    )  # fmt: skip
    session.off()


def _judge(outcome: _Outcome, console: IO[bytes]) -> int:
    if outcome.status is not None:
        # How the machine ended after that does not matter.
        return outcome.status
    console.seek(0)
    lines = [line for line in console.read().decode(errors="replace").splitlines() if line.strip()]
    failure = outcome.failure or NotReady("the guest ended before the tests did")
    failure.details = (*failure.details, *lines[-15:])
    raise failure


def _listening(name: str) -> socket.socket:
    """A listening socket without a file: its name vanishes with it."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"\0{name}")
    listener.listen(1)
    return listener


def _accepted(listener: socket.socket, deadline: Deadline) -> socket.socket:
    listener.settimeout(deadline.left)
    try:
        channel, _ = listener.accept()
    except OSError:
        raise NotReady("QEMU did not start") from None
    return channel

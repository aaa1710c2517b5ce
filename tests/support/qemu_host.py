"""Runs a command on a host that has QEMU of another Debian release, with a libvirtd of its own.

``python -m tests.support.qemu_host trixie -- COMMAND`` mounts that QEMU in the place of the host's
for the command alone: it and libvirt's daemons have a mount namespace of their own. libvirt is the
host's. Guests that are left are ended with it. Only root can do that.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from lab.wait import Deadline, until
from tests.support.qemu import PROGRAM, program

PLACE = "LAB_TEST_QEMU"
"""The variable that has the release's name: templates of two QEMUs would replace each other."""
NO_COMMAND = 2
_OWN = ("/run/libvirt", "/var/lib/libvirt", "/var/cache/libvirt")
"""What belongs to one libvirtd, and is empty for ours."""
_MODULES = "usr/lib/x86_64-linux-gnu/qemu"
_URI = "qemu:///system"
_SECONDS = 60.0


def main(words: Sequence[str]) -> int:
    """The exit status of the command."""
    if len(words) < 3 or words[1] != "--":
        sys.stderr.write("usage: python -m tests.support.qemu_host RELEASE -- COMMAND...\n")
        return NO_COMMAND
    release, command = words[0], words[2:]
    if os.environ.get(PLACE) != release:
        program(release)
        argv = ["unshare", "--mount", "--propagation", "private", sys.executable, "-m"]
        argv += [__spec__.name, *words]
        os.execvpe(argv[0], argv, os.environ | {PLACE: release})  # noqa: S606
    with ExitStack() as stack:
        _mount(program(release))
        for daemon in ("virtlogd", "libvirtd"):
            stack.enter_context(_running(daemon))
        assert until(_answers, Deadline.after(_SECONDS), first=0.1), "libvirtd does not answer"
        stack.callback(_end_guests)
        return _run(command)


def _run(command: Sequence[str]) -> int:
    """The status of the command, which gets an interrupt that reaches us alone."""
    with subprocess.Popen(command) as process:
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt:
                process.send_signal(signal.SIGINT)


def _mount(qemu: Path) -> None:
    here = shutil.which(PROGRAM)
    assert here, f"{PROGRAM} is not installed"
    # QEMU ends if it finds modules of another build: those of its release take their place, too.
    for source, target in ((qemu, Path(here)), (qemu.parent / "root" / _MODULES, f"/{_MODULES}")):
        if Path(target).exists():
            subprocess.run(["mount", "--bind", source, target], check=True)
    for directory in _OWN:
        argv = ["mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", directory]
        subprocess.run(argv, check=True)


@contextmanager
def _running(daemon: str) -> Iterator[None]:
    # In the foreground: it has none of our open files, and ends with us.
    argv = ["setpriv", "--pdeathsig", "TERM", daemon, "--pid-file", f"/run/libvirt/{daemon}.pid"]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(argv, stdin=quiet, stderr=quiet) as process:
        try:
            yield
        finally:
            process.terminate()


def _virsh(*words: str) -> subprocess.CompletedProcess[str]:
    argv = ["virsh", "-q", "-c", _URI, *words]
    return subprocess.run(argv, capture_output=True, text=True, timeout=_SECONDS, check=False)


def _answers() -> bool:
    return _virsh("version").returncode == 0


def _end_guests() -> None:
    for name in _virsh("list", "--name").stdout.split():
        _virsh("destroy", name)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

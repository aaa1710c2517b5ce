"""An ordinary user with a checkout of their own, on this machine or in another root directory."""

from __future__ import annotations

import io
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from lab.imagebuild import bootstrap
from lab.imagebuild.trust import keyrings
from lab.progress import Progress
from lab.wait import Deadline, until
from tests import ROOT
from testvm.checkout import archive

PASSED_ON = ("PIP_", "http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "no_proxy")
"""How packages are reached is the machine's matter: these variables survive the login."""


_CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"


@dataclass(frozen=True)
class User:
    """A user without rights. ``enter``: argv prefix that leads to their machine, as its root."""

    name: str
    enter: tuple[str, ...] = ()

    def run(
        self, script: str, *, timeout: float, code: int | None = 0
    ) -> subprocess.CompletedProcess[str]:
        """Run a shell script in a login shell of the user, as ``su -`` gives it."""
        here = () if not self.enter else ("PIP_FIND_LINKS",)  # names a directory of this machine
        names = [n for n in os.environ if n.startswith(PASSED_ON) and n not in here]
        passed = ",".join(names)
        words = ["su", "-", self.name, *(["-w", passed] if passed else []), "-c", script]
        return command([*self.enter, *words], timeout=timeout, code=code)

    def processes(self, uid: int) -> list[tuple[int, str]]:
        """The user's processes, as this machine counts them: id and command line."""
        found = []
        for directory in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                line = (directory / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                if directory.stat().st_uid == uid and line:
                    found.append((int(directory.name), line.strip()))
        return found


def command(
    argv: list[str], *, timeout: float, code: int | None = 0, stdin: bytes = b""
) -> subprocess.CompletedProcess[str]:
    """Run ``argv`` to its end, which is with exit code ``code`` (None: any); shown if it fails."""
    began = time.monotonic()
    done = subprocess.run(
        argv, input=stdin, capture_output=True, timeout=timeout, check=False, start_new_session=True
    )
    out, err = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
    seconds = time.monotonic() - began
    sys.stderr.write(f"{argv[-1]}: exit code {done.returncode}, {seconds:.1f} s\n")
    assert code is None or done.returncode == code, f"{argv[-1]}\n{out[-4000:]}\n{err[-4000:]}"
    return subprocess.CompletedProcess(argv, done.returncode, out, err)


def login_name() -> str:
    """A name as long as Linux takes it: sockets below its home have long paths."""
    return f"lab-e2e.{secrets.token_hex(4)}".ljust(32, "x")


@contextmanager
def account() -> Iterator[tuple[User, int]]:
    """A user of this machine and their uid; all that is theirs is removed at the end."""
    name = login_name()
    command(["useradd", "--create-home", "--shell", "/bin/bash", name], timeout=60)
    try:
        user, uid = User(name), int(command(["id", "-u", name], timeout=10).stdout)
        try:
            yield user, uid
        finally:
            end_all(user, uid)
    finally:
        command(["userdel", "--remove", name], timeout=120, code=None)


def end_all(user: User, uid: int) -> None:
    """End the processes of a user whom a test made."""

    def gone() -> bool | None:
        for process, _ in user.processes(uid):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        return None if user.processes(uid) else True

    until(gone, Deadline.after(10.0))


def give_checkout(user: User, directory: str) -> None:
    """Unpack the working files, committed or not, in a new ``directory`` as the user's own."""
    packed = archive(ROOT)
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        assert "Makefile" in tar.getnames()
    script = f"mkdir {directory} && exec tar -xzf - -C {directory} --no-same-owner"
    command([*user.enter, "su", "-", user.name, "-c", script], timeout=60, stdin=packed)


_INIT = """\
set -e
mount --make-rprivate /
mount --bind "$1" "$1"
cd "$1"
mount -t proc proc proc
mount -t sysfs sysfs sys
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=755 tmpfs dev
for node in null zero full random urandom tty; do
    : >dev/$node
    mount --bind /dev/$node dev/$node
done
mkdir dev/pts dev/shm old
mount -t devpts -o newinstance,ptmxmode=666,mode=620 devpts dev/pts
mount -t tmpfs -o mode=1777 tmpfs dev/shm
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
pivot_root . old
umount -l /old
exec sleep infinity
"""
"""Becomes process 1 of a container: one that does not reap. Its root is another one, not a chroot:
libvirt enters QEMU's mount namespace and would leave a chroot, and users of a chroot get no user
namespaces."""


@contextmanager
def another_machine(suite: str) -> Iterator[tuple[str, ...]]:
    """A fresh Debian in namespaces of its own, with our network; gives the argv that enters it."""
    directory = Path(tempfile.mkdtemp(prefix="lab-e2e-"))
    directory.chmod(0o711)
    try:
        root = directory / "root"
        packages = ["make", "ca-certificates"]
        argv = bootstrap.command(root, suite, packages, keyrings=keyrings(directory))
        bootstrap.bootstrap(argv, directory / "log", Progress())
        # How the network and packages are reached is this machine's matter.
        for path in ("/etc/resolv.conf", "/etc/hosts", "/etc/pip.conf", _CERTIFICATES):
            if Path(path).exists():
                shutil.copyfile(path, f"{root}{path}")
        argv = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", _INIT]
        outer = subprocess.Popen([*argv, "sh", root], start_new_session=True)
        try:
            inner = until(lambda: _sleeper(outer.pid), Deadline.after(20.0))
            assert inner is not None, "the container did not start"
            yield ("nsenter", f"--target={inner}", "--mount", "--pid", "--root", "--wd=/", "--")
        finally:
            outer.kill()
            outer.wait()
    finally:
        shutil.rmtree(directory)


def _sleeper(parent: int) -> int | None:
    """The process 1 below ``unshare``, once it is what it becomes last."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            name, _, rest = path.read_text().partition("(")[2].rpartition(")")
            if name == "sleep" and int(rest.split()[1]) == parent:
                return int(path.parent.name)
    return None

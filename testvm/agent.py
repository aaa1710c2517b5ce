"""The agent in the guest: does what the host asks for over a virtio port.

It lives as long as the machine. A command that is under way when the host goes away, or
restarts, is killed with all of its children.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from testvm import wire

CHUNK = 1 << 16
DRAIN = 2.0
"""Seconds for which output is read after a command's end: a daemon may hold the pipe."""
IDLE = 0.05


class Gone(Exception):
    """The host is not there any more."""


class Link:
    """The port, or anything like it: messages in and out, without ever blocking for good."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lines = wire.Lines()
        self._waiting: list[wire.Message] = []
        os.set_blocking(fd, False)

    def next(self, also: int | None = None, timeout: float | None = None) -> wire.Message | None:
        """The next message; None if ``also`` became readable or ``timeout`` seconds passed."""
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        if also is not None:
            poll.register(also, select.POLLIN)
        while not self._waiting:
            events = dict(poll.poll(None if timeout is None else timeout * 1000))
            mine = events.pop(self._fd, 0)
            if mine & select.POLLIN:
                self._receive()
            elif mine:
                raise Gone
            if not self._waiting and (events or not mine):
                return None
        return self._waiting.pop(0)

    def send(self, message: wire.Message) -> None:
        """Send ``message``, waiting while the host is slow; raises Gone if it is not there."""
        data = memoryview(wire.encode(message))
        poll = select.poll()
        poll.register(self._fd, select.POLLOUT)
        while data:
            if any(event & ~select.POLLOUT for _, event in poll.poll()):
                raise Gone
            try:
                data = data[os.write(self._fd, data[:CHUNK]) :]
            except BlockingIOError:
                continue
            except OSError:
                raise Gone from None

    def _receive(self) -> None:
        try:
            data = os.read(self._fd, CHUNK)
        except BlockingIOError:
            return
        except OSError:
            raise Gone from None
        if not data:
            raise Gone
        self._waiting += self._lines.feed(data)

    def put_back(self, message: wire.Message) -> None:
        """Let ``next`` return ``message`` again."""
        self._waiting.insert(0, message)


def serve(link: Link, facts: Callable[[], dict[str, str]], off: Callable[[], object]) -> None:
    """Answer requests until the host goes away (raises Gone) or wants the machine off."""
    while True:
        message = link.next()
        try:
            if message is None:
                continue
            if "hello" in message:
                link.send({"hello": message["hello"], "facts": facts()})
            elif "unpack" in message:
                _unpack(Path(message["unpack"]), wire.unpack(message["tar"]))
                link.send({"done": True})
            elif "run" in message:
                _run(link, message)
            elif "off" in message:
                off()
                return
        except (OSError, subprocess.SubprocessError) as error:
            link.send({"error": str(error)})


def _unpack(directory: Path, archive: bytes) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    subprocess.run(["tar", "-xzf", "-", "-C", directory], input=archive, check=True)


def _run(link: Link, request: wire.Message) -> None:
    process = subprocess.Popen(
        request["run"],
        env={**os.environ, **request["env"]},
        cwd=request["cwd"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    assert process.stdout is not None  # noqa: S101  it is a pipe
    with process.stdout as out:
        try:
            ended = _forward(link, process, out.fileno())
        except BaseException:
            _kill(process)
            raise
    if ended:
        status = process.returncode
        link.send({"exit": status if status >= 0 else 128 - status})
    else:
        _kill(process)


def _forward(link: Link, process: subprocess.Popen[bytes], out: int) -> bool:
    """Send what comes from ``out`` until the process ends; False if the host restarted."""
    until = None
    while until is None or time.monotonic() < until:
        message = link.next(also=out, timeout=0.2)
        if message is not None and "hello" in message:
            link.put_back(message)
            return False
        while select.select([out], [], [], 0)[0]:
            data = os.read(out, CHUNK)
            if not data:
                process.wait()
                return True
            link.send({"out": wire.pack(data)})
        if process.poll() is not None and until is None:
            until = time.monotonic() + DRAIN
    return True


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, 9)
    process.wait()


def _port() -> str:
    """The device of the virtio port, found without waiting for udev."""
    while True:
        for name in Path("/sys/class/virtio-ports").glob("*/name"):
            if name.read_text().strip() == wire.PORT:
                return f"/dev/{name.parent.name}"
        time.sleep(IDLE)


def _facts() -> dict[str, str]:
    """What is in this guest. Waits until ZFS is loaded, or has failed to."""
    while not Path("/run/booted").exists():
        time.sleep(IDLE)
    zfs = Path("/sys/module/zfs/version")
    return {
        "kernel": os.uname().release,
        "zfs": zfs.read_text().strip() if zfs.exists() else "",
        "python": sys.version.split()[0],
        "uptime": Path("/proc/uptime").read_text().split()[0],
    }


def _power_off() -> None:
    subprocess.run(["busybox", "poweroff", "-f"], check=False)


def main() -> None:
    """Serve one conversation after the other."""
    once = "testvm.once" in Path("/proc/cmdline").read_text().split()
    link = Link(os.open(_port(), os.O_RDWR))
    met = False
    while True:
        try:
            link.send({"ready": True})
            met = True
            serve(link, _facts, _power_off)
            return
        except Gone:
            if once and met:
                _power_off()
                return
            time.sleep(IDLE)


if __name__ == "__main__":
    main()

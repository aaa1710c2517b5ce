"""``vm _run`` of the double: what stays in the background while a guest runs, and its bhyve.

Read from: vm::run (lib/vm-run) of vm-bhyve, also for what it writes to the guest's log and which
files it leaves; bhyve(8) for exit codes and SIGTERM; block_if.c (a disk that cannot be written
is opened for reading), pci_virtio_console.c (sockets are made, not replaced; one connection at a
time, others are closed; what comes before the guest listens is thrown away). The guest's agent
speaks the QEMU Guest Agent Protocol; programs "in the guest" run here.
"""

from __future__ import annotations

import base64
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.contract.vm_double import Machine

REBOOTED, POWERED_OFF, FAILED = 0, 1, 4


def main(root: str, name: str) -> int:
    return run(Machine(Path(root)), name, Bhyve)


def run(m: Machine, name: str, bhyve: type[Bhyve]) -> int:
    """vm::run"""
    directory = m.vm_dir / name
    if not m.exists(name) or not m.confirm_stopped(name):
        return 10
    conf = m.guest(name)
    m.log(name, "initialising", f" [loader: {conf.get('loader', '')}]")
    if not conf.get("loader"):
        m.log(name, "fatal; unable to start - missing required configuration")
        return 15
    if not (m.root / "firmware.fd").exists():
        firmware = "/usr/local/share/uefi-firmware/BHYVE_UEFI.fd"
        m.log(name, f"fatal; unable to locate firmware {firmware}")
        return 15
    (directory / "console").write_text(f"com1=/dev/nmdm-{name}.1B\n")
    taps = networking(m, name, conf)
    (directory / "run.lock").write_text(m.rc["hostname"] + "\n")
    m.log(name, "booting", "starting bhyve (run 1)")
    errors = directory / "bhyve.log" if conf.get("debug") == "yes" else Path(os.devnull)
    pid = os.fork()
    if pid == 0:
        os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), 2)
        os._exit(bhyve(m, name, conf).run())
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    (m.root / "proc" / str(pid)).unlink(missing_ok=True)
    if directory.is_dir():
        m.log(name, f"bhyve exited with status {status}")
        for path in directory.glob("vtcon.*"):
            path.unlink()
        m.log(name, *(f"destroying network device {tap}" for tap in taps), "stopped")
    m.vmm(name).unlink(missing_ok=True)
    for left in ("run.lock", "console"):
        (directory / left).unlink(missing_ok=True)
    return status


def networking(m: Machine, name: str, conf: dict[str, str]) -> list[str]:
    """switch::standard::provision: a switch that is missing is noted, and no failure"""
    taps: list[str] = []
    while f"network{len(taps)}_type" in conf:
        switch, tap = conf[f"network{len(taps)}_switch"], f"tap-{name}-{len(taps)}"
        bridge = m.bridge(switch)
        if bridge:
            m.log(name, f"adding {tap} -> {bridge} ({switch} addm)")
        else:
            m.log(name, f"failed to find virtual switch '{switch}'")
        taps.append(tap)
    return taps


class Bhyve:
    """The process ``bhyve: NAME``."""

    def __init__(self, m: Machine, name: str, conf: dict[str, str]) -> None:
        self._m = m
        self._name = name
        self._conf = conf
        self._boots_at = time.monotonic() + m.rc["boot_seconds"]
        self._programs: dict[int, subprocess.Popen[bytes]] = {}
        self._selector = selectors.DefaultSelector()
        self._busy: dict[str, socket.socket] = {}
        self._signals: list[int] = []
        self._unread = self._failed = b""
        self._ended: int | None = None

    def run(self) -> int:
        self._m.vmm(self._name).touch()
        try:
            self._open_disks()
        except OSError as error:
            print(f"Could not open backing file: {error.strerror}", file=sys.stderr)
            return FAILED
        for signal_ in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(signal_, lambda got, _frame: self._signals.append(got))
        time.sleep(self._m.rc["init_seconds"])
        for number in range(16):
            if f"virt_console{number}" in self._conf:
                self._listen(self._conf[f"virt_console{number}"])
        title = self._m.root / "proc" / str(os.getpid())
        title.write_text(f"bhyve: {self._name}")
        while True:
            self._serve()
            if signal.SIGUSR1 in self._signals:
                return POWERED_OFF
            if signal.SIGTERM in self._signals:
                self._signals.clear()
                if self._awake and self._name not in self._m.rc["deaf"]:
                    return POWERED_OFF

    def _open_disks(self) -> None:
        number = 0
        while path := self._conf.get(f"disk{number}_name"):
            options = self._conf.get(f"disk{number}_opts", "").split(",")
            opened(path, readonly="ro" in options)
            number += 1

    @property
    def _awake(self) -> bool:
        return bool(time.monotonic() >= self._boots_at)

    def _listen(self, name: str) -> None:
        port = socket.socket(socket.AF_UNIX)
        port.bind(str(self._m.vm_dir / self._name / f"vtcon.{name}"))
        port.listen(1)
        self._selector.register(port, selectors.EVENT_READ, (name, True))

    def _serve(self) -> None:
        for key, _ in self._selector.select(0.02):
            name, listens = key.data
            port = key.fileobj
            assert isinstance(port, socket.socket)
            if listens:
                connection = port.accept()[0]
                if name in self._busy:
                    connection.close()
                else:
                    self._busy[name] = connection
                    self._selector.register(connection, selectors.EVENT_READ, (name, False))
                continue
            try:
                data = port.recv(65536)
                if data and self._awake:
                    port.sendall(self._guest(name, data))
            except OSError:
                data = b""
            if not data:
                self._selector.unregister(port)
                self._busy.pop(name).close()

    def _guest(self, name: str, data: bytes) -> bytes:
        if name == "org.lab.personalise.0":
            self._unread += data
            *lines, self._unread = self._unread.split(b"\n")
            return b"".join(map(self._item, lines))
        answers = b""
        for line in data.rpartition(b"\xff")[2].splitlines():
            try:
                request = json.loads(line)
                answers += self._agent(request["execute"], request.get("arguments", {}))
            except (ValueError, KeyError):
                answers += b'{"error": {"desc": "no such request"}}\n'
        return answers

    def _item(self, line: bytes) -> bytes:
        """A line to images/guest/usr/lib/lab/personalise."""
        word = line.partition(b" ")[0]
        if word == b"end":
            if self._failed:
                failed, self._failed = self._failed, b""
                return b"error " + failed.hex().encode() + b"\n"
            ended, self._ended = self._ended, None
            return b"ok\n" if ended is None else f"ok {ended}\n".encode()
        if word.endswith(b"begin"):
            self._failed = b""
        elif self._failed:
            return b""
        elif word == b"sessions":
            self._ended = (self._ended or 0) + self._disconnect()
        elif word and word not in (b"entropy", b"clock", b"reseed", b"file", b"sql"):
            self._failed = word + b": unknown item\n"
        return b""

    def _disconnect(self) -> int:
        """End the sessions of the guest's clients, whose number is in a file."""
        clients = self._m.root / f"{self._name}.sessions"
        number = int(clients.read_text()) if clients.exists() else 0
        clients.unlink(missing_ok=True)
        return number

    def _agent(self, command: str, arguments: dict[str, Any]) -> bytes:
        if command == "guest-sync-delimited":
            return b"\xff" + said(arguments["id"])
        if command == "guest-ping":
            return said({})
        if command == "guest-get-time":
            return said(time.time_ns())
        if command == "guest-exec":
            argv = [arguments["path"], *arguments["arg"]]
            pipe = subprocess.PIPE
            program = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe)
            assert program.stdin
            program.stdin.write(base64.b64decode(arguments.get("input-data", "")))
            program.stdin.close()
            self._programs[program.pid] = program
            return said({"pid": program.pid})
        program = self._programs[arguments["pid"]]
        if program.poll() is None:
            return said({"exited": False})
        assert program.stdout
        assert program.stderr
        out, err = (base64.b64encode(s.read()).decode() for s in (program.stdout, program.stderr))
        status = {"exited": True, "exitcode": program.returncode}
        return said({**status, "out-data": out, "err-data": err})


def said(value: object) -> bytes:
    return json.dumps({"return": value}).encode() + b"\n"


def opened(path: str, *, readonly: bool) -> int:
    """blockif_open: a disk that cannot be opened for writing is opened for reading"""
    try:
        return os.open(path, os.O_RDONLY if readonly else os.O_RDWR)
    except OSError:
        return os.open(path, os.O_RDONLY)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

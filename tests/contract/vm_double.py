"""A double of vm-bhyve's ``vm``: its states, messages, refusals and exit codes, without FreeBSD.

Run as ``vm_double.py ROOT ARGUMENT...``; ``install`` writes the program that tests put on PATH.
ROOT holds ``calls``, a line for each, and what FreeBSD would: ``rc.json`` (rc.conf and the
machine), ``dev/vmm``, ``proc`` (the titles of processes), ``if`` (interfaces), and ``vm``, which
is $vm_dir.

Read from vm-bhyve (1.8-devel, August 2026), function by function:

- lib/vm-base, lib/vm-cmd: order of the checks; ``version`` works without any; unknown commands
- lib/vm-util: util::err and its form, util::check_bhyve_support, util::check_name,
  util::validate_cidr, util::log
- lib/vm-config: config::load and config::get (comments, quotes, the first value counts)
- lib/vm-core: core::list, core::__start, core::start (what it returns), core::stop (a warning
  is no failure; a second passes; SIGTERM twice), core::poweroff (asks unless -f), core::console
- lib/vm-info: info::guest, info::guest_show as far as the state, the console's and disks' lines
- lib/vm-switch, lib/vm-switch-standard, lib/vm-switch-manual: create, list, remove (fails without
  a bridge), init (and what it returns), the bridge found by five characters of a hash, names of
  bridges up to 12 characters
- lib/vm-datastore: datastore::list, datastore::get_guest
- lib/vm-run (in ``vm_double_run``): vm::run, vm::lock, vm::confirm_stopped, vm::handle_exit,
  vm::running_check, networking without a switch (logged, no failure)
- column(1) of FreeBSD: two spaces between columns, empty cells vanish
- bhyve(8), block_if.c, pci_virtio_console.c (in ``vm_double_run``): see there
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import sys
import time
from hashlib import md5
from pathlib import Path
from typing import NoReturn

NAME = re.compile(r"[a-z0-9][.a-z0-9_-]{0,229}[a-z0-9]", re.IGNORECASE)
CIDR = re.compile(r"[0-9]{1,3}(\.[0-9]{1,3}){3}/[0-9]{1,2}")


def install(directory: Path, root: Path, /, **rc: object) -> Path:
    """Write ``vm`` into ``directory``, for a fresh machine at ``root``; its $vm_dir.

    ``run``: the program that is ``vm _run``; ``net``: bridges are real ones, of Linux.
    """
    for part in ("dev/vmm", "proc", "if", "vm"):
        (root / part).mkdir(parents=True)
    directory.mkdir()
    machine = {
        "vm_enable": "YES", "root": True, "vmm": "ok", "hostname": "host.example",
        "dataset": "zroot/vm", "version": "1.7.5", "tags": True, "deaf": [], "boot_seconds": 0.1,
        "init_seconds": 0.0, "net": False,
        "run": os.fspath(Path(__file__).with_name("vm_double_run.py").absolute()),
    }  # fmt: skip
    (root / "rc.json").write_text(json.dumps(machine | rc))
    (root / "firmware.fd").write_bytes(b"UEFI")
    program = directory / "vm"
    argv = [sys.executable, "-I", "-S", os.fspath(Path(__file__).absolute()), os.fspath(root)]
    program.write_text(f'#!/bin/sh\nexec {shlex.join(argv)} "$@"\n')
    program.chmod(0o755)
    return root / "vm"


class Machine:
    """What the scripts know: rc.conf, $vm_dir, running processes and interfaces."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.vm_dir = root / "vm"
        self.rc = json.loads((root / "rc.json").read_text())

    def config(self, path: Path) -> dict[str, str]:
        """config::load"""
        try:
            text = path.read_text()
        except OSError:
            return {}
        found: dict[str, str] = {}
        for line in text.splitlines():
            if "a" <= line[:1] <= "z":
                key, _, value = line.partition("#")[0].rstrip(" ").replace('"', "").partition("=")
                found.setdefault(key, value)
        return found

    def guest(self, name: str) -> dict[str, str]:
        return self.config(self.vm_dir / name / f"{name}.conf")

    def exists(self, name: str) -> bool:
        """datastore::get_guest"""
        return bool(name) and (self.vm_dir / name / f"{name}.conf").is_file()

    def vmm(self, name: str) -> Path:
        return self.root / "dev/vmm" / name

    def pid(self, name: str) -> int | None:
        """vm::running_check: the process whose title is ``bhyve: NAME``"""
        for path in (self.root / "proc").iterdir():
            try:
                if path.read_text() == f"bhyve: {name}" and alive(int(path.name)):
                    return int(path.name)
            except OSError:
                continue
        return None

    def confirm_stopped(self, name: str) -> bool:
        """vm::confirm_stopped with the local lock skipped"""
        lock = self.vm_dir / name / "run.lock"
        if lock.exists() and lock.read_text().strip() != self.rc["hostname"]:
            return False
        return not self.vmm(name).exists()

    def log(self, name: str, *lines: str) -> None:
        """util::log"""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime())
        with (self.vm_dir / name / "vm-bhyve.log").open("a") as log:
            log.writelines(f"{stamp}: {line}\n" for line in lines)

    def bridge(self, switch: str) -> str:
        """switch::find"""
        group = f"viid-{md5(switch.encode()).hexdigest()[:5]}@"  # noqa: S324  as vm-bhyve does
        for path in sorted((self.root / "if").iterdir()):
            if group in json.loads(path.read_text())["groups"]:
                return path.name
        return ""

    @property
    def system(self) -> Path:
        return self.vm_dir / ".config/system.conf"

    def set_system(self, values: dict[str, str]) -> None:
        text = "".join(f'{key}="{value}"\n' for key, value in values.items())
        self.system.write_text(text)


def alive(pid: int) -> bool:
    """Whether there is such a process that is not only waited for any more."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return not Path("/proc/self").exists() and _shown(pid)


def _shown(pid: int) -> bool:
    """The same where no /proc is mounted, as on FreeBSD."""
    import subprocess  # nothing else needs it, and to load it takes time

    argv = ["ps", "-o", "state=", "-p", str(pid)]
    state = subprocess.run(argv, check=False, capture_output=True, text=True).stdout
    return bool(state) and not state.startswith("Z")


def err(message: str) -> NoReturn:
    print(f"/usr/local/sbin/vm: ERROR: {message}", file=sys.stderr)
    sys.exit(1)


def warn(message: str) -> None:
    print(f"/usr/local/sbin/vm: WARNING: {message}", file=sys.stderr)


def column(rows: list[list[str]]) -> None:
    """column -ts^"""
    cells = [[cell for cell in row if cell] for row in rows]
    widths = [0] * max(map(len, cells))
    for row in cells:
        for number, cell in enumerate(row):
            widths[number] = max(widths[number], len(cell))
    for row in cells:
        padded = [f"{cell:<{widths[n]}}  " for n, cell in enumerate(row[:-1])]
        print("".join([*padded, row[-1]]))


def list_(m: Machine) -> None:
    head = ["NAME", "DATASTORE", "LOADER", "CPU", "MEMORY", "VNC", "AUTO", "STATE"]
    rows = [[*head, "TAGS"] if m.rc["tags"] else head]
    for name in sorted(path.name for path in m.vm_dir.iterdir() if path.name[0] != "."):
        if not m.exists(name):
            continue
        conf, pid = m.guest(name), m.pid(name)
        lock = m.vm_dir / name / "run.lock"
        state = "Stopped" if pid is None else f"Running ({pid})"
        if pid is None and (m.vm_dir / name / f"{name}.save").exists():
            state = "Suspended"
        if state == "Stopped" and lock.exists():
            state = f"Locked ({lock.read_text().strip()})"
        loader, cpu, memory = (
            conf.get("loader", "none"),
            conf.get("cpu", ""),
            conf.get("memory", ""),
        )
        row = [name, "default", loader, cpu, memory, "-", "No", state]
        tags = ",".join(conf.get("tags", "-").split()) or "-"
        rows.append([*row, tags] if m.rc["tags"] else row)
    column(rows)


def info(m: Machine, names: list[str]) -> None:
    for name in names:
        if not m.exists(name):
            err(f"unable to locate virtual machine '{name}'")
        conf, pid = m.guest(name), m.pid(name)
        rule = "-" * 24
        print(f"{rule}\nVirtual Machine: {name}\n{rule}")
        print(f"  state: {'stopped' if pid is None else f'running ({pid})'}\n  datastore: default")
        for key, default in (("loader", "none"), ("uuid", "auto"), ("cpu", "-"), ("memory", "-")):
            print(f"  {key}: {conf.get(key, default)}")
        if m.vmm(name).exists() and (console := m.vm_dir / name / "console").exists():
            print("\n  console-ports")
            for line in console.read_text().splitlines():
                print("    {}: {}".format(*line.split("=", 1)))
        number = 0
        while f"disk{number}_name" in conf:
            print(f"\n  virtual-disk\n    number: {number}")
            print(f"    system-path: {conf[f'disk{number}_name']}")
            number += 1
        print()


def start(m: Machine, names: list[str]) -> int:
    failed = 0
    for name in names:
        print(f"Starting {name}")
        conf = m.guest(name)
        if not m.exists(name):
            refusal = f"{name} does not seem to be a valid virtual machine"
        elif not m.confirm_stopped(name):
            refusal = "guest appears to be running already"
        elif not conf.get("cpu") or not conf.get("memory"):
            refusal = "incomplete virtual machine configuration"
        elif m.rc["vmm"] == "no unrestricted guest" and conf.get("loader") != "bhyveload":
            refusal = (
                "no unrestricted guest support in cpu. only single vcpu FreeBSD guests supported"
            )
        else:
            print(f"  * found guest in {m.vm_dir / name}\n  * booting...")
            argv = [sys.executable, "-I", "-S", m.rc["run"], str(m.root), name]
            import subprocess  # nothing else needs it, and to load it takes time

            null = subprocess.DEVNULL
            subprocess.Popen(argv, stdin=null, stdout=null, stderr=null)
            continue
        print(f"  ! {refusal}")
        failed += 1
    return failed


def stop(m: Machine, names: list[str]) -> None:
    for name in names:
        pid = m.pid(name)
        if not m.vmm(name).exists():
            warn(f"{name} doesn't appear to be a running virtual machine")
        elif pid is None:
            warn(f"unable to locate process id for {name}")
        else:
            print(f"Sending ACPI shutdown to {name}")
            for pause in (1, 0):
                if alive(pid):
                    os.kill(pid, signal.SIGTERM)
                time.sleep(pause)


def poweroff(m: Machine, arguments: list[str]) -> int:
    force = arguments[:1] == ["-f"]
    name = arguments[-1]
    if not m.vmm(name).exists():
        err(f"{name} doesn't appear to be a running virtual machine")
    if not force and not sys.stdin.readline().startswith("y"):
        return 0
    pid = m.pid(name)
    if pid is not None:
        os.kill(pid, signal.SIGUSR1)  # bhyvectl --force-poweroff
    try:
        m.vmm(name).unlink()
    except FileNotFoundError:
        return 1  # `vm _run` was there first: bhyvectl finds nothing to destroy
    return 0


def datastores(m: Machine) -> None:
    kind, dataset = ("zfs", m.rc["dataset"]) if m.rc["dataset"] else ("directory", "-")
    for row in (("NAME", "TYPE", "PATH", "ZFS DATASET"), ("default", kind, m.vm_dir, dataset)):
        print("{:<15} {:<11} {:<25} {}".format(*map(str, row)))


def checks(m: Machine) -> None:
    if m.rc["vm_enable"] != "YES":
        err("$vm_enable is not enabled in /etc/rc.conf!")
    if not m.rc["root"]:
        err("virtual machines can only be managed by root")
    if m.rc["vmm"] == "missing":
        err("unable to load vmm.ko!")
    if m.rc["vmm"] == "unsupported":
        err("virtualization is not supported or is disabled")
    if not m.vm_dir.is_dir():
        err("$vm_dir has not been configured or is not a valid directory")
    (m.vm_dir / ".config").mkdir(exist_ok=True)


def main(root: str, *arguments: str) -> int:
    m = Machine(Path(root))
    with (m.root / "calls").open("a") as calls:
        calls.write(shlex.join(["vm", *arguments]) + "\n")
    if not arguments:
        err("no command specified")
    command, rest = arguments[0], list(arguments[1:])
    if (m.root / "noise").exists():  # what sh says of rc.conf
        print((m.root / "noise").read_text(), file=sys.stderr)
    if command == "version":
        print(f"vm-bhyve: Bhyve virtual machine management v{m.rc['version']}")
        return 0
    checks(m)
    if command in ("switch", "init"):
        sys.path.insert(0, str(Path(__file__).parents[2]))
        from tests.contract import vm_double_switch

        return vm_double_switch.main(m, rest if command == "switch" else ["init"])
    if command in ("start", "poweroff"):
        return start(m, rest) if command == "start" else poweroff(m, rest)
    if [command, *rest] == ["datastore", "list"]:
        datastores(m)
    elif command == "list":
        list_(m)
    elif command == "info":
        info(m, rest)
    elif command == "stop":
        stop(m, rest)
    else:
        err(f"unknown command '{command}'. please run 'vm usage' or view the manpage for help")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

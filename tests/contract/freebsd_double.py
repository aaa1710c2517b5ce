"""Doubles of the programs of FreeBSD that vm-bhyve's own scripts call, to run those scripts here.

``install`` takes a checkout of vm-bhyve, which is not part of this repository, and lays its
scripts out to be run by bash: FreeBSD's sh has ``setvar`` and functions without a body beyond
it, and paths of devices lead into ROOT. What the programs do is from their manual pages:
ifconfig(8) as far as bridges and taps go, sysrc(8), pgrep(1), md5(1), bhyvectl(8), kldstat(8).
``bhyve`` is the guest of ``vm_double_run``. ROOT is laid out as in ``vm_double``; ``argv`` there
has a line for each start of bhyve.

Run as ``freebsd_double.py ROOT PROGRAM ARGUMENT...``.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from hashlib import md5
from pathlib import Path
from typing import Any

_HEAD = "{}: flags=8843<UP,BROADCAST,RUNNING> metric 0 mtu 1500"
_RC = """\
setvar() { eval "$1=\\$2"; }
load_rc_config() {
    [ ! -e ROOT/noise ] || cat ROOT/noise >&2
    vm_enable=YES; vm_dir=ROOT/vm
}
checkyesno() { [ "${!1}" = YES ]; }
"""


def install(directory: Path, root: Path, checkout: Path) -> None:
    """Lay out the scripts of ``checkout`` and all that they call in ``directory``."""
    from tests.contract import vm_double

    vm_double.install(directory, root)
    (root / "rc.subr").write_text(_RC.replace("ROOT", str(root)))
    machine = json.loads((root / "rc.json").read_text())
    (root / "rc.json").write_text(json.dumps(machine | {"hostname": os.uname().nodename}))
    places = {
        "/dev/vmm": f"{root}/dev/vmm",
        "/usr/local/lib/vm-bhyve": f"{root}/lib",
        "/usr/local/share/uefi-firmware/BHYVE_UEFI.fd": f"{root}/firmware.fd",
        "/etc/rc.subr": f"{root}/rc.subr",
        "(){ }": "() { :; }",
    }
    (root / "lib").mkdir()
    for script in (checkout / "vm", *(checkout / "lib").iterdir()):
        text = script.read_text()
        for old, new in places.items():
            text = text.replace(old, new)
        (root / "lib" / script.name).write_text(text)
    program = directory / "vm"
    program.write_text("#!/bin/bash\n" + (root / "lib/vm").read_text())
    argv = [sys.executable, "-I", "-S", os.fspath(Path(__file__).absolute()), os.fspath(root)]
    for name in PROGRAMS:
        path = directory / name
        path.write_text(f'#!/bin/sh\nexec {shlex.join([*argv, name])} "$@"\n')
        path.chmod(0o755)


def ifconfig(root: Path, arguments: list[str]) -> int:
    there = root / "if"
    if not arguments or arguments[0] == "-g":
        _show(there, arguments[1:])
        return 0
    name, *words = arguments
    if words[:1] == ["create"]:
        return _create(there, name, words[1:])
    path = there / name
    if not path.exists():
        return 1
    if words == ["destroy"]:
        path.unlink()
    elif words:
        path.write_text(json.dumps(_changed(json.loads(path.read_text()), words)))
    else:
        print(_HEAD.format(name))
    return 0


def _show(there: Path, groups: list[str]) -> None:
    """All interfaces, or the names of those in a group."""
    for path in sorted(there.iterdir()):
        interface = json.loads(path.read_text())
        if not groups:
            print(f"{_HEAD.format(path.name)}\n\tdescription: {interface.get('descr', '')}")
        elif groups[0] in interface["groups"]:
            print(path.name)


def _create(there: Path, kind: str, words: list[str]) -> int:
    number = 0
    while (there / f"{kind}{number}").exists():
        number += 1
    given = dict(zip(words[::2], words[1::2], strict=False))
    name = given.get("name", f"{kind}{number}")
    if len(name) > 15:
        return 1  # IFNAMSIZ
    groups = [given["group"]] if "group" in given else []
    (there / name).write_text(json.dumps({"groups": groups, "members": [], "address": ""}))
    print(name)
    return 0


def _changed(interface: dict[str, Any], words: list[str]) -> dict[str, Any]:
    while words:
        word = words.pop(0)
        if word == "group":
            interface["groups"].append(words.pop(0))
        elif word == "addm":
            interface["members"].append(words.pop(0))
        elif word in ("inet", "descr", "link"):
            interface["address" if word == "inet" else word] = words.pop(0)
        elif word != "up":
            sys.exit(f"ifconfig: {word}: bad value")
    return interface


def sysrc(root: Path, arguments: list[str]) -> int:
    del root
    flags, file, *wanted = arguments
    path = Path(file)
    lines = path.read_text().splitlines() if path.exists() else []
    values = {key: value.strip('"') for key, _, value in (line.partition("=") for line in lines)}
    for word in " ".join(wanted).split() if "x" in flags else wanted:
        match = re.fullmatch(r"([A-Za-z_][A-Za-z0-9_]*)(?:([+-]?)=(.*))?", word)
        if match is None:
            sys.exit(f"sysrc: {word}: name contains characters not allowed in shell")
        key, how, value = match.groups()
        old = values.get(key, "").split()
        if "x" in flags:
            values.pop(key, None)
        elif value is None:
            print(values.get(key, ""))
        elif how == "+":
            values[key] = " ".join([*old, *(v for v in value.split() if v not in old)])
        else:
            kept = [v for v in old if v not in value.split()]
            values[key] = " ".join(kept) if how == "-" else value
    path.write_text("".join(f'{key}="{value}"\n' for key, value in values.items()))
    return 0


def _processes(root: Path) -> Iterator[tuple[int, str]]:
    from tests.contract.vm_double import alive

    for path in sorted((root / "proc").iterdir()):
        if alive(int(path.name)):
            yield int(path.name), path.read_text()


def pgrep(root: Path, arguments: list[str]) -> int:
    flags, pattern = arguments
    find = re.fullmatch if "x" in flags else re.search
    found = [(pid, title) for pid, title in _processes(root) if find(pattern, title)]
    for pid, title in found:
        print(f"{pid} {title}" if "l" in flags else pid)
    return 0 if found else 1


def bhyvectl(root: Path, arguments: list[str]) -> int:
    name = next((word[5:] for word in arguments if word.startswith("--vm=")), "")
    device = root / "dev/vmm" / name
    if not name or not device.exists():
        print(f"VM:{name} is not created.", file=sys.stderr)
        return 1
    if "--force-poweroff" in arguments:
        for pid, title in _processes(root):
            if title == f"bhyve: {name}":
                os.kill(pid, signal.SIGUSR1)
    if "--destroy" in arguments:
        device.unlink()
    return 0


def bhyve(root: Path, arguments: list[str]) -> int:
    from tests.contract.vm_double import Machine
    from tests.contract.vm_double_run import Bhyve

    with (root / "argv").open("a") as argv:
        argv.write(shlex.join(["bhyve", *arguments]) + "\n")
    machine = Machine(root)
    return Bhyve(machine, arguments[-1], machine.guest(arguments[-1])).run()


def says(text: str) -> Callable[[Path, list[str]], int]:
    """A program that always prints ``text``."""

    def program(root: Path, arguments: list[str]) -> int:
        del root, arguments
        sys.stdout.write(text)
        return 0

    return program


def _md5(root: Path, arguments: list[str]) -> int:
    del root
    print(md5(arguments[-1].encode()).hexdigest())  # noqa: S324  as vm-bhyve asks
    return 0


PROGRAMS: dict[str, Callable[[Path, list[str]], int]] = {
    "ifconfig": ifconfig,
    "sysrc": sysrc,
    "pgrep": pgrep,
    "md5": _md5,
    "bhyvectl": bhyvectl,
    "bhyve": bhyve,
    "kldstat": says(""),
    "kldload": says(""),
    "uname": says("1403000\n"),
    "sysctl": says("hw.model: AMD EPYC 7302P 16-Core Processor\n"),
    "netstat": says(""),
}

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    sys.exit(PROGRAMS[sys.argv[2]](Path(sys.argv[1]), sys.argv[3:]))

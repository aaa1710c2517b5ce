"""The switches of the double of ``vm``; what was read is listed in ``vm_double``."""

from __future__ import annotations

import getopt
import json
import os
from hashlib import md5
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.contract.vm_double import Machine


def main(m: Machine, arguments: list[str]) -> int:
    """cmd::parse_switch, and the part of ``vm init`` that concerns switches"""
    command, *rest = arguments
    if command == "init":
        status = 0
        for name in _names(m):
            status = _init(m, name)
        return status  # of the last switch: nobody looks at the others'
    if command == "list":
        _list(m)
    elif command == "create":
        _create(m, rest)
    elif command == "destroy":
        _destroy(m, rest[0])
    return 0


def _names(m: Machine) -> list[str]:
    return m.config(m.system).get("switch_list", "").split()


def _create(m: Machine, arguments: list[str]) -> None:
    from tests.contract.vm_double import CIDR, NAME, err

    options, (name,) = getopt.getopt(arguments, "t:i:n:b:a:m:p")
    given = dict(options)
    address, kind = given.get("-a", ""), given.get("-t", "standard")
    if not NAME.fullmatch(name):
        err(f"invalid switch name - '{name}'")
    if name in _names(m):
        err(f"switch {name} already exists")
    if address and not CIDR.fullmatch(address):
        err("address must be supplied in CIDR notation (e.g. 192.0.2.1/24, 3fff::1/64)")
    values = m.config(m.system)
    if kind == "manual":
        if "-b" not in given:
            err("you must specify a bridge to import when creating a manual switch")
        if not (m.root / "if" / given["-b"]).exists():
            err(f"{given['-b']} does not appear to be a valid existing bridge")
        values[f"bridge_{name}"] = given["-b"]
    values["switch_list"] = " ".join([*_names(m), name])
    values[f"type_{name}"] = kind
    if address:
        values[f"addr_{name}"] = address
    m.set_system(values)
    _init(m, name)


def _init(m: Machine, name: str) -> int:
    """switch::standard::init, switch::manual::init"""
    viid = f"viid-{md5(name.encode()).hexdigest()[:5]}@"  # noqa: S324  as vm-bhyve does
    if m.bridge(name):
        return 0
    conf = m.config(m.system)
    if conf.get(f"type_{name}") == "manual":
        path = m.root / "if" / conf[f"bridge_{name}"]
        if not path.exists():
            return 1
        found = json.loads(path.read_text())
        path.write_text(json.dumps({**found, "groups": [*found["groups"], "vm-switch", viid]}))
        return 0
    number = 0
    while (m.root / "if" / f"bridge{number}").exists():
        number += 1
    interface = f"vm-{name}" if len(name) <= 12 else f"bridge{number}"
    what = {
        "groups": ["vm-switch", viid],
        "address": conf.get(f"addr_{name}", ""),
        "members": [],
    }
    path = m.root / "if" / interface
    draft = m.root / f"draft-{os.getpid()}"
    draft.write_text(json.dumps(what))
    draft.replace(path)
    if m.rc["net"]:
        _plumb(interface, str(what["address"]))
    return 0


def _plumb(interface: str, address: str) -> None:
    _ip("link", "add", interface, "type", "bridge")
    if address:
        _ip("address", "add", address, "dev", interface)
    _ip("link", "set", interface, "up")


def _ip(*arguments: str) -> None:
    import subprocess  # nothing else needs it, and to load it takes time

    subprocess.run(["ip", *arguments], check=True)


def _list(m: Machine) -> None:
    """switch::list, switch::standard::show, switch::manual::show"""
    from tests.contract.vm_double import column

    conf = m.config(m.system)
    rows = [["NAME", "TYPE", "IFACE", "ADDRESS", "PRIVATE", "MTU", "VLAN", "PORTS"]]
    for name in _names(m):
        bridge, address = m.bridge(name) or "-", conf.get(f"addr_{name}") or "-"
        ports = conf.get(f"ports_{name}", "-")
        private = conf.get(f"private_{name}", "no")
        if conf.get(f"type_{name}") == "manual":
            none = ["n/a"] * 3
            rows.append([name, "manual", conf[f"bridge_{name}"], "n/a", private, *none])
            continue
        rows.append([name, "standard", bridge, address, private, "-", "-", ports])
    column(rows)


def _destroy(m: Machine, name: str) -> None:
    """switch::remove"""
    from tests.contract.vm_double import err

    values = m.config(m.system)
    if f"type_{name}" not in values:
        err("unable to remove switch of unknown type")
    bridge = m.bridge(name)
    if not bridge and values[f"type_{name}"] == "standard":
        err("failed to remove virtual switch")
    if values[f"type_{name}"] == "standard":
        (m.root / "if" / bridge).unlink()
        if m.rc["net"]:
            _ip("link", "delete", bridge)
    values["switch_list"] = " ".join(other for other in _names(m) if other != name)
    for key in ("type", "addr", "ports", "private", "bridge"):
        values.pop(f"{key}_{name}", None)
    m.set_system(values)

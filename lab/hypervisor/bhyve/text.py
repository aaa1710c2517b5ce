"""Parses the output of vm-bhyve, which has no machine-readable format.

Formats: the functions core::list (lib/vm-core), info::guest_show (lib/vm-info), switch::list
(lib/vm-switch) and datastore::list (lib/vm-datastore) of vm-bhyve 1.5 to 1.8. The tables pass
through column(1), which separates columns by two spaces or more and drops empty cells. So cells are
counted from the end that is never empty, and unknown text is an error: a guest must not be reported
as stopped because a line was truncated.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from lab.errors import HostUnfit
from lab.values import dataclass

State = Literal["running", "locked", "stopped"]
"""``locked``: starting or ending, or left by a crash of the host."""

_GAP = re.compile(r"\s{2,}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
# The file that names the lock's host may be empty (it is just being written, or a host crashed), or
# removed since vm-bhyve saw it.
_STATE = re.compile(r"(?:(Running|Bootloader) \(\d+\)|(Locked) \([^()]*\)|(Stopped|Suspended))")
_INFO_STATE = re.compile(r"(?:(running|bootloader) \(\d+\)|(stopped|suspended))")
_VERSION = re.compile(r"vm-bhyve: .* v([0-9][0-9A-Za-z.-]*)")
_DATASTORE = re.compile(r"(\S+) +(zfs|directory|iso|img) +(/.*\S) +(\S+)")


@dataclass(frozen=True)
class Row:
    """A guest in ``vm list``."""

    name: str
    state: State


@dataclass(frozen=True)
class Switch:
    """A switch in ``vm switch list``: its bridge and its IPv4 network, empty where it has none."""

    name: str
    bridge: str
    address: str


@dataclass(frozen=True)
class Datastore:
    """A directory of vm-bhyve's guests; ``dataset`` is empty unless it is on ZFS."""

    name: str
    path: Path
    dataset: str


def guests(text: str) -> dict[str, Row]:
    """The guests of ``vm list``, by name; raises HostUnfit for unknown text."""
    rows = _table(text, "vm list", "NAME", "STATE")
    head = next(rows)
    behind = len(head) - 1 - head.index("STATE")
    found = {}
    for cells in rows:
        at = len(cells) - 1 - behind
        match = _STATE.fullmatch(cells[at]) if at > 0 else None
        if match is None:
            raise _unknown("vm list", "  ".join(cells))
        state: State = "running" if match[1] else "locked" if match[2] else "stopped"
        found[cells[0]] = Row(cells[0], state)
    return found


def state_of(text: str, name: str) -> State:
    """The state of guest ``name`` in ``vm info``; raises HostUnfit for unknown text."""
    lines = text.splitlines()
    if f"Virtual Machine: {name}" in lines:
        for line in lines[lines.index(f"Virtual Machine: {name}") + 1 :]:
            if line.startswith("Virtual Machine: "):
                break
            key, _, value = line.partition(": ")
            match = _INFO_STATE.fullmatch(value)
            if key == "  state" and match:
                return "running" if match[1] else "stopped"
    raise _unknown("vm info", (lines or [""])[-1])


def switches(text: str) -> dict[str, Switch]:
    """The switches of ``vm switch list``, by name; raises HostUnfit for unknown text."""
    rows = _table(text, "vm switch list", "NAME", "ADDRESS")
    head = next(rows)
    iface, address = head.index("IFACE"), head.index("ADDRESS")
    found = {}
    for cells in rows:
        if len(cells) == 1 and ":" in cells[0]:
            continue  # the second line of a switch with an IPv6 address as well
        if len(cells) < len(head) or not _NAME.fullmatch(cells[0]):
            raise _unknown("vm switch list", "  ".join(cells))
        bridge = "" if cells[iface] == "-" else cells[iface]
        found[cells[0]] = Switch(cells[0], bridge, cells[address] if "." in cells[address] else "")
    return found


def datastores(text: str) -> dict[str, Datastore]:
    """The datastores of ``vm datastore list``, by name; raises HostUnfit for unknown text."""
    head, *lines = text.splitlines() or [""]
    if head.split()[:3] != ["NAME", "TYPE", "PATH"] or not lines:
        raise _unknown("vm datastore list", head)
    found = {}
    for line in lines:
        match = _DATASTORE.fullmatch(line.strip())
        if match is None:
            raise _unknown("vm datastore list", line)
        name, kind, path, dataset = match.groups()
        found[name] = Datastore(name, Path(path), dataset if kind == "zfs" else "")
    return found


def version(text: str) -> str:
    """The version of vm-bhyve from ``vm version``; raises HostUnfit for unknown text."""
    match = _VERSION.search(text)
    if match is None:
        raise _unknown("vm version", text)
    return match[1]


def _table(text: str, command: str, *needed: str) -> Iterator[list[str]]:
    """The cells of each line, those of the headings first."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    head = _GAP.split(lines[0]) if lines else []
    if not set(needed) <= set(head):
        raise _unknown(command, lines[0] if lines else "")
    yield head
    for line in lines[1:]:
        yield _GAP.split(line)


def _unknown(command: str, line: str) -> HostUnfit:
    return HostUnfit(
        f"`{command}` printed an unexpected line",
        details=[line or "nothing"],
        hint="compare its output; `lab doctor` lists the supported versions of vm-bhyve",
    )

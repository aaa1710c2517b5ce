"""What ``zpool status`` prints of one pool (cmd/zpool/zpool_main.c, OpenZFS 2.1 to 2.4).

Each part begins with its name and a colon after at most seven spaces; further lines of it
begin with a tab. The machine-readable form (-j) came with 2.3 only.
"""

from __future__ import annotations

import re
import time
from typing import Literal

from lab.host.zfs.facts import Scan, Status, Unknown
from lab.host.zfs.parse import lines

_PART = re.compile(r" {0,7}([a-z]+):(?: (.*))?")
# A sequential resilver names its device: resilver (mirror-0) in progress since ...
_ENDED = re.compile(r"(scrub repaired|resilvered) .* with ([0-9]+) errors on (.*)")
_CANCELED = re.compile(r"(scrub|resilver)(?: \(.*?\))? canceled on (.*)")
_STARTED = re.compile(r"(scrub|resilver)(?: \(.*?\))? (in progress|paused) since (.*)")


def status(text: str) -> Status | Unknown:
    """The first pool's; Unknown if the text does not say how the pool is."""
    parts = _parts(text)
    states = [text for name, text in parts if name == "state"]
    if not states or not states[0]:
        return Unknown("`zpool status` was cut off or is of an unknown form")
    scans = [_scan(text) for name, text in parts if name == "scan"]
    return Status(
        states[0],
        _first(parts, "status"),
        _first(parts, "action"),
        tuple(scan for scan in scans if scan),
        _first(parts, "errors"),
    )


def _parts(text: str) -> list[tuple[str, str]]:
    """Name and text of each part of the first pool, its lines joined by single spaces."""
    found: list[tuple[str, list[str]]] = []
    for line in lines(text):
        part = _PART.fullmatch(line)
        if part and part[1] == "pool" and found:
            break
        if part:
            found.append((part[1], [part[2] or ""]))
        elif found:
            found[-1][1].append(line)
    return [(name, " ".join(" ".join(texts).split())) for name, texts in found]


def _first(parts: list[tuple[str, str]], name: str) -> str:
    return next((text for part, text in parts if part == name), "")


def _scan(text: str) -> Scan | None:
    """None for ``none requested`` and what newer versions may say."""
    kind: Literal["scrub", "resilver"] = "scrub" if text.startswith("scrub ") else "resilver"
    if found := _ENDED.match(text):
        return Scan(kind, "finished", _when(found[3]), int(found[2]))
    if found := _CANCELED.match(text):
        return Scan(kind, "canceled", _when(found[2]))
    if found := _STARTED.match(text):
        return Scan(kind, "paused" if found[2] == "paused" else "running", _when(found[3]))
    return None


def _when(text: str) -> float | None:
    """Of ctime(3), local time: the first five words, such as Sat Nov 21 11:23:35 2026."""
    words = " ".join(text.split()[:5])
    try:
        return time.mktime(time.strptime(words, "%a %b %d %H:%M:%S %Y"))
    except (ValueError, OverflowError):
        return None

"""Cold labs as bhyve has them: UEFI firmware, clones of a formed cluster's disks, no RAM.

The guests are those of tests/e2e/test_bhyve.py: what the driver for bhyve writes, QEMU runs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from bench.figures import Figure, start_up
from bench.labs import ROOT, Failed, Home, one_line
from bench.measure import UP, Log

if TYPE_CHECKING:
    from tests.e2e.bhyve_site import Host
    from tests.e2e.e2e_site import Done, Site

_SERVERS = ("mariadb.service", "mysql.service")
_START = "InactiveExitTimestampMonotonic"
_READY = "ActiveEnterTimestampMonotonic"
_KERNEL = "UserspaceTimestampMonotonic"


def cold_clones(home: Home, runs: int, log: Log) -> tuple[Figure, dict[str, list[float]]]:
    """Cold ``lab up`` of three nodes, and where its time goes; ``home`` has the image.

    No samples, and a note, where this machine cannot play a host for bhyve.
    """
    seconds: list[float] = []
    parts: dict[str, list[float]] = {}
    note = (
        "template there; QEMU plays bhyve; `kernel`, `system`, `server`: of `form`, in the guests"
    )
    for part in ("e2e", "contract"):
        sys.path.insert(0, str(ROOT / "tests" / part))
    from tests.e2e.bhyve_site import NotHere

    try:
        with _host(home) as host:
            for number in range(1, runs + 1):
                with log.attempt(f"cold clone by firmware {number}"):
                    took, found = _up_and_down(host.site)
                    seconds.append(took)
                    for name, values in found.items():
                        parts.setdefault(name, []).extend(values)
    except NotHere as why:
        runs, note = 0, f"not taken: {why}"
    name = "cold lab as bhyve has it: booted by UEFI from clones of formed disks"
    return Figure(name, "s", tuple(seconds), note=note, failed=runs - len(seconds)), parts


@contextmanager
def _host(home: Home) -> Iterator[Host]:
    """A host for bhyve with image and template."""
    from tests.e2e.bhyve_site import bhyve_host

    with bhyve_host(home.token) as host:
        archive = host.directory / "image.lab"
        (image,) = home.run("image", "ls", "-o", "json").value
        home.run("image", "export", image["key"], str(archive))
        _lab(host.site, "image", "import", str(archive))
        archive.unlink()
        _lab(host.site, "template", "build", *UP[1:])
        yield host


def _up_and_down(site: Site) -> tuple[float, dict[str, list[float]]]:
    try:
        took, view = _lab(site, *UP, "--name", "bench", "-o", "json")
        if view["started"] != "cold" or not view["template"]:
            raise Failed(f"it is no cold clone: {view['started']} of {view['template']!r}")
        found = {name: [value] for name, value in start_up(took, view["steps"]).items()}
        for node in view["nodes"]:
            for name, value in _inside(site, node["name"]).items():
                found.setdefault(name, []).append(value)
        return took, found
    finally:
        site.lab("down", "bench", code=None)


def _inside(site: Site, node: str) -> dict[str, float]:
    """Where the time of a guest's own start went, in seconds."""

    def properties(*words: str) -> dict[str, str]:
        argv = ("exec", "bench", "--node", node, "--", "systemctl", "show", *words)
        lines = _run(site, *argv).stdout.splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)

    kernel = int(properties("-p", _KERNEL)[_KERNEL]) / 1e6
    servers = [properties("-p", _START, "-p", _READY, server) for server in _SERVERS]
    start, ready = (max(int(server[key]) / 1e6 for server in servers) for key in (_START, _READY))
    return {"kernel": kernel, "system": start - kernel, "server": ready - start}


def _lab(site: Site, *words: str) -> tuple[float, Any]:
    """Run a command to its end: its seconds, and what it printed as JSON; raises Failed."""
    done = _run(site, *words)
    return done.seconds, json.loads(done.stdout) if done.stdout.startswith("{") else None


def _run(site: Site, *words: str) -> Done:
    done = site.lab(*words, code=None, timeout=900)
    if done.code:
        raise Failed(f"lab {' '.join(words)} exited {done.code}: {one_line(done.stderr)}")
    return done

"""Bad luck on real guests: killed commands, dying QEMUs, damaged files, and many repetitions.

The kill sweep at each step is ``tests/unit/lifecycle/promises/test_killed.py``; here are the
moments that fakes cannot vouch for.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lab.names import template_ref
from lab.wait import Deadline, until
from tests.e2e.e2e_site import PXC, Site

pytestmark = pytest.mark.e2e

ONE = (*PXC, "--nodes", "1")


def usual_and_rare(usual: object, *rare: object) -> list[Any]:
    """Values of a parameter; tests of all but the first are rare."""
    return [pytest.param(usual), *(pytest.param(one, marks=pytest.mark.rare) for one in rare)]


def swept(site: Site, killed: int) -> None:
    """A process was killed, and ``lab gc`` removes all that it left."""
    assert killed == -signal.SIGKILL, "it ended before the moment came"
    site.lab("gc")
    assert site.settled() == []


@pytest.mark.parametrize(
    "moment",
    [
        "sql 1",
        *usual_and_rare("restore 3", "clone 2", "guest 1", "resume 1", "channel 2"),
    ],
)
def test_up_is_killed(site: Site, moment: str) -> None:
    """Protects the host: three guests in any state between a file and a ready cluster."""
    step, count = moment.split()
    swept(site, site.crash("up", step, int(count)))


@pytest.mark.rare  # the sweep on fakes has these moments too
@pytest.mark.parametrize("moment", ["save_memory 2", "start 2", "persist 1"])
def test_template_making_is_killed(site: Site, moment: str) -> None:
    """While it boots, when RAM is half saved, when the disks are snapshotted but not safe."""
    step, count = moment.split()
    templates = site.lab("template", "ls", "-o", "name").stdout
    swept(site, site.crash("template", step, int(count)))
    assert site.lab("template", "ls", "-o", "name").stdout == templates


@pytest.mark.parametrize("moment", usual_and_rare("persist", "import_raw"))
def test_publishing_an_image_is_killed(site: Site, moment: str) -> None:
    images = site.lab("image", "ls", "-o", "name").stdout
    swept(site, site.crash("image", moment, 1))
    assert site.lab("image", "ls", "-o", "name").stdout == images


def test_an_image_build_is_killed(site: Site) -> None:
    """In the middle of the bootstrap: no process, no mount and no file is left."""
    with site.sibling() as empty:
        assert empty.crash("image", "bootstrap", 1) == -signal.SIGKILL

        def ended() -> bool | None:
            return None if empty.processes() else True

        assert until(ended, Deadline.after(5)), "processes that it started still run"
        assert str(empty.root) not in Path("/proc/self/mountinfo").read_text()
        empty.lab("gc")
        assert empty.settled() == []
        assert list(empty.home.builds.iterdir()) == []
        assert empty.lab("image", "ls", "-o", "name").stdout == ""


def _when_there(site: Site, act: Callable[[int], object], *, seconds: float = 60.0) -> None:
    """Do ``act`` with the process id of the first QEMU that appears."""

    def look() -> int | None:
        return next((pid for pid, line in site.processes() if "qemu-system" in line), None)

    pid = until(look, Deadline.after(seconds), first=0.01, most=0.01)
    assert pid is not None, "no guest came"
    act(pid)


def test_a_qemu_dies_during_restore(site: Site) -> None:
    """The other guests and all files go with it; the error is a sentence and names the evidence."""
    process = site.start("up", *PXC, "--nodes", "3", "--name", site.name("dies"))
    try:
        _when_there(site, lambda pid: os.kill(pid, signal.SIGKILL))
        _, stderr = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode in (5, 7), stderr
    assert stderr.startswith("lab: error: ")
    assert "n1" in stderr or "n2" in stderr or "n3" in stderr
    (bundle,) = [line for line in stderr.splitlines() if line.startswith("  bundle: ")]
    Path(bundle.removeprefix("  bundle: ")).unlink()
    assert site.settled() == []


@pytest.mark.parametrize("case", usual_and_rare("warm 2", "warm 1", "cold 1", "cold 2"))
def test_ctrl_c(site: Site, case: str) -> None:
    """Once or twice: it removes what was made, at once, and says so."""
    how, times = case.split()
    cold = ("--cold", "--nodes", "1") if how == "cold" else ("--nodes", "3")
    process = site.start("up", *PXC, *cold, "--name", site.name("stop"))
    try:
        _when_there(site, lambda _: process.send_signal(signal.SIGINT))
        began = time.monotonic()
        if times == "2":
            # the second one while the first is being answered
            assert process.stderr is not None
            assert "interrupted" in process.stderr.read(20)
            process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 130, stderr
    assert time.monotonic() - began < 30
    assert "Traceback" not in stderr
    assert site.settled() == []


@pytest.mark.rare  # tests/unit/lifecycle/snapshots/test_templates.py has these on fakes
@pytest.mark.parametrize("damage", ["flipped device state", "truncated RAM"])
def test_a_damaged_template_is_rebuilt(site: Site, damage: str) -> None:
    """Real RAM images: a damaged one is never restored."""
    site.lab("template", "build", *ONE)
    key = site.template(1)["key"]
    if damage == "truncated RAM":
        os.truncate(site.home.ram(template_ref(key), "n1"), 100 << 20)
    else:
        path = site.home.device_state(template_ref(key), "n1")
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 0x10
        path.write_bytes(content)
    done = site.lab("up", *ONE, "--name", site.name("again"))
    assert "is not used" in done.stderr
    assert "warm" in done.stdout
    site.lab("down", site.name("again"))
    made = site.template(1)
    assert (made["key"], made["state"]) == (key, "ready")


def _descriptors() -> int:
    """Open files of the libvirt daemon, 0 if it is not ours to see."""
    found = subprocess.run(["pidof", "libvirtd"], capture_output=True, text=True, check=False)
    try:
        return sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in found.stdout.split())
    except OSError:
        return 0


@pytest.mark.parametrize("cycles", usual_and_rare(4, 50))
def test_many_cycles_leak_nothing(site: Site, cycles: int) -> None:
    """As a CI server goes through labs for months: processes, files, ports, descriptors, disk."""
    name = site.name("again")
    figures: list[tuple[int, int]] = []
    others = site.foreign_guests()
    for _ in range(cycles):
        site.lab("up", *ONE, "--name", name)
        site.lab("down", name)
        assert site.settled() == []
        figures.append((_descriptors(), site.used()))
    # The first ones fill caches, such as a write-ahead log.
    if site.foreign_guests() == others:  # the daemon has files open for those of other homes too
        assert figures[-1][0] <= figures[1][0] + 2, figures
    assert figures[-1][1] <= figures[1][1] + (4 << 20), figures

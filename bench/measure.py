"""What is measured: one function a figure. Targets are those of docs/benchmarks.md."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pymysql

from bench.figures import Figure, Target, start_up
from bench.labs import Failed, Home, Ran, together
from bench.probe import disk, pss, qemu_of, unready
from lab.errors import LabError
from lab.paths import Home as LabHome
from lab.state.records import LabRecord, NodeRecord
from lab.state.store import Store
from lab.units import MIB

UP = ("up", "pxc", "--nodes", "3")
MEGABYTE = 1_000_000
RECORDED = 200
AT_ONCE = 8


@dataclass(frozen=True)
class Runs:
    """How often each thing is done."""

    warm: int = 9
    cold: int = 5
    image: int = 5
    memory: int = 5
    load: int = 5
    ls: int = 9
    at_once: int = 5
    service: int = 5
    firmware: int = 5
    captures: int = 5
    resets: int = 7
    wakes: int = 200
    datasets: int = 5
    topologies: int = 5
    engines: int = 5
    growth: int = 3
    readers: int = 5
    polled: float = 60.0
    """Seconds for which clients poll."""
    pipelines: float = 90.0
    """Seconds for which CI pipelines make labs."""
    megabytes: int = 1000
    """Of SQL, in the dataset."""
    fleet: float = 600.0
    """Seconds for which labs are requested of a fleet."""


FULL = Runs()
QUICK = Runs(
    warm=3,
    cold=1,
    image=1,
    memory=1,
    load=1,
    ls=3,
    at_once=1,
    service=1,
    firmware=1,
    captures=1,
    resets=3,
    wakes=10,
    datasets=1,
    topologies=1,
    engines=1,
    growth=1,
    readers=1,
    polled=10.0,
    pipelines=20.0,
    megabytes=100,
    fleet=30.0,
)


@dataclass
class Log:
    """Progress while measuring, and failures."""

    say: Callable[[str], None]
    failures: list[str] = field(default_factory=list)

    @contextmanager
    def attempt(self, what: str) -> Iterator[None]:
        """A failure in the block is noted, and does not stop the rest."""
        self.say(what)
        try:
            yield
        except (Failed, LabError) as error:  # of a command, and of the client
            self.failures.append(f"{what}: {error}")
            self.say(f"  FAILED: {error}")


def image(home: Home, runs: int, log: Log) -> Figure:
    """Builds of the image that ``pxc`` uses here; it is there afterwards. Raises Failed."""
    recipe = _recipe(home)
    seconds: list[float] = []
    while len(seconds) < runs:
        log.say(f"image build {len(seconds) + 1} ({recipe})")
        try:
            seconds.append(home.run("image", "build", recipe, "--rebuild", "-o", "json").seconds)
        except Failed as error:
            if seconds or (other := _recipe(home)) == recipe:
                raise
            log.say(f"  {error}; using {other}")
            recipe = other
    return Figure(
        "image build",
        "s",
        tuple(seconds),
        Target(90, 60),
        f"`lab image build {recipe} --rebuild`, packages from the mirror; {runs} runs",
    )


def engine(home: Home) -> str:
    """What is in the images that were built, each with its version."""
    found = {
        f"{built['engine']} {built['engine_version'].removeprefix(built['engine'])}".strip()
        for built in home.run("image", "ls", "-o", "json").value
    }
    return ", ".join(sorted(found))


def cold(home: Home, runs: int, log: Log) -> Figure:
    """``lab up`` where there is an image and no template; one is there afterwards."""
    seconds = []
    for number in range(1, runs + 1):
        _drop_templates(home)
        with log.attempt(f"cold up {number}"):
            seconds.append(_up_and_down(home, number)[0].seconds)
    return Figure(
        "cold `lab up pxc --nodes 3`: image built, no template",
        "s",
        tuple(seconds),
        Target(90, 45),
        f"forms and captures a template, clones it; {runs} runs",
        failed=runs - len(seconds),
    )


def warm(home: Home, runs: int, log: Log) -> tuple[Figure, Figure, dict[str, list[float]]]:
    """``lab up`` with its template there, ``lab down``, and where the time of ``up`` goes."""
    ups, downs = [], []
    parts: dict[str, list[float]] = {}
    home.run("template", "build", *UP[1:])
    for number in range(1, runs + 1):
        with log.attempt(f"warm up {number}"):
            up, down = _up_and_down(home, number)
            if up.value["started"] != "warm":
                raise Failed(f"it started {up.value['started']}: {up.value['why_cold']}")
            ups.append(up.seconds)
            downs.append(down.seconds)
            for part, seconds in start_up(up.seconds, up.value["steps"]).items():
                parts.setdefault(part, []).append(seconds)
    failed = runs - len(ups)
    return (
        Figure(
            "warm `lab up pxc --nodes 3`",
            "s",
            tuple(ups),
            Target(1.6, 1.2),
            "process start to exit; SQL through all three ports checked afterwards",
            failed=failed,
        ),
        Figure("`lab down`", "s", tuple(downs), Target(1.0, 0.4), "process start to exit"),
        parts,
    )


def footprint(home: Home, runs: int, log: Log) -> list[Figure]:
    """Memory and disk of the second and third of three labs, right after they got ready."""
    shares: list[float] = []
    added: list[float] = []
    disks: list[float] = []
    for number in range(1, runs + 1):
        with log.attempt(f"memory and disk {number}"), labs_removed(home):
            before = 0
            for place in (1, 2, 3):
                value = home.run(*UP, "--name", home.name(place), "-o", "json").value
                disk_now = disk(home.directories(value["name"]))
                own = pss(qemu_of(_guests(value)))
                total = pss(qemu_of(f"lab-{home.name(n)}-n{i}" for n in range(1, place + 1)
                                    for i in (1, 2, 3)))  # fmt: skip
                if place > 1:
                    shares.append(own / MEGABYTE)
                    added.append((total - before) / MEGABYTE)
                    disks.append(disk_now / MEGABYTE)
                before = total
                check(value)
    failed = 2 * runs - len(shares)
    return [
        Figure(
            "memory of a further warm lab (PSS of its guests)",
            "MB",
            tuple(shares),
            Target(600, 350),
            "the 2nd and 3rd lab, 768 MB nodes, when ready",
            failed=failed,
        ),
        Figure(
            "the same, as growth of all labs' PSS",
            "MB",
            tuple(added),
            note="what the host must have more of",
            failed=failed,
        ),
        Figure(
            "disk of a further warm lab",
            "MB",
            tuple(disks),
            Target(60, 20),
            "blocks of its volumes and its directory, when ready",
            failed=failed,
        ),
    ]


def listing(home: Home, runs: int, log: Log) -> Figure:
    """``lab ls`` with many recorded labs; ``home`` is then good for nothing else."""
    seconds = []
    with log.attempt(f"lab ls, {RECORDED} labs recorded"):
        record_labs(home, RECORDED)
        for _ in range(runs):
            ran = home.run("ls", "-o", "json")
            if len(ran.value) != RECORDED:
                raise Failed(f"{len(ran.value)} labs are listed")
            seconds.append(home.run("ls").seconds)
    return Figure(
        f"`lab ls`, {RECORDED} recorded labs",
        "s",
        tuple(seconds),
        Target(0.5, 0.3),
        "process start to exit",
        failed=runs - len(seconds),
    )


def at_once(home: Home, runs: int, log: Log) -> Figure:
    """Several warm labs asked for at the same moment, each by a process of its own."""
    seconds = []
    for number in range(1, runs + 1):
        with log.attempt(f"{AT_ONCE} labs at once {number}"), labs_removed(home):
            names = [home.name(place) for place in range(1, AT_ONCE + 1)]
            commands = [(*UP, "--name", name, "-o", "json") for name in names]
            took, values, failures = together(home, commands)
            if failures:
                different = sorted(set(failures))
                raise Failed(f"{len(failures)} of {AT_ONCE} failed: {'; '.join(different)}")
            for value in values:
                check(value)
            seconds.append(took)
    return Figure(
        f"{AT_ONCE} warm labs at once: all ready",
        "s",
        tuple(seconds),
        Target(stretch=20, no_failure=True),
        f"{3 * AT_ONCE} guests; from the first start to the last exit; {runs} runs",
        failed=runs - len(seconds),
    )


def record_labs(home: Home, count: int) -> None:
    """Record labs whose guests do not exist."""
    settings_home = LabHome(home.root)
    settings_home.create()
    with Store(settings_home) as store, store.transaction():
        for number in range(1, count + 1):
            name = home.name(number)
            store.labs.add(_lab(name))
            store.nodes.add(
                NodeRecord(name, f"n{i}", i, "member", f"lab-{name}-n{i}", 20000 + 3 * number + i)
                for i in (1, 2, 3)
            )


def _lab(name: str) -> LabRecord:
    return LabRecord(
        name=name,
        blueprint="pxc",
        engine="mariadb",
        engine_version="11.8.6",
        image="mariadb-0123456789abcdef",
        node_count=3,
        memory=768 * MIB,
        cpus=1,
        disk=0,
        state="ready",
        password="secret",  # noqa: S106  of a lab that does not exist
        user="lab",
        owner="bench",
        created_at=time.time(),
        started="warm",
        ready_seconds=2.0,
    )


def _up_and_down(home: Home, number: int) -> tuple[Ran, Ran]:
    """Make a lab, check it (outside of the timing), remove it."""
    name = home.name(number)
    with labs_removed(home, on_success=False):
        up = home.run(*UP, "--name", name, "-o", "json")
        check(up.value)
        return up, home.run("down", name)


@contextmanager
def labs_removed(home: Home, *, on_success: bool = True) -> Iterator[None]:
    """Remove all labs after the block."""
    try:
        yield
    except Failed:
        home.run("down", "--all", "--yes")
        raise
    if on_success:
        home.run("down", "--all", "--yes")


def check(lab: Mapping[str, Any]) -> None:
    """Raise Failed unless the lab is what ``up`` said it is: ready.

    Each check has a name of its own: branches have the rows of those of their parent.
    """
    ports = [int(node["sql_port"]) for node in lab["nodes"]]
    proof = f"bench_{secrets.token_hex(4)}"
    try:
        found = unready(ports, lab["user"], lab["password"], proof)
    except pymysql.Error as error:
        raise Failed(f"{lab['name']} is not ready: {error}") from error
    if found:
        raise Failed(f"{lab['name']} is not ready: {'; '.join(found)}")


def _guests(lab: Mapping[str, Any]) -> list[str]:
    return [str(node["guest"]) for node in lab["nodes"]]


def _recipe(home: Home) -> str:
    """The recipe that ``pxc`` uses here now: another one after a build that failed."""
    preview = home.run(*UP, "--dry-run", "-o", "json").value
    return str(preview["image"]).rpartition("-")[0]


def _drop_templates(home: Home) -> None:
    for template in home.run("template", "ls", "-o", "json").value or []:
        home.run("template", "rm", template["key"])

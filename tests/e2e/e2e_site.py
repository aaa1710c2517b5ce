"""One installation that all end-to-end tests share, used as a user does: through the CLI."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lab.paths import REACHABLE, Home, make_directory
from lab.wait import Deadline, until
from tests import ROOT
from tests.support import qemu_host

_BLOCKS = range(29200, 32700, 100)
"""Where an installation gets 100 ports of its own: apart from the default range, and from
other runs of these tests on this machine."""


PXC = ("pxc", "--engine", "mariadb")
"""The blueprint of these tests, on the engine that can be had without Percona's repository."""
ZONES = (
    "SELECT CONVERT_TZ('2026-07-01 12:00:00', 'UTC', 'Europe/Berlin') = '2026-07-01 14:00:00',"
    " COUNT(*) > 300, CAST(SUM(CRC32(name)) AS CHAR) FROM mysql.time_zone_name"
)
"""Whether a server knows time zones by name, and a checksum of the names."""
CRASH_NAME = "E2E_CRASH_NAME"

_UNUSED = 14 * 86400.0
_INTERRUPTED = 60.0
"""Seconds that a command has to end if it is interrupted."""

_KEPT = (
    "images", "templates", "storage/images", "storage/templates", "logs/images", "locks", "bundles",
)  # fmt: skip
_DATABASES = ("state.db", "jobs.db")
_KEPT_FILES = (
    *(f"{name}{part}" for name in _DATABASES for part in ("", "-journal", "-wal", "-shm")),
    "admin-token", "reachable.json", "ca.pem", "ca.key", "reserve", "logs/ahead.log",
    *(f"fleet/{name}" for name in ("id", "host.key", "host.crt", "authority.crt", "foreign")),
)  # fmt: skip


def _free_block() -> range:
    """100 ports at which nobody listens, by chance."""
    taken = listening()
    free = [b for b in _BLOCKS if taken.isdisjoint(range(b, b + 100))]
    first = secrets.choice(free)
    return range(first, first + 100)


def listening() -> set[int]:
    """The TCP ports of the loopback that somebody listens at."""
    ports = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        local, state = line.split()[1], line.split()[3]
        if state == "0A":
            ports.add(int(local.partition(":")[2], 16))
    return ports


@contextmanager
def kept_place() -> Iterator[Path | None]:
    """Where images and templates are kept between runs; None if another run is there.

    Each layout of the record has a place of its own, so that two checkouts can share the machine.
    """
    layout = hashlib.sha256()
    for path in sorted((ROOT / "lab" / "state" / "migrations" / "versions").glob("*.py")):
        layout.update(path.read_bytes())
    base = Path("/var/cache")  # root's own cache cannot be entered by QEMU's user
    if os.geteuid():
        base = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    name = f"e2e-{layout.hexdigest()[:8]}"
    if release := os.environ.get(qemu_host.PLACE):  # its templates would replace the host's
        name += f"-{release}"
    place = base / "lab-test" / name
    make_directory(place.parent, REACHABLE)  # root's umask may be 077
    if not place.exists():
        prune(place.parent, lambda old: Site(old).remove())
    place.mkdir(exist_ok=True)
    with place.with_suffix(".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
        else:
            yield place


def prune(parent: Path, remove: Callable[[Path], object]) -> None:
    """Remove the places in ``parent`` that no run is in, nor was for ``_UNUSED`` seconds."""
    for place in sorted(path for path in parent.glob("e2e-*") if path.is_dir()):
        # Each run opens the lock for writing, which sets its time of modification.
        with place.with_suffix(".lock").open("a") as lock, suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if time.time() - os.fstat(lock.fileno()).st_mtime > _UNUSED:
                remove(place)


@dataclass(frozen=True)
class Done:
    """A command that ended."""

    code: int
    stdout: str
    stderr: str
    seconds: float

    @property
    def json(self) -> Any:
        """What it printed, as data."""
        return json.loads(self.stdout)


@dataclass
class Site:
    """The installation in ``root``. ``token`` makes the names of its labs its own.

    ``settings``: variables of the environment that all its commands have. ``prefix``: what runs
    them.
    """

    root: Path
    token: str = field(default_factory=lambda: secrets.token_hex(2))
    ports: range = field(default_factory=_free_block)
    settings: Mapping[str, str] = field(default_factory=dict)
    prefix: tuple[str, ...] = ()

    @property
    def home(self) -> Home:
        return Home(self.root)

    @property
    def env(self) -> dict[str, str]:
        """The environment of a command."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("LAB_")}
        paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
        return kept | {
            "LAB_HOME": str(self.root),
            "LAB_PORT_RANGE": f"{self.ports[0]}-{self.ports[-1]}",
            "LAB_READY_TIMEOUT": "240",
            "PYTHONPATH": ":".join(filter(None, paths)),
            "LC_ALL": "C.UTF-8",
            **self.settings,
        }

    def name(self, of: str) -> str:
        """The name of a lab that no other installation on this machine has."""
        return f"{of}-{self.token}"

    def lab(
        self,
        *args: str,
        code: int | None = 0,
        stdin: str = "",
        env: Mapping[str, str] | None = None,
        timeout: float = 300.0,
    ) -> Done:
        """Run ``lab ARGS`` to its end, which is with exit code ``code`` (None: any)."""
        began = time.monotonic()
        command = subprocess.Popen(
            [*self.prefix, sys.executable, "-m", "lab", *args],
            cwd=self.root,
            env={**self.env, **(env or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        with command:
            try:
                stdout, stderr = command.communicate(stdin, timeout)
            except KeyboardInterrupt:
                command.send_signal(signal.SIGINT)  # as in a terminal: it removes what it made
                with suppress(subprocess.TimeoutExpired):
                    command.communicate(timeout=_INTERRUPTED)
                raise
            finally:
                command.kill()
        done = Done(command.returncode, stdout, stderr, time.monotonic() - began)
        # pytest shows this where a test fails: what took how long is half of the answer.
        sys.stderr.write(f"lab {' '.join(args)}: exit code {done.code}, {done.seconds:.1f} s\n")
        assert code is None or done.code == code, f"lab {' '.join(args)}: {done}"
        return done

    def template(self, nodes: int, blueprint: str = PXC[0]) -> dict[str, Any]:
        """The one template of this size, as ``lab template ls -o json`` prints it."""
        listed = self.lab("template", "ls", "-o", "json").json
        (found,) = (t for t in listed if (t["blueprint"], t["nodes"]) == (blueprint, nodes))
        return dict(found)

    def start(self, *args: str) -> subprocess.Popen[str]:
        """Start ``lab ARGS``; the caller ends it."""
        return subprocess.Popen(
            [sys.executable, "-m", "lab", *args],
            cwd=self.root,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def crash(
        self, verb: str, moment: str, count: int, *, name: str = "crash", victim: int = 0
    ) -> int:
        """Run ``crash_child.py`` for the lab ``name(name)``; its exit status."""
        child = Path(__file__).parent / "crash_child.py"
        return subprocess.run(
            [sys.executable, child, verb, moment, str(count), str(victim)],
            cwd=self.root,
            env={**self.env, CRASH_NAME: self.name(name)},
            stdin=subprocess.DEVNULL,
            timeout=300,
            check=False,
        ).returncode

    @contextmanager
    def sibling(self) -> Iterator[Site]:
        """Another installation, empty, for the block."""
        other = Site(Path(tempfile.mkdtemp(prefix="lab-e2e-")))
        other.root.chmod(0o711)
        try:
            yield other
        finally:
            other.remove()

    @contextmanager
    def up(self, *args: str) -> Iterator[Any]:
        """A lab for the block, as ``lab up -o json`` prints it; removed afterwards."""
        view = self.lab("up", *args, "-o", "json").json
        try:
            yield view
        finally:
            self.lab("down", view["name"], code=None)

    def sql(self, lab: str, node: str, statement: str, *, code: int | None = 0) -> list[list[Any]]:
        """The rows of a statement on one node."""
        done = self.lab("sql", lab, "--node", node, "-e", statement, "-o", "json", code=code)
        rows: list[list[Any]] = done.json["rows"] if done.stdout else []
        return rows

    def left(self) -> list[str]:
        """What is there besides images and templates: nothing, when all labs are gone."""
        found = [f"guest {name}" for name in self.guests()]
        found += [f"port {port}" for port in listening() if port in self.ports]
        found += [f"log {path}" for path in logs_of(f"*-{self.token}*")]
        found += [f"process {pid}: {line[:160]}" for pid, line in self.processes()]
        found += [f"file {path.relative_to(self.root)}" for path in self._files()]
        found += [f"row {row}" for row in self._rows()]
        return found

    def settled(self, *, seconds: float = 5.0) -> list[str]:
        """``left``, once it is nothing or ``seconds`` are over: QEMU takes a moment to end."""

        def nothing() -> bool | None:
            return None if self.left() else True

        until(nothing, Deadline.after(seconds), first=0.05)
        return self.left()

    def guests(self) -> list[str]:
        """Guests that carry this installation's tag, as libvirt knows them."""
        return sorted(self.states())

    def states(self) -> dict[str, str]:
        """The state of each guest that carries this installation's tag."""
        from lab.hypervisor.libvirt.driver import LibvirtHypervisor

        hypervisor = LibvirtHypervisor(home=self.home.id, sockets=self.home.sockets)
        try:
            return {name: guest.state for name, guest in hypervisor.guests().items()}
        finally:
            hypervisor.close()

    def foreign_guests(self) -> set[str]:
        """The guests on this host that are of no lab of this installation."""
        from lab.hypervisor.libvirt.driver import LibvirtHypervisor

        hypervisor = LibvirtHypervisor(home=self.home.id, sockets=self.home.sockets)
        try:
            return {str(name) for name in hypervisor.names() - hypervisor.guests().keys()}
        finally:
            hypervisor.close()

    def processes(self) -> list[tuple[int, str]]:
        """Processes that have this installation on their command line, such as QEMU."""
        found = []
        for directory in Path("/proc").glob("[0-9]*"):
            try:
                line = (directory / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if f"{self.root}/" in line:
                found.append((int(directory.name), line))
        return found

    def qemu(self, guest: str) -> int:
        """The process id of a guest's QEMU."""
        (pid,) = (pid for pid, line in self.processes() if f"guest={guest}," in line)
        return pid

    def used(self) -> int:
        """Bytes on disk of all that is kept."""
        return sum(path.lstat().st_blocks * 512 for path in self.root.rglob("*"))

    def clear(self) -> None:
        """Remove the labs of an earlier run that was killed; all, if that is not enough."""
        self.lab("down", "--all", "--yes", code=None)
        self.lab("gc", "--orphans", code=None)
        if self.settled():
            self.remove()
            self.root.mkdir(mode=0o711)

    def remove(self) -> None:
        """Remove everything, whatever state it is in."""
        self.lab("down", "--all", "--yes", code=None)
        self.lab("gc", "--orphans", code=None)
        for template in self.lab("template", "ls", "-o", "name", code=None).stdout.split():
            self.lab("template", "rm", template, code=None)
        for image in self.lab("image", "ls", "-o", "name", code=None).stdout.split():
            self.lab("image", "rm", image, code=None)
        shutil.rmtree(self.root, ignore_errors=True)

    def _files(self) -> list[Path]:
        kept = tuple(self.root / directory for directory in _KEPT)
        return [
            path
            for path in sorted(self.root.rglob("*"))
            if not path.is_dir()
            and path.relative_to(self.root).as_posix() not in _KEPT_FILES
            and not any(directory in path.parents for directory in kept)
        ] + [path for path in sorted(self.home.sockets.glob("*")) if path.is_dir()]

    def _rows(self) -> list[str]:
        from lab.state.store import Store

        with Store(self.home) as store:
            rows = [f"lab {lab.name}" for lab in store.labs.all()]
            rows += [f"template {r.key}" for r in store.templates.all() if r.state != "ready"]
            rows += [f"image {r.key}" for r in store.images.all() if r.state != "ready"]
            kept = {("template", r.key) for r in store.templates.all()}
            kept |= {("image", r.key) for r in store.images.all()}
            rows += [
                f"{r.kind} {r.ref} of {r.owner}"
                for r in store.resources.all()
                if (r.owner.kind, r.owner.name) not in kept or r.kind in ("guest", "segment")
            ]
        return rows


def logs_of(pattern: str) -> list[Path]:
    """libvirt's logs of guests, which it would keep forever."""
    from lab.hypervisor.libvirt.logs import DIRECTORIES

    found = []
    for directory in DIRECTORIES:
        found += sorted(Path(directory).expanduser().glob(f"lab-{pattern}.log"))
    return found

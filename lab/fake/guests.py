"""The guests of the fake hypervisor, kept in a directory that several processes share."""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, field, replace
from pathlib import Path
from typing import Any

from lab.blueprints.proxies import RO_PORT
from lab.blueprints.proxy import PROXIES
from lab.errors import Conflict, HostUnfit, NotFound, PortTaken
from lab.fake.inside import own_address, proxies, sql_port
from lab.hypervisor import DirectBoot, Disk, GuestShape, GuestSpec, GuestState
from lab.names import EVERYWHERE, GuestName
from lab.storage import clone_lock
from lab.values import dataclass


@dataclass
class Record:
    """A guest that exists."""

    name: GuestName
    state: GuestState
    tags: dict[str, str]
    shape: GuestShape
    disks: tuple[Disk, ...]
    ports: dict[int, int]
    segment: int
    console_log: Path
    memory_file: Path | None
    since: float
    """When it began to run, in seconds since the epoch."""
    saved: bool = False
    """Whether its RAM was captured, so that it may only be stopped."""
    why: str = ""
    """The error of a disk write, if one paused it."""
    addresses: dict[int, str] = field(default_factory=dict)
    """The addresses of the host at which ``ports`` are open."""
    own: str = ""
    """The address that its seed gives it."""
    commands: dict[str, int] = field(default_factory=dict)
    """How often each statement was executed, as the counters ``Com_*`` of its server."""
    clock_offset: float = 0.0
    """Seconds that its clock is ahead of ours."""
    read_only: bool = False
    """The variable ``read_only`` of its server."""
    image: str = ""
    """The directory of the image whose kernel it has; empty if it boots from its disk."""

    def serves(self, host: str, port: int, *, own: bool) -> bool:
        """Whether connections to ``port`` of ``host`` lead to the guest's server.

        ``own``: guests are reached at their own addresses, not through the host's.
        """
        if own:
            return host == self.own and self.service(port) in ("sql", "ro")
        published = self.addresses.get(port) in (host, EVERYWHERE)
        return published and self.service(self.ports.get(port, 0)) in ("sql", "ro")

    def service(self, port: int) -> str:
        """What listens at the guest's own ``port``, empty for nothing."""
        if port == sql_port(self.disks):
            return "sql"
        pages = {page.port: page.name for one in PROXIES.values() for page in one.pages}
        found = ({RO_PORT: "ro"} | pages).get(port, "")
        return found if found and proxies(self.disks) else ""

    @property
    def home(self) -> str:
        """Whose it is."""
        return self.tags.get("home", "")

    @staticmethod
    def of(guest: GuestSpec, state: GuestState, since: float) -> Record:
        """The record of a new guest."""
        ports = {forward.host_port: forward.guest_port for forward in guest.network.forwards}
        return Record(
            guest.name,
            state,
            dict(guest.tags),
            guest.shape,
            guest.disks,
            ports,
            guest.network.segment,
            guest.console_log,
            guest.memory_file,
            since,
            addresses={f.host_port: f.address for f in guest.network.forwards},
            own=own_address(guest.disks),
            image=str(guest.boot.kernel.parent) if isinstance(guest.boot, DirectBoot) else "",
        )


class Guests:
    """All guests of all installations; to be used within ``hold`` only.

    ``before`` is called before a guest is created, and may raise.
    """

    def __init__(self, directory: Path, before: Callable[[str], None]) -> None:
        self._directory = directory.absolute()
        self._directory.mkdir(parents=True, exist_ok=True)
        self._before = before
        self._version = self._directory / "version"
        self._read: tuple[str, dict[Path, Record]] = ("", {})

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Keep all other threads and processes out."""
        with clone_lock.hold(self._directory):
            yield

    def all(self) -> list[Record]:
        """Every guest, sorted by name."""
        return list(self._all().values())

    def find(self, name: GuestName, home: str) -> Record:
        """The guest of that name; raises NotFound, and Conflict if it is another installation's."""
        record = self._all().get(self._path(name))
        if record is None:
            raise NotFound(f"looking for {name}: no such guest")
        if record.home != home:
            raise Conflict(
                f"guest {name} does not belong to this installation",
                hint="another LAB_HOME may own it",
            )
        return record

    def create(self, guest: GuestSpec, state: GuestState, since: float, event: str) -> None:
        """A new guest, whose console log says ``event``."""
        self._before("commit")
        with guest.console_log.open("a") as log:
            log.write(f"{guest.name} {event}\n")
        self.put(Record.of(guest, state, since))

    def put(self, record: Record) -> None:
        """Keep ``record``, all of it or nothing."""
        path = self._path(record.name)
        draft = path.with_suffix(".draft")
        text = json.dumps(asdict(record), default=str)
        draft.write_text(text)
        known = {**self._all(), path: _load(text)}
        self._changing(dict(sorted(known.items())))
        draft.replace(path)

    def count(self, record: Record, command: str) -> Record:
        """The guest once its server has counted a statement as ``command``."""
        commands = {**record.commands, command: record.commands.get(command, 0) + 1}
        counted = replace(record, commands=commands)
        self.put(counted)
        return counted

    def remove(self, name: GuestName) -> None:
        """The guest is no more."""
        gone = self._path(name)
        self._changing({path: one for path, one in self._all().items() if path != gone})
        gone.unlink()

    def _all(self) -> dict[Path, Record]:
        """Every guest by its file, sorted: read again only after another process changed one.

        Each question looks at all guests, and a service with hundreds asks many.
        """
        version, known = self._read
        now = self._version.read_text() if self._version.exists() else ""
        if not now or now != version:
            files = sorted(self._directory.glob("*.json"))
            known = {path: _load(path.read_text()) for path in files}
            self._read = now, known
        return known

    def _changing(self, known: dict[Path, Record]) -> None:
        """Guests will be as ``known`` says. Before: who dies meanwhile leaves nothing untrue."""
        version = secrets.token_hex(8)
        self._version.write_text(version)
        self._read = version, known

    def refuse(self, guest: GuestSpec) -> None:
        """Raise what a real hypervisor would if it were to make ``guest`` now."""
        if self._path(guest.name).exists():
            raise Conflict(f"starting {guest.name}: a guest of that name exists already")
        missing = [str(path) for path in _opened(guest) if not path.exists()]
        if not guest.console_log.parent.is_dir():
            missing.append(str(guest.console_log))
        if missing:
            raise _unfit(guest, f"could not open {missing[0]}: No such file or directory")
        if any(disk.format == "qcow2" for disk in guest.disks):
            raise _unfit(guest, "the fake cannot look into qcow2 files")
        own = own_address(guest.disks)
        astray = [f.to for f in guest.network.forwards if f.to and own and f.to != own]
        if astray:
            raise _unfit(guest, f"a port leads to {astray[0]}, and its address is {own}")
        others = self.all()
        taken = {port for other in others for port in other.ports}
        ports = [forward.host_port for forward in guest.network.forwards]
        for number, port in enumerate(ports):
            if port in taken or port in ports[:number]:
                raise PortTaken(
                    f"starting {guest.name}: the fake reports an error",
                    details=[f"could not set up host forwarding rule for port {port}"],
                )
        written = {d.path for other in others for d in other.disks if not d.readonly}
        read = {d.path for other in others for d in other.disks}
        for disk in guest.disks:
            if disk.path in written or (disk.path in read and not disk.readonly):
                raise _unfit(guest, f"failed to get lock on {disk.path}")

    def _path(self, name: GuestName) -> Path:
        return self._directory / f"{name}.json"


def segment_of(record: Record, records: Sequence[Record]) -> list[Record]:
    """The guests that run on the segment of ``record`` and belong to the same owner."""
    owner = (record.home, record.tags.get("owner"))
    return [
        other
        for other in records
        if other.state == "running"
        and other.segment == record.segment
        and (other.home, other.tags.get("owner")) == owner
    ]


def _opened(guest: GuestSpec) -> list[Path]:
    files = [disk.path for disk in guest.disks]
    if guest.shape.boot == "direct":
        files += [guest.boot.kernel, guest.boot.initrd]  # type: ignore[union-attr]
    if guest.memory_file is not None:
        files.append(guest.memory_file)
    return files


def _unfit(guest: GuestSpec, why: str) -> HostUnfit:
    return HostUnfit(f"starting {guest.name}: the fake reports an error", details=[why])


def _load(text: str) -> Record:
    fields: dict[str, Any] = json.loads(text)
    fields["shape"] = GuestShape(**fields["shape"])
    fields["disks"] = tuple(
        Disk(**{**disk, "path": Path(disk["path"])}) for disk in fields["disks"]
    )
    for name in ("ports", "addresses"):
        fields[name] = {int(port): other for port, other in fields[name].items()}
    fields["console_log"] = Path(fields["console_log"])
    memory_file = fields["memory_file"]
    fields["memory_file"] = None if memory_file is None else Path(memory_file)
    return Record(**fields)

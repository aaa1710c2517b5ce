"""Room on the host: a queue of jobs, in which later ones that fit may pass the first."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from lab import host
from lab.blueprints import NodePlan, foreseen
from lab.config.settings import Settings
from lab.errors import ROOM_RETRY, HostUnfit, Interrupted, LimitReached
from lab.lifecycle.nodes.standby import memory_of
from lab.sizes import NodeSize
from lab.spec import LabSpec
from lab.state.records import LabWithNodes
from lab.state.service import JobKind
from lab.state.store import Store
from lab.units import format_size
from lab.values import dataclass

_LOOK_EVERY = 0.5
"""Seconds between two checks: commands remove labs without a notification."""
_TURNS = 4
"""Parts of ``queue_timeout``. Others may pass the first job in the first and the third part."""
TAKE_ROOM: tuple[JobKind, ...] = (
    "create", "branch", "build-template", "build-image", "create-dataset", "refresh-dataset",
)  # fmt: skip
"""The jobs that start guests of their own."""
WAKE: tuple[JobKind, ...] = ("start", "restart", "rollback", "reset")
"""The jobs that may start guests of a lab that is stopped."""


@dataclass(frozen=True)
class Need:
    """The resources of a lab: bytes of memory and disk, processors, ports."""

    memory: int = 0
    disk: int = 0
    cpus: int = 0
    ports: int = 0

    def __add__(self, other: Need) -> Need:
        return Need(
            self.memory + other.memory,
            self.disk + other.disk,
            self.cpus + other.cpus,
            self.ports + other.ports,
        )

    def __sub__(self, other: Need) -> Need:
        return Need(
            self.memory - other.memory,
            self.disk - other.disk,
            self.cpus - other.cpus,
            self.ports - other.ports,
        )


_NOTHING = Need()


def need_of(spec: LabSpec) -> Need:
    """The resources for ``spec``."""
    plans = foreseen(spec)
    return replace(_to_run(plans), disk=sum(node.size.disk for node in plans), ports=_ports(plans))


def need_to_branch(found: LabWithNodes, count: int) -> Need:
    """The resources for ``count`` branches of a lab."""
    disk = sum(node.size.disk for node in found.plans)
    one = replace(_to_run(found.plans), disk=disk, ports=_ports(found.plans))
    return sum([one] * count, Need())


def need_of_guest(size: NodeSize) -> Need:
    """The resources of a guest that makes a dataset or an image."""
    return Need(memory=size.memory, cpus=size.cpus)


def need_of_lab(found: LabWithNodes) -> Need:
    """The resources that a lab uses now, without disk space.

    One that is being removed may wait for its last branch for long, and has no guests then. One
    that is asleep takes no processors; it is woken whether there are some or not.
    """
    ended = found.lab.state in ("stopped", "removing")
    running = Need() if ended else _to_run(found.plans)
    if found.lab.asleep_at is not None:
        running = replace(running, cpus=0)
    ports = _ports(found.plans) * (2 if found.standby else 1)
    return replace(running, memory=running.memory + memory_of(found), ports=ports)


def need_to_wake(found: LabWithNodes, running: Collection[str]) -> Need:
    """The resources that a stopped lab needs in addition to run; nothing for other labs.

    ``running``: the names of nodes that run already, as after a killed start.
    """
    if found.lab.state != "stopped":
        return Need()
    return _to_run([node for node in found.plans if node.name not in running])


def _to_run(nodes: Sequence[NodePlan]) -> Need:
    """What ``nodes`` take while they run."""
    memory = sum(node.size.memory for node in nodes)
    return Need(memory=memory, cpus=sum(node.size.cpus for node in nodes))


def _ports(nodes: Sequence[NodePlan]) -> int:
    return sum(len(node.services) for node in nodes)


class Admission:
    """Lets jobs in while there is room, the oldest first that fits. For use by several threads.

    Memory: all running labs are within the budget, and admitted labs that do not exist yet fit
    into the memory that the host has available now. ``pressed`` is called while a job waits.
    """

    def __init__(
        self, settings: Settings, store: Store, pressed: Callable[[], object] = lambda: None
    ) -> None:
        self._settings = settings
        self._store = store
        self._pressed = pressed
        self._change = threading.Condition()
        self._waiting: dict[tuple[float, str], Need] = {}
        self._inside: dict[str, Need] = {}
        self._first: tuple[tuple[float, str], float] = ((0.0, ""), 0.0)

    @property
    def waiting(self) -> int:
        """How many jobs wait for room."""
        with self._change:
            return len(self._waiting)

    def check(self, need: Need, what: str = "the lab needs") -> None:
        """Raise LimitReached if ``need`` never fits, or if too many wait already.

        ``what``: the words of the error before the amount. Only what waits is worth another try.
        """
        for word, has, wants in self._limits(need):
            if wants > has:
                raise LimitReached(
                    f"{what} {_figure(word, wants)} of {word},"
                    f" the limit for all labs together is {_figure(word, has)}",
                    hint="request fewer or smaller nodes",
                )
        jobs = self._store.jobs.open()
        queued = sum(job.kind in TAKE_ROOM and job.state == "queued" for job in jobs)
        if queued >= self._settings.serve.queue:
            raise LimitReached(
                f"{queued} requests already wait for room on the host",
                hint="try again later, or remove a lab",
                retry_after=ROOM_RETRY,
            )

    @contextmanager
    def enter(
        self, job: str, since: float, need: Need, *, stop: Callable[[], None]
    ) -> Iterator[None]:
        """Wait for room, and reserve it for the block.

        ``since``: the job's place in the queue; ``stop`` is called at each check and may
        raise. Raises HostUnfit, with figures, after ``queue_timeout``.
        """
        ticket = (since, job)
        deadline = time.monotonic() + self._settings.serve.queue_timeout
        with self._change:
            self._waiting[ticket] = need
            try:
                while (shortage := self._shortage_in_turn(ticket, need)) != "":
                    stop()
                    left = deadline - time.monotonic()
                    if left <= 0:
                        raise HostUnfit(f"there is no room on the host: {shortage}")
                    self._pressed()
                    self._change.wait(min(_LOOK_EVERY, left))
                self._inside[job] = need
            finally:
                del self._waiting[ticket]
                self._change.notify_all()
        with self._leaving(job):
            yield

    @contextmanager
    def spare(self, job: str, need: Need) -> Iterator[None]:
        """Reserve room for the block if no job waits; raises Interrupted if there is none."""
        with self._change:
            shortage = (
                "other requests wait for it" if self._waiting else self._short(need, self._used())
            )
            if shortage:
                raise Interrupted(f"there is no room for the pool: {shortage}")
            self._inside[job] = need
        with self._leaving(job):
            yield

    @contextmanager
    def _leaving(self, job: str) -> Iterator[None]:
        """Free the room of ``job``, which was admitted, after the block."""
        try:
            yield
        finally:
            with self._change:
                del self._inside[job]
                self._change.notify_all()

    def lacking(self, spare: Need = _NOTHING) -> Need | None:
        """The need of the first job in the queue if it does not fit; else None.

        ``spare``: what will be free soon.
        """
        with self._change:
            need = self._waiting[min(self._waiting)] if self._waiting else None
            return need if need is not None and self._short(need, self._used(), spare) else None

    def short(self, need: Need, spare: Need = _NOTHING) -> str:
        """What ``need`` lacks, with figures, if ``spare`` were free as well; empty for nothing."""
        with self._change:
            return self._short(need, self._used(), spare)

    def changed(self) -> None:
        """Wake waiting jobs after a lab was removed."""
        with self._change:
            self._change.notify_all()

    def _limits(self, need: Need) -> list[tuple[str, int, int]]:
        """Name, total and need of each limited resource."""
        settings = self._settings
        first, last = settings.port_range
        found = [
            ("memory", self.memory_budget, need.memory),
            ("ports", last - first + 1, need.ports),
        ]
        if settings.serve.cpus:
            found.append(("processors", settings.serve.cpus, need.cpus))
        return found

    @property
    def memory_budget(self) -> int:
        """The limit of memory for all labs together, in bytes."""
        return self._settings.serve.memory or host.memory().total - self._settings.memory_floor

    def used(self) -> Need:
        """The resources of running labs and of admitted jobs."""
        with self._change:
            return self._used()

    def admitted(self) -> list[str]:
        """The jobs that were let in and have not left."""
        with self._change:
            return list(self._inside)

    def _used(self) -> Need:
        total = sum(self._inside.values(), Need())
        for found in self._store.labs_with_nodes():
            if found.lab.job in self._inside:
                continue
            total += need_of_lab(found)
        return total

    def _shortage_in_turn(self, ticket: tuple[float, str], need: Need) -> str:
        """What ``need`` lacks, with figures; empty if there is room and it is its turn.

        Room that becomes free is kept for the first job only half of the time; otherwise one that
        does not fit would delay all others.
        """
        first, now = min(self._waiting), time.monotonic()
        if self._first[0] != first:
            self._first = (first, now)
        used = self._used()
        if ticket != first:
            turn = self._settings.serve.queue_timeout / _TURNS
            before = [one for at, one in self._waiting.items() if at < ticket]
            if int((now - self._first[1]) / turn) % 2 or not all(
                self._short(one, used) for one in before
            ):
                return "earlier requests are first"
        return self._short(need, used)

    def _short(self, need: Need, used: Need, spare: Need = _NOTHING) -> str:
        used = used - spare
        for word, has, wants in self._limits(need + used):
            if wants > has:
                free = _figure(word, max(0, has - (wants - _of(word, need))))
                asked = _figure(word, _of(word, need))
                return f"{asked} of {word} is needed, {free} of {_figure(word, has)} is free"
        promised = sum(self._inside.values(), Need()).memory
        have = host.memory().available - self._settings.memory_floor - promised + spare.memory
        if self._settings.hypervisor != "fake" and need.memory > have:
            return (
                f"{format_size(need.memory)} of memory is needed,"
                f" {format_size(max(0, have))} is available and not reserved for other labs"
            )
        return ""


def _of(word: str, need: Need) -> int:
    return {"memory": need.memory, "ports": need.ports, "processors": need.cpus}[word]


def _figure(word: str, number: int) -> str:
    return format_size(number) if word == "memory" else str(number)

"""Puts labs to sleep that nobody uses, and wakes those to which a client connects or sends."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Set

from lab.api.background.periodic import Periodic, isolated
from lab.api.core.core import Core
from lab.api.telemetry.logs import log
from lab.host import sockets
from lab.lifecycle.labs import sleep
from lab.lifecycle.nodes.asleep import awake
from lab.state.records import LabRecord
from lab.values import dataclass

LOOK_EVERY = 0.05
"""Seconds between two looks for clients: each costs about 0.2 ms, and half of it is waited for."""
_READ_EVERY = 1.0
"""Seconds between two looks which labs are asleep."""
_PATIENCE = 60.0
"""Seconds for which a command that works on a lab is waited for, before it is woken."""
_SOON = 1.0
"""Seconds after a lab was put to sleep in which what came may have been sent before, as by us."""


@dataclass(frozen=True)
class _Asleep:
    """A lab that is asleep: since when (of the wall clock), and its ports.

    ``since``: the same by the monotonic clock, so that connections do not seem to be new after the
    host was suspended, or its clock set.
    """

    at: float
    ports: Set[int]
    since: float


class Sleeper:
    """Looks at the connections to labs that are asleep, every ``LOOK_EVERY`` seconds."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.periodic = Periodic("sleeper", self.look, LOOK_EVERY)
        self._lock = threading.Lock()
        self._read_at = float("-inf")
        self._asleep: Mapping[str, _Asleep] = {}
        self._waking: set[str] = set()

    def after(self, lab: LabRecord) -> float:
        """Seconds without use after which a lab is to sleep; 0: never."""
        given = lab.asleep_after
        return self._core.settings.serve.asleep_after if given is None else given

    def sleep(self, lab: LabRecord) -> bool:
        """Put a lab to sleep whose servers are not used; False if it is used or none could wake it.

        Open connections to SSH are a use: a program may run in them. Raises LabError.
        """
        core = self._core
        nodes = core.store.nodes.of(lab.name)
        ports = {port for node in nodes for port in node.all_ports.values()}
        if sockets.listening(ports) != ports:
            log.info("a lab cannot sleep: its ports are not of this host", extra={"lab": lab.name})
            return False
        if sockets.connections({node.ssh_port for node in nodes}):
            return False
        with core.contexts.use() as ctx:
            sleep.sleep(ctx, lab.name)
        self._read_at = float("-inf")
        core.observing.observer.changed(lab.name)
        core.admission.changed()
        log.info("a lab was put to sleep", extra={"lab": lab.name})
        return True

    def look(self) -> None:
        """Begin to wake each lab to which something came since it is asleep."""
        now = time.monotonic()
        if now - self._read_at >= _READ_EVERY:
            self._read(now)
        if not self._asleep:
            return
        ports = {port for one in self._asleep.values() for port in one.ports}
        came: dict[int, float] = {}
        for one in sockets.connections(ports):
            came[one.port] = max(came.get(one.port, float("-inf")), now - one.quiet)
        for name, asleep in self._asleep.items():
            last = max((came[port] for port in asleep.ports if port in came), default=None)
            if last is not None and last > asleep.since:
                self._begin(name, used=last > asleep.since + _SOON)

    def _read(self, now: float) -> None:
        store, found = self._core.store, dict[str, _Asleep]()
        for lab in store.labs.all():
            at, known = lab.asleep_at, self._asleep.get(lab.name)
            if at is None or lab.state != "ready":
                continue
            if known is None or known.at != at:
                nodes = store.nodes.of(lab.name)
                ports = frozenset(port for node in nodes for port in node.all_ports.values())
                known = _Asleep(at, ports, now - max(0.0, time.time() - at))
            found[lab.name] = known
        self._asleep, self._read_at = found, now

    def _begin(self, name: str, *, used: bool) -> None:
        with self._lock:
            if name in self._waking:
                return
            self._waking.add(name)
        threading.Thread(
            target=self._wake, args=(name, used), name=f"lab-wake-{name}", daemon=True
        ).start()

    def _wake(self, name: str, used: bool) -> None:
        core = self._core
        try:
            with isolated("sleeper", name), core.contexts.use() as ctx:
                awake(ctx, name, timeout=_PATIENCE, used=used)
                core.observing.observer.changed(name)
                log.info("a lab was woken by a client", extra={"lab": name})
        finally:
            self._read_at = float("-inf")
            with self._lock:
                self._waking.discard(name)

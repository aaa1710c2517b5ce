"""Puts labs to sleep that nobody uses, and wakes those to which a client connects or sends."""

from __future__ import annotations

import threading
import time
from collections.abc import Set
from dataclasses import field

from lab.api.background.periodic import Periodic
from lab.api.core.core import Core
from lab.api.telemetry.logs import log
from lab.errors import Conflict, HostUnfit
from lab.host import sockets
from lab.lifecycle.labs.sleep import ports_of, reachable, sleep
from lab.lifecycle.nodes.asleep import awake
from lab.state.records import LabRecord
from lab.values import dataclass
from lab.wait import Deadline

LOOK_EVERY = 0.1
"""Seconds between two looks for clients, half of which a client waits for: each costs about 0.3 ms,
and 10 us more for each connection to a lab that is asleep; less where nothing came."""
_READ_EVERY = 1.0
"""Seconds between two looks which labs are asleep."""
_LEAST_AWAKE = 30.0
"""Seconds for which a lab that a client woke is not put to sleep: it may be about to ask."""
_PATIENCE = 60.0
"""Seconds for which a command that works on a lab is waited for, before it is woken."""
_AGAIN = (1.0, 60.0)
"""Seconds until something that failed is tried again: at first, and at most."""


@dataclass
class _Asleep:
    """A lab that is asleep: since when (of the wall clock), its ports, and which are SQL's.

    ``since``: the same by the monotonic clock, so that a clock that is set, or a suspended host,
    does not make all connections new to a service that runs. ``ignored``: connections of ours.
    """

    at: float
    ports: Set[int]
    sql: Set[int]
    since: float
    ignored: set[tuple[int, sockets.End]] = field(default_factory=set)


@dataclass
class _Failing:
    """Something that failed; it is tried again after ``wait``."""

    wait: Deadline
    seconds: float


class Sleeper:
    """Looks at the connections to labs that are asleep, every ``LOOK_EVERY`` seconds.

    ``look`` is called by its thread only, ``sleep`` by others.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self.periodic = Periodic("sleeper", self.look, LOOK_EVERY)
        self._read_at = float("-inf")
        self._asleep: dict[str, _Asleep] = {}
        self._arrived: tuple[int, int] | None = None
        self._open = False
        self._quiet_looks = 0
        self._waking: set[str] = set()
        self._woken: dict[str, Deadline] = {}
        self._failing: dict[str, _Failing] = {}

    def after(self, lab: LabRecord) -> float:
        """Seconds without use after which a lab is to sleep; 0: never."""
        given = lab.asleep_after
        return self._core.settings.serve.asleep_after if given is None else given

    def sleep(self, lab: LabRecord, since: float) -> bool:
        """Put a lab to sleep whose servers were not used; False if it is used, or may not sleep.

        ``since``: when that was looked at, in epoch seconds; what came since then wakes it. Open
        connections to SSH are a use: a program may run in them. Raises LabError.
        """
        core, name = self._core, lab.name
        nodes = core.store.nodes.of(name)
        if (lately := self._woken.get(name)) is not None and not lately.passed:
            return False
        if not reachable(nodes):
            log.info("a lab cannot sleep: its ports are not of this host", extra={"lab": name})
            return False
        if sockets.connections({node.ssh_port for node in nodes}):
            return False
        if any(job.lab == name for job in core.store.jobs.open()):
            return False
        try:
            with core.observing.working(name), core.contexts.use() as ctx:
                sleep(ctx, name, since=since, expected=lab)
        except Conflict:  # a command works on it, or it was used or changed meanwhile
            return False
        self._read_at = float("-inf")
        core.observing.observer.changed(name)
        core.admission.changed()
        log.info("a lab was put to sleep", extra={"lab": name})
        return True

    def look(self) -> None:
        """Begin to wake each lab to which something came since it is asleep."""
        now = time.monotonic()
        if now - self._read_at >= _READ_EVERY:
            self._read(now)
        if not self._asleep or not self._may("") or self._is_quiet():
            return
        try:
            came = sockets.connections(
                {port for one in self._asleep.values() for port in one.ports}
            )
            self._open = bool(came)
            self._look_at(came, now)
        except HostUnfit as error:
            self._failed("", "clients of labs that are asleep are not seen", error)
            return
        self._failing.pop("", None)

    def _is_quiet(self) -> bool:
        """Whether nobody connected since the last look, or has sent, nor since the one before.

        Both are counted before the kernel lists a connection, so that the last look may have been
        between the two.
        """
        arrived, before = sockets.arrivals(), self._arrived
        self._arrived = arrived
        same = arrived is not None and before is not None and arrived[0] == before[0]
        if same and (arrived == before or not self._open):
            self._quiet_looks += 1
        else:
            self._quiet_looks = 0
        return self._quiet_looks > 1

    def _look_at(self, came: list[sockets.Connection], now: float) -> None:
        for name, asleep in self._asleep.items():
            new = [
                one
                for one in came
                if one.port in asleep.ports
                and now - one.quiet > asleep.since
                and one.key not in asleep.ignored
            ]
            if new and self._is_for_it(asleep, new):
                self._begin(name, asleep.at)

    def _is_for_it(self, asleep: _Asleep, new: list[sockets.Connection]) -> bool:
        """Whether something is not ours: the observer's last question, from before the pause."""
        ours = sockets.own(asleep.sql)
        asleep.ignored |= {one.key for one in new if one.key in ours and one.port in asleep.sql}
        return any(one.key not in asleep.ignored for one in new)

    def _read(self, now: float) -> None:
        store, found = self._core.store, dict[str, _Asleep]()
        for lab in store.labs.all():
            at, known = lab.asleep_at, self._asleep.get(lab.name)
            if at is None or lab.state != "ready":
                continue
            if known is None or known.at != at:
                nodes = store.nodes.of(lab.name)
                sql = frozenset(node.sql_port for node in nodes)
                known = _Asleep(at, ports_of(nodes), sql, now - max(0.0, time.time() - at))
            found[lab.name] = known
        self._asleep, self._read_at = found, now
        self._quiet_looks = 0  # to those that were awake until now something may have come
        for name in [name for name, one in self._woken.items() if one.passed]:
            self._woken.pop(name, None)

    def _begin(self, name: str, at: float) -> None:
        if name in self._waking or not self._may(name):
            return
        self._waking.add(name)
        thread = threading.Thread(target=self._wake, args=(name, at), name=f"lab-wake-{name}")
        thread.daemon = True
        try:
            thread.start()
        except RuntimeError as error:
            self._waking.discard(name)
            self._failed(name, "a lab was not woken", error)

    def _wake(self, name: str, at: float) -> None:
        """Wake a lab, unless it was woken meanwhile, also if it was put to sleep again since."""
        core = self._core
        try:
            with core.contexts.use() as ctx:
                if ctx.unanswered is not None:
                    raise ctx.unanswered
                woken = awake(ctx, name, timeout=_PATIENCE, used=False, only=at)
            self._woken[name] = Deadline.after(_LEAST_AWAKE)
            self._failing.pop(name, None)
            core.observing.observer.changed(name)
            if woken:
                log.info("a lab was woken by a client", extra={"lab": name})
        except Exception as error:  # noqa: BLE001  # else it would be tried again at each look
            self._failed(name, "a lab was not woken", error)
        finally:
            self._read_at = float("-inf")
            self._waking.discard(name)

    def _may(self, what: str) -> bool:
        """Whether ``what`` did not fail of late."""
        failing = self._failing.get(what)
        return failing is None or failing.wait.passed

    def _failed(self, what: str, text: str, error: Exception) -> None:
        before = self._failing.get(what)
        seconds = min(2 * before.seconds, _AGAIN[1]) if before else _AGAIN[0]
        self._failing[what] = _Failing(Deadline.after(seconds), seconds)
        log.warning(text, extra={"lab": what, "error": str(error), "again": seconds})

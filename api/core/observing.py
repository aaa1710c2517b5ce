"""What the service knows of its labs: their records, and what the observer saw of them.

One observer asks the nodes of all labs, on one connection to each server, as often as there is
need. Requests, pages and streams read what it saw; none of them asks a node.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as Late  # until Python 3.10 not the built-in one
from contextlib import ExitStack, contextmanager
from dataclasses import field, replace
from functools import partial
from typing import Generic, TypeVar

from lab.api.core.contexts import Contexts
from lab.api.telemetry.logs import log
from lab.config.settings import Settings
from lab.errors import HostUnfit, LabError
from lab.hypervisor import Guest
from lab.lifecycle.core.context import Context
from lab.lifecycle.nodes.inspect import lost, subject, unknown_guests, view_of
from lab.lifecycle.nodes.standing import remember
from lab.locks.named import held
from lab.names import GuestName
from lab.observe.observer import Look, Observer
from lab.observe.round import Observation, Subject, observe
from lab.observe.sql import KeptConnections
from lab.observe.ways import Ways
from lab.state.records import LabRecord, LabWithNodes
from lab.state.store import Store
from lab.values import dataclass
from lab.views.labs import LabView
from lab.wait import Deadline

T = TypeVar("T")

_LOST_EVERY = 5.0
READS = 3
"""How often labs are read that commands change while they are looked at."""
_ROUND = 0.5
"""Seconds that a round takes beyond its limit."""


@dataclass(frozen=True)
class Seen:
    """A lab as it was seen last: its record, and the view of it. One object while both are so.

    ``bodies``: what answers are made of it, with and without its password.
    """

    record: LabRecord
    view: LabView
    bodies: dict[bool, bytes] = field(default_factory=dict, repr=False)


class _Hangs(HostUnfit):
    """The hypervisor has not answered in time."""


class _Bounded(Generic[T]):
    """A call that is made in a thread of its own, once at a time, so that its end can be given up.

    Safe for use by several threads.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._asked: tuple[Future[T], Deadline] | None = None

    def result(self, call: Callable[[], T], seconds: float) -> T:
        """What ``call`` returns or raises, or an earlier one that is under way.

        Raises _Hangs if that takes longer than ``seconds``.
        """
        with self._lock:
            if self._asked is None or self._asked[0].done():
                self._asked = Future(), Deadline.after(seconds)
                args = (self._asked[0], call)
                threading.Thread(target=self._run, args=args, name=self._name, daemon=True).start()
            future, deadline = self._asked
        try:
            return future.result(deadline.left)
        except Late:
            raise _Hangs(f"the hypervisor does not answer within {seconds:g} s") from None

    @staticmethod
    def _run(future: Future[T], call: Callable[[], T]) -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001  # it is raised where it is waited for
            future.set_exception(error)


class Observing:
    """The labs of a service, observed. Safe for use by several threads."""

    def __init__(self, settings: Settings, store: Store, contexts: Contexts) -> None:
        self._settings, self._store, self._contexts = settings, store, contexts
        self._lock = threading.Lock()
        self._reading = threading.Lock()
        self._version: object = None
        self._labs: dict[str, LabWithNodes] = {}
        self._seen: dict[str, tuple[LabWithNodes, Observation | None, Seen]] = {}
        self._kept: dict[tuple[str, float], KeptConnections] = {}  # by name and creation
        self._lost: tuple[float, Mapping[str, LabView]] = (float("-inf"), {})
        self._busy: Counter[str] = Counter()
        self._opened: tuple[ExitStack, Context] | None = None
        self._broken: HostUnfit | None = None
        self._listing: _Bounded[Mapping[GuestName, Guest]] = _Bounded("lab-guests")
        self._leftovers: _Bounded[Mapping[str, LabView]] = _Bounded("lab-leftovers")
        self.observer = Observer(self._known, self._begin, _failed)

    def close(self) -> None:
        """End, and close all connections to nodes."""
        self.observer.stop()
        self._release()
        with self._lock:
            kept, self._kept = self._kept, {}
        for connections in kept.values():
            connections.close()

    def labs(self) -> Mapping[str, LabWithNodes]:
        """The records of all labs, by name and in its order; one object while one has not changed.

        They are read again only after one was changed: a job stores much else.
        """
        known = self.known()
        if known is not None:
            return known
        with self._reading:  # one for all who ask meanwhile
            known = self.known()
            return self._read() if known is None else known

    def _read(self) -> Mapping[str, LabWithNodes]:
        before, version = self._store.version(), self._store.labs_version()
        read = {found.lab.name: found for found in self._store.labs_with_nodes()}
        after = self._store.version()
        with self._lock:
            for name, found in read.items():
                if self._labs.get(name) == found:
                    read[name] = self._labs[name]
            # What was stored meanwhile is read the next time.
            self._version, self._labs = version if before == after else None, read
            self._seen = {name: one for name, one in self._seen.items() if name in read}
            return read

    def known(self) -> Mapping[str, LabWithNodes] | None:
        """The labs that were read last; None if one was changed since."""
        version = self._store.labs_version()
        with self._lock:
            return self._labs if version == self._version else None

    def lost_before(self) -> Mapping[str, LabView] | None:
        """What ``lost`` returned before; None if that is too long ago."""
        with self._lock:
            at, found = self._lost
        return found if at + _LOST_EVERY > time.monotonic() else None

    def lost(self) -> Mapping[str, LabView]:
        """Labs of which only guests, volumes and directories are left, as of some seconds ago.

        Those of before while it cannot be looked up.
        """
        before = self.lost_before()
        if before is not None:
            return before
        found = self._lost[1]
        try:
            found = self._leftovers.result(self._look_for_lost, self._settings.answer_timeout)
        except HostUnfit as error:  # the labs that are recorded are shown all the same
            _failed(error)
        with self._lock:
            self._lost = time.monotonic(), found
        return found

    def _look_for_lost(self) -> Mapping[str, LabView]:
        with self._contexts.use() as ctx:
            return lost(ctx)

    def fresh(self, labs: Iterable[LabWithNodes]) -> bool:
        """Wait until labs are observed, where nobody has read them for a while, or just changed.

        For as long as a round takes, unless a server is slow. Whether their records are the same
        after it: a lab that was changed or removed meanwhile is not waited for.
        """
        asked = _which_of(labs)
        if self.observer.wait(asked, self._settings.answer_timeout + _ROUND):
            return True
        now = self.labs()
        return asked == _which_of(now[name] for name in asked if name in now)

    def want(self, labs: Iterable[LabWithNodes]) -> bool:
        """Note that somebody reads these labs; whether there is nothing to wait for."""
        return self.observer.want(_which_of(labs))

    def seen(self, name: str) -> Seen | None:
        """A lab as it was seen last; None if there is no such lab."""
        found = self.labs().get(name)
        return None if found is None else self.seen_of(found)

    def seen_of(self, found: LabWithNodes) -> Seen:
        """A lab of that record as it was seen last."""
        name = found.lab.name
        last = self.observer.last(name, _which(found))
        with self._lock:
            known = self._seen.get(name)
        if known is not None and known[0] is found and known[1] is last:
            return known[2]
        seen = Seen(found.lab, view_of(self._settings, found, last))
        with self._lock:
            self._seen[name] = (found, last, seen)
        return seen

    def on_kept(self, ctx: Context, name: str) -> Context:
        """Add the kept connections to a lab's servers to ``ctx``, unless a command works on it."""
        kept = self._connections(ctx, name)
        return ctx if kept is None else replace(ctx, sql_all=kept)

    @contextmanager
    def working(self, name: str) -> Iterator[None]:
        """A job works on a lab in the block: no connections to its servers are kept meanwhile.

        So none is in a capture of their RAM, or counted among the sessions that a promotion ends.
        After it the lab is looked at at once.
        """
        if not name:
            yield
            return
        with self._lock:
            self._busy[name] += 1
            kept = [self._kept.pop(key) for key in list(self._kept) if key[0] == name]
        for connections in kept:
            connections.close()
        try:
            yield
        finally:
            with self._lock:
                self._busy[name] -= 1
                if not self._busy[name]:
                    del self._busy[name]
                if name in self._lost[1]:
                    self._lost = float("-inf"), {}
            self.observer.changed(name)

    def _known(self) -> Mapping[str, Hashable]:
        labs = self.labs()
        with self._lock:
            there = {(name, one.lab.created_at) for name, one in labs.items()}
            gone = [self._kept.pop(key) for key in self._kept.keys() - there]
        for connections in gone:
            connections.close()
        return {
            name: _which(one)
            for name, one in labs.items()
            if not one.lab.pool  # nobody reads them; who claims one asks it
        }

    def _begin(self, names: Collection[str]) -> Mapping[str, Look]:
        ctx, labs = self._context(), self.labs()
        try:
            guests = self._listing.result(ctx.hypervisor.guests, ctx.settings.answer_timeout)
            self._broken = None
        except HostUnfit as error:
            _failed(error)
            # Its connection may be; where it hangs, another one would as well.
            self._broken = None if isinstance(error, _Hangs) else error
            guests = unknown_guests(labs[name] for name in names if name in labs)
        except BaseException as error:
            self._release(error)
            raise
        within = ctx.settings.answer_timeout
        found: dict[str, Look] = {}
        for name in names:
            if name in labs:
                asked = subject(ctx.settings, labs[name])
                ways = self._ways(ctx, asked)
                found[name] = partial(self._look, labs[name], ways, asked, guests, within)
        return found

    def _look(
        self,
        found: LabWithNodes,
        ways: Ways,
        asked: Subject,
        guests: Mapping[GuestName, Guest],
        within: float,
    ) -> Observation:
        seen = observe(ways, [asked], guests, within=within)[asked.lab]
        # Here, since readers may be in the event loop, where nothing may wait for the record.
        remember(self._store, found, seen)
        return seen

    def _ways(self, ctx: Context, asked: Subject) -> Ways:
        kept = self._connections(ctx, asked.lab) if asked.asked else None
        return replace(ctx.ways, kept=kept)

    def _connections(self, ctx: Context, name: str) -> KeptConnections | None:
        """The connections to a lab's servers; None while a job or command works on the lab."""
        lab = self.labs().get(name)
        if ctx.kept is None or lab is None:
            return None
        key = (name, lab.lab.created_at)
        # Also one of another process, such as `lab snapshot` on this host.
        works = held(self._settings.home, "lab", name)
        with self._lock:
            works = works or self._busy[name] > 0
            kept = self._kept.pop(key, None)
            if not works:
                kept = self._kept[key] = kept or ctx.kept()
        if works and kept is not None:
            kept.close()
        return None if works else kept

    def _context(self) -> Context:
        """The observer's; after an error of the hypervisor another one, as soon as one opens."""
        if self._opened is None or self._broken is not None:
            stack = ExitStack()
            try:
                context = stack.enter_context(self._contexts.use())
            except HostUnfit:
                if self._opened is None:
                    raise
            else:
                self._release(self._broken)
                self._opened = stack, context
        return self._opened[1]

    def _release(self, error: BaseException | None = None) -> None:
        """Return the context; after ``error`` the pool closes it, and lends it to nobody."""
        opened, self._opened, self._broken = self._opened, None, None
        if opened is not None:
            opened[0].__exit__(None if error is None else type(error), error, None)


def _which(found: LabWithNodes) -> Hashable:
    """Which lab of a name it is, and in which state it is recorded: what was seen is of that."""
    return found.lab.created_at, found.lab.state


def _which_of(labs: Iterable[LabWithNodes]) -> Mapping[str, Hashable]:
    return {one.lab.name: _which(one) for one in labs}


def _failed(error: Exception) -> None:
    if isinstance(error, LabError):
        log.warning("labs are not observed", extra={"error": error.what})
    else:
        log.error("labs are not observed", exc_info=error)

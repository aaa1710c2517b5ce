"""A host as a member of a fleet: its epoch, the other hosts, and how they are reached."""

from __future__ import annotations

import hashlib
import math
import ssl
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import get_args

from lab.api.telemetry.logs import log
from lab.api.telemetry.metrics import FleetFigures
from lab.config.settings import Settings
from lab.distribution import version
from lab.drafts import replaced
from lab.errors import Conflict, HostUnfit
from lab.fleet import authority, hosts, known, placements, tokens
from lab.fleet.database import FleetDatabase, Unreachable
from lab.fleet.hosts import Host, Member
from lab.fleet.known import Known
from lab.state.store import Store
from lab.views.fleet import host_state
from lab.views.host import FleetHostState

CERTIFIED = "certified"
"""In a request's state: whose certificate was shown, and its digest."""
_END = "-----END CERTIFICATE-----"
SIGNALS = "lab_fleet"
"""The channel of NOTIFY: the payload is the host that is meant, empty for all."""
_HALT = 0.5
"""Seconds between two looks whether a job that waits for another was cancelled."""
_FRESH = 1.0
"""Seconds for which what was read of other hosts' labs is used."""


class Fleet:
    """The fleet that this host belongs to. Safe for use by several threads."""

    def __init__(self, settings: Settings) -> None:
        serve = settings.serve
        self.name = serve.host_name
        self.database = FleetDatabase(serve.database)
        self._settings = settings
        self._lock = threading.Lock()
        self._member: Member | None = None
        self._hosts: dict[str, Host] = {}
        self._measured: tuple[float, list[Host], dict[str, int]] = (-math.inf, [], {})
        self._url = self._ca = ""
        self._authorities = frozenset[str]()
        self._foreign = frozenset[str]()
        if (path := self._directory / "foreign").exists():
            self._foreign = frozenset(path.read_text().split())
        self.was_lost = False
        """Whether this host was declared lost, and has not published its labs since."""
        self.removed = False
        """Whether it is no member any more, and not to join again."""
        self.wake = threading.Event()
        """Set when something was placed on this host, or is to be placed."""
        self.changed = threading.Event()
        """Set when labs of this host are to be published."""
        self.has = threading.Event()
        """Set when this host has something else to clone labs from than it said last."""
        self.signalled = threading.Event()
        """Set when hosts are to be notified."""
        self._signals: set[str] = set()
        self.naming = threading.Lock()
        """Held while it is decided which labs of this host hold their names."""
        self._sharing = threading.Lock()
        self._making: dict[str, tuple[threading.Lock, int]] = {}
        """The lock of each thing that is fetched, and how many threads have or want it."""
        self._unknown = frozenset[str]()
        self._checked = False
        """Whether the tables were those of this program, at the start or as soon as they could be
        read."""
        self._reading = threading.Lock()
        self._elsewhere: Mapping[str, Known] = {}
        self._read_at = -math.inf

    def open(self) -> None:
        """Check the tables, and get a certificate; raises HostUnfit, Unreachable.

        If the database does not answer, the certificate of the last start is used.
        """
        try:
            self._check()
            found = authority.identify(self.database, self.name)
        except Unreachable as error:
            if not all(path.exists() for path in self.files):
                raise
            log.warning("the host starts without its fleet", extra={"error": error.what})
            return
        self._directory.mkdir(mode=0o700, exist_ok=True)
        contents = found.own.private, found.own.certificate, found.authority
        for path, content in zip(self.files, contents, strict=True):
            with replaced(path) as file:
                file.write_bytes(content)

    def _check(self) -> None:
        """Once: a host that runs is not concerned by tables that are upgraded meanwhile."""
        if not self._checked:
            self.database.check()
            self._checked = True

    @property
    def files(self) -> tuple[Path, Path, Path]:
        """The key and the certificate of this host, and the authority's certificate."""
        here = self._directory
        return here / "host.key", here / "host.crt", here / "authority.crt"

    @property
    def _directory(self) -> Path:
        return self._settings.home.fleet

    def _home(self) -> str:
        """What this home is known by, wherever its directory is; made by the first use."""
        path = self._directory / "id"
        if not path.exists():
            with replaced(path, durable=True) as file:
                file.write_text(uuid.uuid4().hex)
        return path.read_text()

    def announce(self, url: str, ca: str) -> None:
        """Join, or as soon as the database answers.

        ``url``: where this host is reached; ``ca``: of its database servers, PEM. Raises Conflict
        if the fleet has another host of this name, HostUnfit.
        """
        self._url, self._ca = url, ca
        try:
            self.join()
        except Unreachable as error:
            log.warning("the host joins its fleet later", extra={"error": error.what})

    def join(self) -> None:
        """Become a member, with a new epoch; raises Conflict, HostUnfit, Unreachable."""
        self._check()
        labels = self._settings.serve.host_labels
        member, was_lost = hosts.join(
            self.database, self.name, self._home(), self._url, labels, version(), self._ca
        )
        with self._lock:
            self._member, self.was_lost = member, self.was_lost or was_lost
        self.refresh()
        if was_lost:
            log.warning(
                "this host was declared lost: its labs are foreign until they are adopted",
                extra={"host": self.name},
            )

    def fenced(self) -> None:
        """Join again if this host was declared lost; else another process is in its place.

        Or the host was removed: then it takes and announces nothing until its next start. Raises
        Conflict, Unreachable.
        """
        if hosts.was_lost(self.database, self._home()):
            self.join()
            return
        with self._lock:
            self._member, self.removed = None, True
        log.error(
            "this host was removed from its fleet, or is served by another process: it takes no"
            " more jobs of the fleet until its service is started again",
            extra={"host": self.name},
        )

    def is_foreign(self, name: str) -> bool:
        """Whether a lab of this host does not hold its name in the fleet."""
        return name in self._foreign

    @property
    def foreign(self) -> frozenset[str]:
        """The labs of this host that do not hold their names; kept for the next start."""
        return self._foreign

    @foreign.setter
    def foreign(self, names: frozenset[str]) -> None:
        if names != self._foreign:
            with replaced(self._directory / "foreign") as file:
                file.write_text("\n".join(sorted(names)))
            self._foreign = names

    @property
    def joined(self) -> bool:
        """Whether this host is a member now."""
        with self._lock:
            return self._member is not None

    @property
    def member(self) -> Member:
        """Who this host is, and its epoch; raises HostUnfit before it has joined."""
        with self._lock:
            if self._member is None:
                raise HostUnfit(f"the host {self.name} has not joined its fleet yet")
            return self._member

    def refresh(self) -> list[Host]:
        """All hosts, read now; raises Unreachable."""
        found = hosts.hosts(self.database)
        with self._lock:
            self._hosts = {host.name: host for host in found}
        return found

    def measure(self) -> None:
        """Read what metrics show of the fleet, so that no scrape has to; raises Unreachable."""
        found, counts = self.refresh(), placements.counted(self.database)
        with self._lock:
            self._measured = time.monotonic(), found, counts

    def figures(self, now: float) -> FleetFigures | None:
        """What was measured last; None if that is too long ago. ``now``: by ``time.monotonic``."""
        with self._lock:
            at, found, counts = self._measured
        passed = now - at
        if passed > hosts.LOST_AFTER:
            return None
        aged = [replace(host, age=host.age + passed) for host in found]
        states = Counter(host_state(host) for host in aged)
        return FleetFigures(
            {state: states[state] for state in get_args(FleetHostState)},
            counts,
            {host.name: host.age for host in aged},
        )

    @property
    def names(self) -> list[str]:
        """The names of all hosts, as they were known last."""
        with self._lock:
            return list(self._hosts)

    @property
    def hosts(self) -> list[Host]:
        """All hosts, as they were known last: at the last heartbeat, or later."""
        with self._lock:
            return list(self._hosts.values())

    @contextmanager
    def one_at_a_time(self, what: str, halt: Callable[[], None]) -> Iterator[None]:
        """Let no two threads fetch the same; ``halt``: called while another one is waited for."""
        with self._lock:
            lock, users = self._making.get(what, (threading.Lock(), 0))
            self._making[what] = lock, users + 1
        try:
            while not lock.acquire(timeout=_HALT):
                halt()
            try:
                yield
            finally:
                lock.release()
        finally:
            with self._lock:
                lock, users = self._making.pop(what)
                if users > 1:
                    self._making[what] = lock, users - 1

    def is_member(self, name: str, digest: str) -> bool:
        """Whether a certificate is a host's of the fleet: not that of one which was removed.

        Each start of a service makes a new one. Raises Unreachable.
        """
        for fresh in (False, True):
            if fresh:
                self.refresh()
            with self._lock:
                found = self._hosts.get(name)
            if found is not None and found.facts.certificate in ("", digest):
                return True
        return False

    @property
    def certificate(self) -> str:
        """The digest of this host's own certificate."""
        first, end, _ = self.files[1].read_text(encoding="ascii").partition(_END)  # of a chain
        return hashlib.sha256(ssl.PEM_cert_to_DER_cert(first + end)).hexdigest()

    def host(self, name: str) -> Host | None:
        """A host as it was known last, read again if it is not known; raises Unreachable."""
        with self._lock:
            found = self._hosts.get(name)
        if found is None:
            self.refresh()
            with self._lock:
                found = self._hosts.get(name)
        return found

    def signal(self, host: str) -> None:
        """Have a host notified soon that there is something for it; empty: all hosts.

        After the caller's transaction, and together with others: PostgreSQL commits those that
        notify one after the other.
        """
        with self._lock:
            self._signals.add(host)
        self.signalled.set()

    def send_signals(self) -> None:
        """Notify the hosts that were given to ``signal``; what is lost, their polls find."""
        with self._lock:
            found, self._signals = self._signals, set()
        for host in found:
            self.database.run("SELECT pg_notify(:channel, :host)", channel=SIGNALS, host=host)

    def context(self) -> ssl.SSLContext:
        """TLS to other hosts: each side shows its certificate of the fleet's authority."""
        key, certificate, authority_ = self.files
        found = ssl.create_default_context(cafile=authority_)
        found.minimum_version = ssl.TLSVersion.TLSv1_3
        found.load_cert_chain(certificate, key)
        return found

    def authorities(self) -> str:
        """What verifies the database servers of all hosts: certificates, one after the other.

        Where the database does not answer: those that were known last, and this host's own.
        """
        with suppress(Unreachable):
            self._authorities = frozenset(hosts.authorities(self.database))
        return "".join(sorted({*self._authorities, self._ca}))

    def adopt(self, lab: str) -> None:
        """Have a foreign lab of this host hold its name; raises NotFound, Conflict, Unreachable."""
        with self.naming:
            known.adopt(self.database, self.member, lab)
            self.foreign = self.foreign - {lab}

    def forget(self, lab: str) -> None:
        """A lab of this host is removed: its name is free at once, or when the database answers."""
        with suppress(HostUnfit, Conflict):
            known.publish(self.database, self.member, [], [lab])

    def elsewhere(self) -> Mapping[str, Known]:
        """The labs of other hosts, by the name that means them, as they were a second ago.

        Where the database does not answer: as they were known last.
        """
        found = self.elsewhere_at_once()
        if found is not None:
            return found
        with self._reading:
            found = self.elsewhere_at_once()  # read by another thread meanwhile
            if found is None:
                try:
                    labs = known.labs(self.database, but=self.name)
                    found = {_meant(one): one for one in labs if one.view is not None}
                except Unreachable:
                    found = self._elsewhere
                with self._lock:
                    self._elsewhere, self._read_at = found, time.monotonic()
            return found

    def elsewhere_at_once(self) -> Mapping[str, Known] | None:
        """``elsewhere`` if it was read within the last second; else None."""
        with self._lock:
            return self._elsewhere if self._read_at + _FRESH > time.monotonic() else None

    def share_tokens(self, store: Store) -> None:
        """Have the tokens of this host known to all, and theirs here; raises Unreachable."""
        with self._sharing:
            found = tokens.merged(self.database, store.tokens.all())
            if new := found.unknown - self._unknown:
                log.warning(
                    "tokens of a newer version are not valid on this host until it is upgraded",
                    extra={"tokens": sorted(new)},
                )
            self._unknown = found.unknown
            for one in found.take:
                if store.tokens.find(one.id) is None:
                    store.tokens.add(one)
                else:
                    store.tokens.update(one.id, revoked_at=one.revoked_at)

    def close(self) -> None:
        """Close the connections to the database."""
        self.database.close()


def _meant(lab: Known) -> str:
    """What a lab of another host is called here: by its name alone only if it holds that."""
    return lab.name if lab.holds else f"{lab.name}@{lab.host}"

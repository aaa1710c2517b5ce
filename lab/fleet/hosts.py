"""Who belongs to a fleet: hosts join with an epoch, and are lost when their heartbeat stops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any, Literal

import msgspec
from sqlalchemy import Connection, text

from lab.errors import Conflict, NotFound
from lab.fleet.database import Fenced, FleetDatabase
from lab.values import dataclass

HostState = Literal["up", "draining", "lost"]
BEAT = 5.0
"""Seconds between two heartbeats."""
LATE = 15.0
"""Seconds without a heartbeat after which nothing is placed on a host."""
LOST_AFTER = 30.0
"""Seconds without a heartbeat after which a host is declared lost."""


@dataclass(frozen=True)
class Version:
    """A version of a dataset that a host has."""

    name: str
    version: int
    project: str
    """Empty: it is for all."""
    recipe: str
    """Of its server."""
    digest: str = ""
    """Of its content; empty if that is not known."""

    @property
    def at(self) -> str:
        """Its name, such as ``shop@2``."""
        return f"{self.name}@{self.version}"


@dataclass(frozen=True)
class Facts:
    """What a host says of itself with each heartbeat; sizes are bytes."""

    memory: int = 0
    """For labs, all together."""
    memory_free: int = 0
    """That labs which are made next may take, by what is used."""
    cpus: int = 0
    load: float = 0.0
    """Of its processors, over a minute."""
    epoch: int = 0
    """Of the host when it said this: what it said before its last start is no longer known to be
    so. 0: not known."""
    certificate: str = ""
    """The digest of its certificate; empty: not known."""
    labs: int = 0
    space: int = 0
    """Of the storage; 0: not known."""
    space_free: int = 0
    full: bool = False
    """Whether it has no disk space for further labs."""
    jobs: tuple[str, ...] = ()
    """Those whose labs ``memory_free`` takes into account."""
    templates: tuple[str, ...] = ()
    """What it has, as ``choose.template_of`` names it."""
    formed: int = 0
    """How many templates those are."""
    images: tuple[str, ...] = ()
    """The keys of its images, but for those of datasets."""
    versions: tuple[Version, ...] = ()
    """Of datasets, that new labs can have."""
    coming: tuple[Version, ...] = ()
    """Those that are being made or removed: their numbers are taken."""


@dataclass(frozen=True)
class Host:
    """A host of a fleet, as the database has it."""

    name: str
    epoch: int
    state: HostState
    url: str
    """At which other hosts reach it."""
    labels: tuple[str, ...]
    version: str
    age: float
    """Seconds since its last heartbeat, by the database's clock."""
    facts: Facts
    promised: int = 0
    """Bytes of memory of what was placed on it, that its facts do not have yet."""
    waiting: int = field(default=0, compare=False)
    """Jobs that were placed on it and have not ended."""

    @property
    def has_said(self) -> bool:
        """Whether it has said what it has since its present start."""
        return self.facts.memory > 0 and self.facts.epoch in (0, self.epoch)

    @property
    def answers(self) -> bool:
        """Whether it can be asked for something, as far as is known."""
        return self.state != "lost" and self.age <= LATE


@dataclass(frozen=True)
class Member:
    """Who a host of a fleet is: all that it writes names it."""

    name: str
    epoch: int


def join(
    database: FleetDatabase,
    name: str,
    home: str,
    url: str,
    labels: Sequence[str],
    version: str,
    ca: str = "",
) -> tuple[Member, bool]:
    """Join, or join again; whether it was declared lost meanwhile. Raises Conflict, Unreachable.

    ``home`` is the id of the host's home; ``ca``: the certificate of the authority of its database
    servers, PEM. Jobs that were placed on it stay its own, unless it was
    lost: then it stays so until it has said what it has, see ``returned``.
    """
    with database.transaction() as connection:
        found = connection.execute(
            text("SELECT name, home, lost FROM lab.hosts WHERE name = :name OR home = :home"
                 " FOR UPDATE"),
            {"name": name, "home": home},
        ).all()  # fmt: skip
        other = next((row for row in found if row.home != home), None)
        if other is not None:
            raise Conflict(
                f"the fleet has a host {name} already, with another home",
                hint=f"choose another host name; or, if that home is gone, `lab host rm {name}`",
            )
        ours = next(iter(found), None)
        if ours is not None and ours.name != name:
            raise Conflict(
                f"this home is the host {ours.name} of the fleet",
                hint=f"start it as {ours.name}, or `lab host rm {ours.name}` first",
            )
        epoch = int(connection.execute(text("SELECT nextval('lab.epochs')")).scalar() or 0)
        values = {"name": name, "home": home, "epoch": epoch, "url": url, "version": version,
                  "ca": ca, "labels": msgspec.json.encode(sorted(labels)).decode()}  # fmt: skip
        for statement in _JOIN:
            connection.execute(text(statement), values)
    return Member(name, epoch), ours is not None and ours.lost


_JOIN = (
    """
    INSERT INTO lab.hosts (name, home, epoch, lost, draining, url, labels, version, ca)
    VALUES (:name, :home, :epoch, false, false, :url, CAST(:labels AS jsonb), :version, :ca)
    ON CONFLICT (name) DO UPDATE SET epoch = :epoch, url = :url, joined_at = now(),
        labels = CAST(:labels AS jsonb), version = :version, ca = :ca
    """,
    """
    INSERT INTO lab.heartbeats (host, facts) VALUES (:name, '{}')
    ON CONFLICT (host) DO UPDATE SET at = now()
    """,
    """
    UPDATE lab.placements SET epoch = :epoch WHERE host = :name AND state IN ('placed', 'claimed')
    """,
    "UPDATE lab.labs SET epoch = :epoch WHERE host = :name",
)


def authorities(database: FleetDatabase) -> list[str]:
    """The certificates of the authorities of all hosts' database servers; raises Unreachable."""
    return [row.ca for row in database.run("SELECT ca FROM lab.hosts ORDER BY name") if row.ca]


def returned(database: FleetDatabase, member: Member) -> None:
    """A host that was lost is back, and has published its labs as foreign; raises Unreachable."""
    query = "UPDATE lab.hosts SET lost = false WHERE name = :name AND epoch = :epoch"
    database.run(query, name=member.name, epoch=member.epoch)


def was_lost(database: FleetDatabase, home: str) -> bool:
    """Whether the host with this home was declared lost; False if it is gone, or another's now."""
    return bool(database.run("SELECT 1 FROM lab.hosts WHERE home = :home AND lost", home=home))


def beat(database: FleetDatabase, member: Member, facts: Facts) -> None:
    """A heartbeat; raises Fenced if this host was declared lost, Unreachable."""
    done = database.run(
        "UPDATE lab.heartbeats SET at = now(), facts = CAST(:facts AS jsonb) FROM lab.hosts h"
        " WHERE host = :name AND h.name = host AND h.epoch = :epoch RETURNING host",
        name=member.name, epoch=member.epoch, facts=msgspec.json.encode(facts).decode(),
    )  # fmt: skip
    if not done:
        raise fenced(member)


MINE = "SELECT name FROM lab.hosts WHERE name = :name AND epoch = :epoch FOR SHARE"
"""The host itself while its epoch lasts: waits for whoever declares it lost at this moment."""


def fenced(member: Member) -> Fenced:
    """The error of a host whose epoch is over."""
    return Fenced(f"the host {member.name} was declared lost, or was started elsewhere")


def hosts(database: FleetDatabase) -> list[Host]:
    """All hosts, by name; raises Unreachable."""
    return [host_of(row) for row in database.run(HOSTS)]


HOSTS = """
SELECT h.name, h.epoch, h.lost, h.draining, h.url, h.labels, h.version, b.facts,
       EXTRACT(EPOCH FROM now() - b.at) AS age,
       COALESCE(p.promised, 0) AS promised, COALESCE(p.waiting, 0) AS waiting
FROM lab.hosts h JOIN lab.heartbeats b ON b.host = h.name
LEFT JOIN (
    SELECT o.host, COUNT(*) AS waiting,
           SUM(CAST(o.needs ->> 'memory' AS bigint))
               FILTER (WHERE NOT COALESCE(f.facts -> 'jobs' ? o.job, false)) AS promised
    FROM lab.placements o JOIN lab.heartbeats f ON f.host = o.host
    WHERE o.state IN ('placed', 'claimed') GROUP BY o.host
) p ON p.host = h.name
ORDER BY h.name
"""


def host_of(row: Any) -> Host:
    """A row of ``HOSTS``."""
    try:
        facts = msgspec.convert(row.facts, Facts)
    except msgspec.ValidationError:  # of another version: nothing is placed on that host from here
        facts = Facts()
    state: HostState = "lost" if row.lost else "draining" if row.draining else "up"
    return Host(
        row.name, row.epoch, state, row.url, tuple(row.labels), row.version, float(row.age),
        facts, int(row.promised), int(row.waiting),
    )  # fmt: skip


def drain(database: FleetDatabase, name: str, *, draining: bool) -> None:
    """Have no further labs placed on a host, or have them again; raises NotFound."""
    query = "UPDATE lab.hosts SET draining = :draining WHERE name = :name RETURNING name"
    if not database.run(query, draining=draining, name=name):
        raise _unknown(database, name)


def remove(database: FleetDatabase, name: str) -> None:
    """Forget a host that is lost, or whose service is stopped and that has no labs and no jobs.

    Raises NotFound, Conflict.
    """
    with database.transaction() as connection:
        alone(connection)
        row = connection.execute(text(_LEFT), {"name": name}).first()
        if row is None:
            raise _unknown(database, name)
        if not row.lost and row.age < LATE:
            raise Conflict(
                f"the service of the host {name} runs",
                hint=f"`lab host drain {name}`, remove its labs, and stop it first",
            )
        if not row.lost and (row.labs or row.jobs):
            raise Conflict(
                f"the host {name} has {row.labs} labs and {row.jobs} jobs",
                hint="start it and remove them; or wait until it is lost",
            )
        connection.execute(text("DELETE FROM lab.labs WHERE host = :name"), {"name": name})
        connection.execute(text("DELETE FROM lab.hosts WHERE name = :name"), {"name": name})


def alone(connection: Connection) -> None:
    """Decide after all who decide now, and before all others: they see what is decided here."""
    connection.execute(text("UPDATE lab.decisions SET number = number + 1"))


_LEFT = """
SELECT h.lost, EXTRACT(EPOCH FROM now() - b.at) AS age,
    (SELECT COUNT(*) FROM lab.labs WHERE host = h.name) AS labs,
    (SELECT COUNT(*) FROM lab.placements p
     WHERE p.host = h.name AND p.state IN ('placed', 'claimed')) AS jobs
FROM lab.hosts h JOIN lab.heartbeats b ON b.host = h.name WHERE h.name = :name FOR UPDATE OF h
"""


def _unknown(database: FleetDatabase, name: str) -> NotFound:
    names = ", ".join(one.name for one in hosts(database)) or "none"
    return NotFound(f"the fleet has no host {name}", hint=f"its hosts: {names}")

"""Jobs that were given to a host of a fleet, or wait for one: a row each.

A row is made by whoever was asked, claimed by the host that it names, in one statement, and ended
by that host. A row that waits for a host is placed by any host, the project that has least first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from datetime import datetime
from types import SimpleNamespace
from typing import Any, Literal

import msgspec
from sqlalchemy import Connection, text

from lab.errors import Conflict, HostUnfit, InvalidSpec, LabError
from lab.fleet import hosts, schema
from lab.fleet.choose import Needs, choose
from lab.fleet.database import PATIENCE, FleetDatabase, Unreachable
from lab.fleet.hosts import HOSTS, Host, Member
from lab.fleet.schema import OPEN
from lab.names import LAB_NAME_LIMIT
from lab.values import dataclass

Problem = Callable[[LabError], Mapping[str, Any]]
"""How an error is recorded: as a job's."""
PlacementState = Literal["queued", "placed", "claimed", "ended", "failed", "cancelled"]
_TRIES = 40
"""How often a decision is made again, because another was made meanwhile."""


@dataclass(frozen=True)
class Placement:
    """A job of a fleet, and where it is to run."""

    job: str
    kind: str
    lab: str
    project: str
    token: str
    key: str | None
    digest: str
    request: Mapping[str, Any]
    needs: Needs
    understood: bool = True
    """Whether this version knows all that is needed; else a newer one is to place it."""
    again: bool = False
    """Whether it is made again elsewhere if its host is lost."""
    host: str = ""
    """Empty: it waits for one."""
    state: PlacementState = "queued"
    error: Mapping[str, Any] | None = None
    """A problem, if it failed without having run."""
    created_at: float = 0.0
    """In epoch seconds, by the database's clock."""
    claimed_at: float | None = None
    ended_at: float | None = None


def place(
    database: FleetDatabase,
    wanted: Placement,
    prefix: str,
    *,
    queue: int,
    check: Callable[[Sequence[Placement]], None] = lambda _: None,
) -> tuple[Placement, Host | None]:
    """Record a job, its lab's name, and its host if one has room; one of before of the same key.

    ``prefix``: what a lab without a name is called after. ``queue``: how many may wait for a host.
    ``check`` is given the open placements, and raises to refuse another. Raises Conflict if the
    name is taken or the key was used for another request, InvalidSpec and HostUnfit as ``choose``
    does, Unreachable.
    """
    for _ in range(_TRIES):
        seen = _seen(database, wanted, prefix)
        if seen.before is not None:
            return seen.before, None
        check(seen.open)
        if wanted.lab and seen.holder is not None:
            raise Conflict(
                f"lab {wanted.lab} exists already"
                + (f", on the host {seen.holder}" if seen.holder else ""),
                hint=f"choose another name, or remove it: `lab down {wanted.lab}`",
            )
        name = wanted.lab or _free_name(prefix, seen.names)
        host = choose(seen.hosts, wanted.needs, without=seen.beside)
        if host is None and sum(one.state == "queued" for one in seen.open) >= queue:
            raise HostUnfit(
                f"no host of the fleet has room, and {queue} jobs wait for some already",
                hint="remove labs, or try again later",
                retry_after=30.0,
            )
        at = "" if host is None else host.name
        placed = replace(wanted, lab=name, host=at, state="placed" if host else "queued")
        values = _values(placed, host) | {"number": seen.number}
        with suppress(Conflict):  # somebody took the name or the key at the same moment
            for row in database.run(_PLACE, **values):
                return replace(placed, created_at=_epoch(row.created_at) or 0.0), host
    raise Unreachable(
        "too many labs are requested of the fleet at the same time", retry_after=PATIENCE
    )


@dataclass(frozen=True)
class _Seen:
    """What a decision is made by, as of one moment."""

    number: int
    """Of the decisions before."""
    before: Placement | None
    """The job that the same key has requested before."""
    open: list[Placement]
    """Those that have not ended; the requests only of the same project."""
    holder: str | None
    """The host that has the lab of the required name; None if nobody has."""
    beside: list[str]
    """The hosts that have a lab of that name, without holding it."""
    names: list[str]
    """That begin like the name that a lab without one would get."""
    hosts: list[Host]


def _seen(database: FleetDatabase, wanted: Placement, prefix: str) -> _Seen:
    stem = _stem(prefix)
    (row,) = database.run(
        _SEEN, token=wanted.token, key=wanted.key, project=wanted.project, name=wanted.lab,
        stem=stem, like=f"{stem[:LAB_NAME_LIMIT - 8]}%",
    )  # fmt: skip
    before = [_placement(SimpleNamespace(**one)) for one in row.before or ()]
    return _Seen(
        row.number,
        before[0] if before else None,
        [_placement(SimpleNamespace(**one)) for one in row.open or ()],
        row.holder,
        row.beside or [],
        row.names or [],
        [hosts.host_of(SimpleNamespace(**one)) for one in row.hosts or ()],
    )


def place_waiting(
    database: FleetDatabase, problem: Problem, patience: float = 300.0
) -> list[tuple[Placement, Host]]:
    """Place what waits for a host, as far as there is room: fairly by project, then by age.

    What no host can ever take, or what has waited ``patience`` seconds, fails with a ``problem``.
    Raises Unreachable.
    """
    if not database.run("SELECT 1 FROM lab.placements WHERE state = 'queued' LIMIT 1"):
        return []
    placed = []
    with database.transaction() as connection:
        hosts.alone(connection)
        known = _hosts(connection)
        for row in connection.execute(text(_FAIRLY)).all():
            one = _placement(row)
            try:
                host = None
                if one.understood:
                    host = choose(known, one.needs, without=row.beside or (), patient=True)
                if host is None and row.waited > patience:
                    raise HostUnfit(
                        f"no host of the fleet had room within {patience:.0f} s",
                        hint="remove labs, or request it again later",
                    )
            except (HostUnfit, InvalidSpec) as error:
                _fail(connection, one.job, problem(error))
                continue
            values = {"job": one.job, "host": host.name, "epoch": host.epoch} if host else {}
            if host is not None and connection.execute(text(_GIVE), values).first():
                placed.append((replace(one, host=host.name, state="placed"), host))
                known = _hosts(connection)
    return placed


def claim(database: FleetDatabase, member: Member) -> list[Placement]:
    """Claim all jobs that were placed on this host: each is claimed once. Raises Unreachable."""
    rows = database.run(
        f"WITH me AS ({hosts.MINE})"
        " UPDATE lab.placements p SET state = 'claimed', claimed_at = now() FROM me"
        f" WHERE p.host = me.name AND p.state = 'placed' RETURNING {_COLUMNS}",
        name=member.name, epoch=member.epoch,
    )  # fmt: skip
    return sorted((_placement(row) for row in rows), key=lambda one: one.job)


def claimed(database: FleetDatabase, member: Member) -> list[Placement]:
    """The jobs that this host has claimed and not ended; raises Unreachable."""
    query = f"SELECT {_COLUMNS} FROM lab.placements p WHERE host = :name AND state = 'claimed'"
    return [_placement(row) for row in database.run(query, name=member.name)]


def waiting(database: FleetDatabase, project: str | None, limit: int) -> list[Placement]:
    """The jobs (of a project only) that no host has begun, the oldest first. Raises Unreachable."""
    rows = database.run(
        f"SELECT {_BRIEF} FROM lab.placements p WHERE state IN ('queued', 'placed')"
        " AND COALESCE(project = CAST(:project AS text), true)"
        " ORDER BY created_at, job LIMIT :limit",
        project=project, limit=limit,
    )  # fmt: skip
    return [_placement(row) for row in rows]


def counted(database: FleetDatabase) -> dict[str, int]:
    """How many placements whose jobs have not ended there are, by state. Raises Unreachable."""
    query = (
        "SELECT state, COUNT(*) AS number FROM lab.placements"
        " WHERE state IN ('queued', 'placed', 'claimed') GROUP BY state"
    )
    return dict.fromkeys(OPEN, 0) | {row.state: row.number for row in database.run(query)}


def end(database: FleetDatabase, member: Member, jobs: Sequence[str]) -> None:
    """Note that jobs of this host have ended, and free names that no lab has got.

    Raises Fenced if they are not its any more, Unreachable.
    """
    done = database.run(
        f"WITH me AS ({hosts.MINE}), over AS ("
        "  UPDATE lab.placements p SET state = 'ended', ended_at = now() FROM me"
        "  WHERE p.job = ANY(:jobs) AND p.host = me.name AND p.state = 'claimed' RETURNING p.job"
        "), gone AS (DELETE FROM lab.labs WHERE job IN (SELECT job FROM over) AND view IS NULL)"
        " SELECT name FROM me",
        name=member.name, epoch=member.epoch, jobs=list(jobs),
    )  # fmt: skip
    if not done:
        raise hosts.fenced(member)


def fail(database: FleetDatabase, member: Member, job: str, problem: Mapping[str, Any]) -> None:
    """Fail a job that this host has claimed and cannot begin; raises Unreachable."""
    with database.transaction() as connection:
        mine = connection.execute(
            text(f"WITH me AS ({hosts.MINE}) SELECT 1 FROM lab.placements p, me"
                 " WHERE p.job = :job AND p.host = me.name AND p.state = 'claimed'"),
            {"name": member.name, "epoch": member.epoch, "job": job},
        ).first()  # fmt: skip
        if mine is not None:
            _fail(connection, job, problem, "claimed")


def cancel(database: FleetDatabase, job: str) -> bool:
    """Cancel a job that no host has claimed; whether it was one. Raises Unreachable."""
    done = database.run(
        "WITH over AS (UPDATE lab.placements SET state = 'cancelled', ended_at = now()"
        " WHERE job = :job AND state IN ('queued', 'placed') RETURNING job),"
        " gone AS (DELETE FROM lab.labs WHERE job IN (SELECT job FROM over) AND view IS NULL)"
        " SELECT job FROM over",
        job=job,
    )
    return bool(done)


def not_ours(database: FleetDatabase, name: str, jobs: Sequence[str]) -> list[str]:
    """Those of ``jobs`` that are not the host's any more: it was lost meanwhile, or they ended.

    Jobs that were never placed are nobody else's. Raises Unreachable.
    """
    rows = database.run(
        "SELECT job FROM lab.placements WHERE job = ANY(:jobs)"
        " AND (state <> 'claimed' OR host IS DISTINCT FROM :name)",
        jobs=list(jobs), name=name,
    )  # fmt: skip
    return [row.job for row in rows]


def prune(database: FleetDatabase, age: float) -> None:
    """Forget jobs that ended ``age`` seconds ago; raises Unreachable."""
    database.run(
        "DELETE FROM lab.placements WHERE ended_at < now() - make_interval(secs => :age)", age=age
    )


def find(database: FleetDatabase, job: str) -> Placement | None:
    """The placement of a job; raises Unreachable."""
    rows = database.run(f"SELECT {_COLUMNS} FROM lab.placements p WHERE job = :job", job=job)
    return _placement(rows[0]) if rows else None


def lose(database: FleetDatabase, problem: Problem, after: float = hosts.LOST_AFTER) -> list[str]:
    """Declare hosts lost whose heartbeat stopped ``after`` seconds ago; their names.

    Only for a host whose own heartbeats came through all that time: else it is the database that
    was away, for all. Their labs are not known to run any more and hold their names no longer. Jobs
    that they had not begun are placed elsewhere, as are those that may be run again; the others
    fail with a ``problem``. Raises Unreachable.
    """
    late = (
        "SELECT h.name FROM lab.hosts h JOIN lab.heartbeats b ON b.host = h.name"
        " WHERE NOT h.lost AND b.at < now() - make_interval(secs => :after)"
    )
    if not database.run(late, after=after):
        return []
    names = []
    with database.transaction() as connection:
        hosts.alone(connection)
        for (name,) in connection.execute(text(f"{late} FOR UPDATE OF h"), {"after": after}).all():
            lost = HostUnfit(f"the host {name} was lost while the job ran", hint="request it again")
            _lose(connection, name, problem(lost))
            names.append(name)
    return names


def _lose(connection: Connection, name: str, error: Mapping[str, Any]) -> None:
    lost = {"name": name, "error": msgspec.json.encode(error).decode()}
    for statement in _LOSE:
        connection.execute(text(statement), lost)


def _fail(
    connection: Connection, job: str, error: Mapping[str, Any], state: PlacementState = "queued"
) -> None:
    values = {"job": job, "state": state, "error": msgspec.json.encode(error).decode()}
    connection.execute(
        text("WITH over AS (UPDATE lab.placements SET state = 'failed', ended_at = now(),"
             " error = CAST(:error AS jsonb) WHERE job = :job AND state = :state RETURNING job)"
             " DELETE FROM lab.labs WHERE job IN (SELECT job FROM over) AND view IS NULL"),
        values,
    )  # fmt: skip


def _hosts(connection: Connection) -> list[Host]:
    return [hosts.host_of(row) for row in connection.execute(text(HOSTS))]


def _stem(prefix: str) -> str:
    return prefix[:LAB_NAME_LIMIT].rstrip("-")


def _free_name(prefix: str, names: Collection[str]) -> str:
    """As ``Store.free_name``, among the labs of all hosts."""
    taken = set(names)
    number, name = 1, _stem(prefix)
    while name in taken:
        number += 1
        name = prefix[: LAB_NAME_LIMIT - len(f"-{number}")].rstrip("-") + f"-{number}"
    return name


def _placement(row: Any) -> Placement:
    needs, understood = _needs(row.needs)
    return Placement(
        job=row.job, kind=row.kind, lab=row.lab, project=row.project, token=row.token, key=row.key,
        digest=row.digest, request=row.request, needs=needs, understood=understood,
        again=row.again, host=row.host or "", state=row.state, error=row.error,
        created_at=_epoch(row.created_at) or 0.0, claimed_at=_epoch(row.claimed_at),
        ended_at=_epoch(row.ended_at),
    )  # fmt: skip


def _needs(given: Mapping[str, Any]) -> tuple[Needs, bool]:
    """What a row says that a lab needs, and whether that is all: a newer version may need more."""
    try:
        needs = msgspec.convert(given, Needs)
    except msgspec.ValidationError:
        return Needs(0), False
    known = {one.name for one in fields(Needs)}
    return needs, not any(value for name, value in given.items() if name not in known)


def _epoch(at: datetime | float | None) -> float | None:
    """A time of a row, or of one in JSON, in epoch seconds."""
    return at.timestamp() if isinstance(at, datetime) else at


def _values(one: Placement, host: Host | None) -> dict[str, Any]:
    return {
        "job": one.job, "host": one.host or None, "epoch": host.epoch if host else None,
        "state": one.state, "kind": one.kind, "lab": one.lab, "project": one.project,
        "token": one.token, "key": one.key, "digest": one.digest, "again": one.again,
        "request": msgspec.json.encode(one.request).decode(),
        "needs": msgspec.json.encode(one.needs).decode(),
    }  # fmt: skip


_COLUMNS = schema.columns(schema.placements, "p")
# Without what was requested, which may be large.
_BRIEF = _COLUMNS.replace('p."request"', "CAST('{}' AS jsonb) AS request")
_PLAIN = """
(to_jsonb(p) - 'request' - 'created_at' - 'claimed_at' - 'ended_at' || jsonb_build_object(
    'created_at', EXTRACT(EPOCH FROM p.created_at), 'ended_at', EXTRACT(EPOCH FROM p.ended_at),
    'claimed_at', EXTRACT(EPOCH FROM p.claimed_at),
    'request', CASE WHEN p.project = :project THEN p.request ELSE '{}' END))
"""
_SEEN = f"""
SELECT d.number,
    (SELECT jsonb_agg({_PLAIN}) FROM lab.placements p
     WHERE p.token = :token AND p.key = CAST(:key AS text)) AS before,
    (SELECT jsonb_agg({_PLAIN}) FROM lab.placements p
     WHERE p.state IN ('queued', 'placed', 'claimed')) AS open,
    (SELECT l.host FROM lab.labs l WHERE l.name = :name AND l.holds) AS holder,
    (SELECT jsonb_agg(l.host) FROM lab.labs l WHERE l.name = :name AND NOT l.holds) AS beside,
    (SELECT jsonb_agg(l.name) FROM lab.labs l
     WHERE l.name = :stem OR l.name LIKE :like) AS names,
    (SELECT jsonb_agg(to_jsonb(h)) FROM ({HOSTS}) h) AS hosts
FROM lab.decisions d
"""
_PLACE = """
WITH decided AS (
    UPDATE lab.decisions SET number = number + 1 WHERE number = :number RETURNING number
), named AS (
    INSERT INTO lab.labs (name, host, holds, "foreign", epoch, project, state, job)
    SELECT :lab, COALESCE(CAST(:host AS text), ''), true, false,
        COALESCE(CAST(:epoch AS bigint), 0), :project, 'placed', :job FROM decided
)
INSERT INTO lab.placements (job, host, epoch, state, kind, lab, project, token, key, digest,
    again, request, needs, placed_at)
SELECT :job, CAST(:host AS text), CAST(:epoch AS bigint), :state, :kind, :lab, :project, :token,
    CAST(:key AS text), :digest, :again, CAST(:request AS jsonb), CAST(:needs AS jsonb),
    CASE WHEN CAST(:epoch AS bigint) IS NULL THEN NULL ELSE now() END
FROM decided RETURNING created_at
"""
_FAIRLY = f"""
SELECT {_COLUMNS}, EXTRACT(EPOCH FROM now() - p.created_at) AS waited,
    (SELECT array_agg(o.host) FROM lab.labs o WHERE o.name = p.lab AND NOT o.holds) AS beside
FROM lab.placements p
LEFT JOIN (
    SELECT project, COUNT(*) AS has FROM lab.labs WHERE holds AND host <> '' GROUP BY project
) l ON l.project = p.project
WHERE p.state = 'queued'
ORDER BY COALESCE(l.has, 0)
         + ROW_NUMBER() OVER (PARTITION BY p.project ORDER BY p.created_at, p.job), p.created_at
LIMIT 100
"""
_GIVE = """
WITH given AS (
    UPDATE lab.placements SET host = :host, epoch = :epoch, state = 'placed', placed_at = now()
    WHERE job = :job AND state = 'queued' RETURNING job
), named AS (
    UPDATE lab.labs SET host = :host, epoch = :epoch, state = 'placed'
    WHERE host = '' AND job IN (SELECT job FROM given)
)
SELECT job FROM given
"""
# A host's own labs first: the names of those that are placed elsewhere are taken again next.
_LOSE = (
    "UPDATE lab.hosts SET lost = true, epoch = nextval('lab.epochs') WHERE name = :name",
    """
    UPDATE lab.labs SET holds = false, "foreign" = true, state = 'lost' WHERE host = :name
    """,
    """
    UPDATE lab.labs SET host = '', holds = true, "foreign" = false, state = 'placed', view = NULL
    WHERE host = :name AND job IN (
        SELECT job FROM lab.placements
        WHERE host = :name AND (state = 'placed' OR (state = 'claimed' AND again))
    )
    """,
    "DELETE FROM lab.labs WHERE host = :name AND view IS NULL",
    """
    UPDATE lab.placements SET state = 'failed', ended_at = now(), error = CAST(:error AS jsonb)
    WHERE host = :name AND state = 'claimed' AND NOT again
    """,
    """
    UPDATE lab.placements SET state = 'queued', host = NULL, epoch = NULL, placed_at = NULL,
        claimed_at = NULL
    WHERE host = :name AND state IN ('placed', 'claimed')
    """,
)

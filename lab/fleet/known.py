"""What each host says of its labs: any host's API answers for all of them by it.

A lab's name is **held** by one host. A host that returns after it was declared lost finds its labs
**foreign**: their names may be others' by now, and nobody reaches them by name alone until they are
adopted or removed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
from sqlalchemy import text

from lab.errors import Conflict, NotFound
from lab.fleet import hosts, schema
from lab.fleet.database import Fenced, FleetDatabase
from lab.fleet.hosts import Member
from lab.values import dataclass

_TRIES = 3


@dataclass(frozen=True)
class Known:
    """A lab as its host said it was."""

    name: str
    project: str
    state: str
    job: str
    view: Mapping[str, Any] | None
    """Its view; None: its host has not begun to create it."""
    expires_at: float | None
    observed_at: float | None
    """By the clock of its host, in epoch seconds."""
    host: str = ""
    """Empty: its job waits for one."""
    foreign: bool = False
    holds: bool = True


def publish(
    database: FleetDatabase,
    member: Member,
    labs: Sequence[Known],
    gone: Collection[str] = (),
    *,
    foreign: bool = False,
) -> dict[str, bool]:
    """Say what labs of this host are now, and which are gone; raises Fenced, Unreachable.

    A name that another host holds stays that host's: ours is then foreign. ``foreign``: all of
    ``labs`` are, as this host was lost. Returns for each of them whether it is.
    """
    if not labs and not gone:
        return {}
    plain = [msgspec.to_builtins(replace(lab, host=member.name)) for lab in labs]
    values = {
        "host": member.name, "epoch": member.epoch, "rows": msgspec.json.encode(plain).decode(),
        "gone": list(gone), "foreign": foreign,
    }  # fmt: skip
    for left in reversed(range(_TRIES)):
        try:
            with database.transaction() as connection:
                known = connection.execute(
                    text("SELECT 1 FROM lab.hosts WHERE name = :host AND epoch = :epoch FOR SHARE"),
                    values,
                ).first()
                if known is None:
                    raise hosts.fenced(member)
                if gone:
                    connection.execute(text(_FORGET), values)
                rows = connection.execute(text(_PUBLISH), values).all() if labs else []
        except Fenced:
            raise
        except Conflict:  # somebody took a name at the same moment
            if not left:
                raise
        else:
            return {row.name: row.foreign for row in rows}
    return {}


def reserve(
    database: FleetDatabase, member: Member, names: Collection[str], project: str, job: str
) -> None:
    """Take names for labs that a job of this host makes; raises Conflict, Fenced, Unreachable.

    What of them it does not make, the host gives back by ``drop_reserved``.
    """
    try:
        done = database.run(
            f"WITH me AS ({hosts.MINE}), taken AS ("
            "  INSERT INTO lab.labs (name, host, holds, \"foreign\", epoch, project, state, job)"
            "  SELECT n, me.name, true, false, :epoch, :project, 'placed', :job"
            "  FROM me, unnest(CAST(:names AS text[])) AS n"
            "  ON CONFLICT (name, host) DO NOTHING)"
            " SELECT name FROM me",
            name=member.name, epoch=member.epoch, names=list(names), project=project, job=job,
        )  # fmt: skip
    except Conflict as error:
        raise Conflict(
            f"a lab of another host of the fleet has one of the names {', '.join(sorted(names))}",
            hint="choose another name",
        ) from error
    if not done:
        raise hosts.fenced(member)


def drop_reserved(database: FleetDatabase, member: Member, open_jobs: Collection[str]) -> None:
    """Give back the names of this host that no lab has got, but those of its open jobs."""
    database.run(
        f"WITH me AS ({hosts.MINE})"
        " DELETE FROM lab.labs l USING me WHERE l.host = me.name AND l.view IS NULL"
        " AND l.job <> ALL(:jobs) AND NOT EXISTS (SELECT 1 FROM lab.placements p"
        "  WHERE p.job = l.job AND p.state IN ('queued', 'placed', 'claimed'))",
        name=member.name, epoch=member.epoch, jobs=list(open_jobs),
    )  # fmt: skip


def labs(database: FleetDatabase, *, but: str = "") -> list[Known]:
    """All labs that hosts have said they have, by name; ``but``: not those of this host."""
    query = f"{_SELECT} WHERE host <> :but ORDER BY name, host"
    return [_known(row) for row in database.run(query, but=but)]


def of_host(database: FleetDatabase, host: str) -> list[Known]:
    """The labs of one host."""
    query = f"{_SELECT} WHERE host = CAST(:host AS text) ORDER BY name"
    return [_known(row) for row in database.run(query, host=host)]


def holder(database: FleetDatabase, name: str) -> Known | None:
    """The lab that is meant by a name; None if there is none. Raises Unreachable."""
    rows = database.run(f"{_SELECT} WHERE name = :name AND holds", name=name)
    return _known(rows[0]) if rows else None


def adopt(database: FleetDatabase, member: Member, name: str) -> None:
    """Have a foreign lab of this host hold its name again; raises NotFound, Conflict, Fenced."""
    try:
        done = database.run(
            f"WITH me AS ({hosts.MINE})"
            ' UPDATE lab.labs l SET "foreign" = false, holds = true FROM me'
            " WHERE l.name = :lab AND l.host = me.name RETURNING l.name",
            lab=name, name=member.name, epoch=member.epoch,
        )  # fmt: skip
    except Conflict as error:
        raise Conflict(
            f"the name {name} is held by a lab of another host",
            hint=f"remove that lab first, or this one: `lab down {name}@{member.name}`",
        ) from error
    if not done:
        raise NotFound(f"the host {member.name} has no lab {name} that the fleet knows")


def _known(row: Any) -> Known:
    return Known(
        row.name, row.project, row.state, row.job, row.view, row.expires_at, row.observed_at,
        row.host, row.foreign, row.holds,
    )  # fmt: skip


_SELECT = f"SELECT {schema.columns(schema.labs, 'l')} FROM lab.labs l"
_FORGET = "DELETE FROM lab.labs WHERE host = CAST(:host AS text) AND name = ANY(:gone)"
_PUBLISH = """
INSERT INTO lab.labs AS l
    (name, host, holds, "foreign", epoch, project, state, job, view, expires_at, observed_at)
SELECT n.name, n.host, t.other IS NULL AND NOT :foreign, t.other IS NOT NULL OR :foreign,
    CAST(:epoch AS bigint), n.project, n.state, n.job, n.view, n.expires_at, n.observed_at
FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS n (
    name text, host text, project text, state text, job text, view jsonb,
    expires_at double precision, observed_at double precision
)
LEFT JOIN (SELECT name, host AS other FROM lab.labs WHERE holds) t
    ON t.name = n.name AND t.other <> n.host
ON CONFLICT (name, host) DO UPDATE SET
    holds = l.holds AND NOT :foreign, "foreign" = l."foreign" OR :foreign,
    epoch = excluded.epoch, project = excluded.project, state = excluded.state,
    job = excluded.job, view = excluded.view, expires_at = excluded.expires_at,
    observed_at = excluded.observed_at
RETURNING l.name, l."foreign"
"""

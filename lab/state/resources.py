"""Intents: what was about to be made, and by whom, written before it is made."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Literal

from sqlalchemy import Connection, RowMapping, delete, insert, select, update

from lab.errors import Conflict, HostUnfit
from lab.names import Owner
from lab.state.database import Database
from lab.state.records import ResourceKind, ResourceRecord, ResourceState
from lab.state.schema import resources as _resources

_c = _resources.c


class Resources:
    """Every thing has one owner: a lab, a template or an image."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def intend(self, owner: Owner, kind: ResourceKind, ref: str) -> int:
        """Say that ``owner`` is about to make the thing; the id is for ``made``.

        The same owner may say it again (the id stays). Raises Conflict if another owner
        holds it.
        """
        return self.intend_all(owner, [(kind, ref)])[0]

    def intend_all(self, owner: Owner, things: Sequence[tuple[ResourceKind, str]]) -> list[int]:
        """``intend`` for several things in one transaction, all or none; ids in order."""
        with self._database.write() as connection:
            recorded = _rows(connection, things)
            for thing in things:
                row = recorded.get(thing)
                if row is not None and row["owner"] != str(owner):
                    raise Conflict(
                        f"{thing[0]} {thing[1]} belongs to {row['owner']}",
                        hint="`lab gc` removes leftovers",
                    )
            new = [thing for thing in dict.fromkeys(things) if thing not in recorded]
            _add(connection, owner, new, "intended")
            ids = {thing: int(row["id"]) for thing, row in _rows(connection, things).items()}
            return [ids[thing] for thing in things]

    def made(self, *ids: int) -> None:
        """The things exist now."""
        with self._database.write() as connection:
            connection.execute(update(_resources).where(_c.id.in_(ids)).values(state="made"))

    def gone(self, owner: Owner, kind: ResourceKind, ref: str) -> None:
        """The thing exists no longer, or was never made; fine if not recorded."""
        ours = (_c.owner == str(owner)) & (_c.kind == kind) & (_c.ref == ref)
        with self._database.write() as connection:
            connection.execute(delete(_resources).where(ours))

    def all_gone(self, owner: Owner) -> None:
        """Nothing of ``owner`` exists any longer."""
        with self._database.write() as connection:
            connection.execute(delete(_resources).where(_c.owner == str(owner)))

    def of(self, owner: Owner) -> list[ResourceRecord]:
        """What ``owner`` has or was about to make, in the order of intent."""
        with self._database.read() as connection:
            query = select(_resources).where(_c.owner == str(owner)).order_by(_c.id)
            return [_record(row) for row in connection.execute(query).mappings()]

    def all(self) -> list[ResourceRecord]:
        """Everything, in the order of intent."""
        with self._database.read() as connection:
            query = select(_resources).order_by(_c.id)
            return [_record(row) for row in connection.execute(query).mappings()]

    def owners(self) -> list[Owner]:
        """All who have something, sorted."""
        with self._database.read() as connection:
            names = connection.execute(select(_c.owner).distinct()).scalars()
            return sorted(Owner.parse(name) for name in names)

    def reserve_ports(
        self,
        owner: Owner,
        count: int,
        first: int,
        last: int,
        is_free: Callable[[int], bool],
        *,
        kind: Literal["port", "segment"] = "port",
    ) -> list[int]:
        """The lowest ``count`` ports from ``first`` to ``last`` that nobody has, now ours.

        No two owners, in whatever process, get the same. ``is_free`` asks the host: before the
        transaction, as that may take long, and once more if another owner took one meanwhile.

        Raises HostUnfit if there are not enough; nothing is reserved then.
        """
        while True:
            with self._database.read() as connection:
                taken = _taken(connection, kind)
            free = (p for p in range(first, last + 1) if p not in taken and is_free(p))
            found = list(islice(free, count))
            if len(found) < count:
                raise _exhausted(count, (first, last), taken, len(found))
            with self._database.write() as connection:
                if _taken(connection, kind).isdisjoint(found):
                    _add(connection, owner, [(kind, str(port)) for port in found], "made")
                    return found


def _taken(connection: Connection, kind: ResourceKind) -> set[int]:
    """The ports, or segments, that anybody has."""
    return {int(ref) for ref in connection.execute(select(_c.ref).where(_c.kind == kind)).scalars()}


def _rows(
    connection: Connection, things: Sequence[tuple[ResourceKind, str]]
) -> dict[tuple[ResourceKind, str], RowMapping]:
    kinds = {kind for kind, _ in things}
    refs = {ref for _, ref in things}
    query = select(_resources).where(_c.kind.in_(kinds), _c.ref.in_(refs))
    return {(row["kind"], row["ref"]): row for row in connection.execute(query).mappings()}


def _add(
    connection: Connection,
    owner: Owner,
    things: Iterable[tuple[ResourceKind, str]],
    state: ResourceState,
) -> None:
    common = {
        "owner": str(owner),
        "state": state,
        "created_at": time.time(),
        "pid": os.getpid(),
    }
    rows = [{**common, "kind": kind, "ref": ref} for kind, ref in things]
    if rows:
        connection.execute(insert(_resources), rows)


def _record(row: RowMapping) -> ResourceRecord:
    return ResourceRecord(**{**row, "owner": Owner.parse(row["owner"])})


def _exhausted(count: int, ports: tuple[int, int], taken: set[int], free: int) -> HostUnfit:
    first, last = ports
    ours = sum(first <= port <= last for port in taken)
    return HostUnfit(
        f"{count} ports are needed between {first} and {last}, {free} are free:"
        f" of {max(0, last - first + 1)}, labs hold {ours}, other programs use the rest",
        hint="remove a lab (`lab ls`), or set port_range to a wider range",
    )

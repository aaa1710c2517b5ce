"""The nodes of labs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import delete, insert, select, update

from lab.errors import Conflict, NotFound
from lab.state import schema
from lab.state.database import Database
from lab.state.keyed import as_records
from lab.state.records import NodeRecord
from lab.suggest import did_you_mean

_nodes = schema.nodes


class Nodes:
    """Nodes belong to a lab and vanish with it."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, records: Iterable[NodeRecord]) -> None:
        """Add nodes, all or none.

        Raises Conflict if one exists, NotFound if their lab does not.
        """
        new = list(records)
        if not new:
            return
        names = {record.lab for record in new}
        with self._database.write() as connection:
            labs = select(schema.labs.c.name).where(schema.labs.c.name.in_(names))
            missing = names - set(connection.execute(labs).scalars())
            if missing:
                raise NotFound(f"there is no lab {min(missing)!r}")
            recorded = select(_nodes.c.lab, _nodes.c.name).where(_nodes.c.lab.in_(names))
            taken = {(lab, name) for lab, name in connection.execute(recorded)}
            for record in new:
                if (record.lab, record.name) in taken:
                    raise Conflict(f"lab {record.lab} has a node {record.name} already")
                taken.add((record.lab, record.name))
            connection.execute(insert(_nodes), [dict(vars(record)) for record in new])

    def of(self, lab: str) -> list[NodeRecord]:
        """The nodes of a lab, in order; empty if there is no such lab."""
        with self._database.read() as connection:
            query = select(_nodes).where(_nodes.c.lab == lab).order_by(_nodes.c.idx)
            return as_records(connection.execute(query), NodeRecord)

    def all(self) -> list[NodeRecord]:
        """All nodes, by lab and in order."""
        with self._database.read() as connection:
            query = select(_nodes).order_by(_nodes.c.lab, _nodes.c.idx)
            return as_records(connection.execute(query), NodeRecord)

    def get(self, lab: str, name: str) -> NodeRecord:
        """One node; raises NotFound."""
        with self._database.read():
            recorded = {node.name: node for node in self.of(lab)}
        if name not in recorded:
            raise _unknown(lab, name, list(recorded))
        return recorded[name]

    def update(self, lab: str, name: str, **fields: Any) -> None:
        """Set some of the record's fields; raises NotFound."""
        ours = (_nodes.c.lab == lab) & (_nodes.c.name == name)
        with self._database.write() as connection:
            if not connection.execute(update(_nodes).where(ours).values(fields)).rowcount:
                raise _unknown(lab, name, [node.name for node in self.of(lab)])

    def remove(self, lab: str, name: str) -> None:
        """Remove one node; fine if absent."""
        ours = (_nodes.c.lab == lab) & (_nodes.c.name == name)
        with self._database.write() as connection:
            connection.execute(delete(_nodes).where(ours))


def _unknown(lab: str, name: str, known: Sequence[str]) -> NotFound:
    otherwise = "its nodes: " + ", ".join(known) if known else ""
    return NotFound(
        f"the lab {lab} has no node {name}", hint=did_you_mean(name, known, otherwise=otherwise)
    )

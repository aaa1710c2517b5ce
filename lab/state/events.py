"""What happened, step by step."""

from __future__ import annotations

import time
from collections.abc import Sequence

from sqlalchemy import delete, func, insert, literal, select

from lab.state.database import Database
from lab.state.records import EventRecord
from lab.state.schema import events as _events
from lab.state.schema import jobs as _jobs


class Events:
    """A log of steps. ``owner`` is ``str(lab.names.Owner)``, or empty for the host."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, owner: str, step: str, state: str, text: str = "", seconds: float = 0.0) -> None:
        """Note a step, now; ``text`` must hold no secret."""
        values = {
            "at": time.time(),
            "owner": owner,
            "step": step,
            "state": state,
            "text": text,
            "seconds": seconds,
        }
        with self._database.write() as connection:
            connection.execute(insert(_events).values(values))

    def add_all(self, found: Sequence[EventRecord]) -> None:
        """Note several steps at once; they get new ids."""
        rows = [{k: v for k, v in vars(one).items() if k != "id"} for one in found]
        if rows:
            with self._database.write() as connection:
                connection.execute(insert(_events), rows)

    def after(
        self,
        last: int,
        *,
        owner: str | None = None,
        project: str | None = None,
        limit: int = 500,
    ) -> list[EventRecord]:
        """The events with a larger id than ``last``, oldest first.

        Those of ``owner`` only, and of the jobs of ``project`` only.
        """
        query = select(_events).where(_events.c.id > last).order_by(_events.c.id).limit(limit)
        if owner is not None:
            query = query.where(_events.c.owner == owner)
        if project is not None:
            theirs = select(literal("job:") + _jobs.c.id).where(_jobs.c.project == project)
            query = query.where(_events.c.owner.in_(theirs))
        with self._database.read() as connection:
            rows = connection.execute(query).mappings().all()
        return [EventRecord(**row) for row in rows]

    def last_id(self) -> int:
        """The id of the latest event, 0 if there is none."""
        with self._database.read() as connection:
            return connection.execute(select(func.max(_events.c.id))).scalar() or 0

    def latest(self, owner: str | None = None, *, limit: int = 100) -> list[EventRecord]:
        """The latest ``limit`` events (of ``owner`` only), oldest first."""
        query = select(_events).order_by(_events.c.id.desc()).limit(limit)
        if owner is not None:
            query = query.where(_events.c.owner == owner)
        with self._database.read() as connection:
            rows = connection.execute(query).mappings().all()
        return [EventRecord(**row) for row in reversed(rows)]

    def prune(self, before: float) -> int:
        """Forget what happened before then (epoch seconds); how many events that were.

        The last one stays: later ids are larger, and listeners wait for larger ones.
        """
        last = select(func.max(_events.c.id)).scalar_subquery()
        old = delete(_events).where(_events.c.at < before, _events.c.id < last)
        with self._database.write() as connection:
            return connection.execute(old).rowcount

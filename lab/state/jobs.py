"""Jobs of the service, and the requests for them."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from typing import Any

from sqlalchemy import Select, delete, func, insert, or_, select, update

from lab.errors import InvalidSpec, NotFound
from lab.state.database import Database
from lab.state.keyed import Keyed, as_records
from lab.state.schema import audit as _audit
from lab.state.schema import jobs as _jobs
from lab.state.schema import reports as _reports
from lab.state.schema import requests as _requests
from lab.state.service import AuditRecord, JobKind, JobRecord, JobState, NewJob

OPEN: tuple[JobState, ...] = ("queued", "running")
"""The states of jobs that have not ended."""

_c = _jobs.c


class Jobs(Keyed[JobRecord]):
    """Jobs, by id; they stay when they have ended."""

    def __init__(self, database: Database) -> None:
        super().__init__(database, _jobs, JobRecord, "job")

    def add(self, record: JobRecord) -> None:
        """Add a job, and the request of a new one; raises Conflict if there is one of that id."""
        values = {one.name: getattr(record, one.name) for one in fields(JobRecord)}
        with self._database.write() as connection:
            super().add(JobRecord(**values))
            if isinstance(record, NewJob):
                row = {"job": record.id, "request": record.request}
                connection.execute(insert(_requests).values(row))

    def request(self, job: str) -> Mapping[str, Any]:
        """What a job was asked for; raises NotFound once the job has ended."""
        query = select(_requests.c.request).where(_requests.c.job == job)
        with self._database.read() as connection:
            found: Mapping[str, Any] | None = connection.execute(query).scalar()
        if found is None:
            raise NotFound(f"the request of job {job} is not kept")
        return found

    def drop_request(self, job: str) -> None:
        """Remove the request of a job that has ended."""
        with self._database.write() as connection:
            connection.execute(delete(_requests).where(_requests.c.job == job))
            connection.execute(update(_jobs).where(_c.id == job).values(size=0))

    def report(self, job: str) -> Mapping[str, Any]:
        """What a job reported; raises NotFound if it has no report."""
        query = select(_reports.c.report).where(_reports.c.job == job)
        with self._database.read() as connection:
            found: Mapping[str, Any] | None = connection.execute(query).scalar()
        if found is None:
            raise NotFound(f"the job {job} has no report", hint="an upgrade has one once it ended")
        return found

    def add_report(self, job: str, report: Mapping[str, Any]) -> None:
        """Keep what a job reports, as JSON."""
        with self._database.write() as connection:
            connection.execute(insert(_reports).values(job=job, report=report))

    def by_key(self, token: str, key: str) -> JobRecord | None:
        """The job that a token asked for with this Idempotency-Key."""
        query = select(_jobs).where(_c.token == token, _c.key == key)
        found = self._list(query)
        return found[0] if found else None

    def open(self, project: str | None = None) -> list[JobRecord]:
        """The jobs (of a project only) that have not ended, in the order they were asked for."""
        query = select(_jobs).where(_c.state.in_(OPEN)).order_by(_c.created_at, _c.id)
        return self._list(query if project is None else query.where(_c.project == project))

    def succeeded_since(self, since: float, project: str) -> list[JobRecord]:
        """The jobs of a project that ended with success then (epoch seconds) or later."""
        query = select(_jobs).where(_c.ended_at >= since, _c.state == "succeeded")
        return self._list(query.where(_c.project == project))

    def latest(
        self,
        project: str | None = None,
        *,
        states: Collection[JobState] = (),
        kinds: Collection[JobKind] = (),
        lab: str = "",
        dataset: str = "",
        after: str = "",
        limit: int = 100,
    ) -> list[JobRecord]:
        """The latest jobs, newest first; ``after``: those older than the job of that id.

        ``dataset``: those about it, or about a version of it.

        Raises InvalidSpec if there is no such job.
        """
        query = select(_jobs).order_by(_c.created_at.desc(), _c.id.desc()).limit(limit)
        for column, wanted in ((_c.state, states), (_c.kind, kinds)):
            query = query.where(column.in_(wanted)) if wanted else query
        query = query.where(_c.lab == lab) if lab else query
        if dataset:
            subject = f"dataset:{dataset}"
            query = query.where(or_(_c.about == subject, _c.about.startswith(f"{subject}@")))
        query = query if project is None else query.where(_c.project == project)
        with self._database.read():
            if after:
                last = self.find(after)
                if last is None:
                    raise InvalidSpec(f"there is no job {after!r} to list those after")
                at = last.created_at
                query = query.where(
                    or_(_c.created_at < at, (_c.created_at == at) & (_c.id < after))
                )
            return self._list(query)

    def counts(self) -> dict[tuple[str, str], int]:
        """How many jobs there are of each kind and state."""
        query = select(_c.kind, _c.state, func.count()).group_by(_c.kind, _c.state)
        with self._database.read() as connection:
            return {(kind, state): number for kind, state, number in connection.execute(query)}

    def ended_before(self, before: float, *, limit: int = 500) -> list[str]:
        """The ids of jobs that ended before then (epoch seconds)."""
        query = select(_c.id).where(_c.ended_at < before).limit(limit)
        with self._database.read() as connection:
            return list(connection.execute(query).scalars())

    def remove_all(self, ids: Sequence[str]) -> None:
        """Forget these jobs."""
        with self._database.write() as connection:
            connection.execute(delete(_jobs).where(_c.id.in_(ids)))

    def _list(self, query: Select[tuple[object, ...]]) -> list[JobRecord]:
        with self._database.read() as connection:
            return as_records(connection.execute(query), JobRecord)


class Audit:
    """Who did what."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, **fields: object) -> None:
        """Note a request, now; ``fields`` are those of the record but for ``id`` and ``at``."""
        with self._database.write() as connection:
            connection.execute(insert(_audit).values(at=time.time(), **fields))

    def latest(self, *, before: int | None = None, limit: int = 100) -> list[AuditRecord]:
        """The latest entries, newest first; ``before``: those with a smaller id."""
        query = select(_audit).order_by(_audit.c.id.desc()).limit(limit)
        query = query if before is None else query.where(_audit.c.id < before)
        with self._database.read() as connection:
            return as_records(connection.execute(query), AuditRecord)

    def prune(self, before: float) -> int:
        """Forget what happened before then (epoch seconds); how many entries that were."""
        with self._database.write() as connection:
            return connection.execute(delete(_audit).where(_audit.c.at < before)).rowcount

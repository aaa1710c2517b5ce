"""Labs that are ready before they are asked for: handing them out."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, Field

from lab.api.jobs.work import origin_of, spec_of
from lab.api.telemetry.logs import log
from lab.config.poolfile import WarmPool
from lab.errors import Conflict, Interrupted, LabError
from lab.lifecycle.service import pool as pools
from lab.progress import Event
from lab.state.records import JobRecord
from lab.state.store import Store

if TYPE_CHECKING:
    from lab.api.service import Service


class PoolView(BaseModel):
    """Labs that are kept ready. ``count``: how many there are to be; ``ready``: are now."""

    name: Annotated[str, Field(examples=["pxc"])]
    blueprint: str
    nodes: int
    memory: Annotated[int, Field(description="Of a node, in bytes.")]
    count: int
    ready: int


class Pool:
    """Gives members of the pools to those who ask. Safe for use by several threads.

    Only those are given away that the keeper found sound since this process began.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._guard = threading.Lock()
        self._ready: dict[str, list[str]] = {}
        self._amiss: set[str] = set()

    @property
    def pools(self) -> Sequence[WarmPool]:
        """The pools that the settings ask for."""
        return self._service.settings.serve.pool

    def check(self) -> None:
        """Raise InvalidSpec if a pool cannot be as the settings say."""
        for pool in self.pools:
            pools.check(self._service.settings, pool.spec)

    def offer(self, ready: Mapping[str, list[str]]) -> None:
        """Give these away from now on, by pool, the first first."""
        with self._guard:
            self._ready = {name: list(found) for name, found in ready.items()}

    def withdraw(self, name: str) -> None:
        """Give this one away no more."""
        with self._guard:
            for ready in self._ready.values():
                if name in ready:
                    ready.remove(name)

    def counts(self) -> dict[str, int]:
        """How many labs each pool has that can be claimed."""
        with self._guard:
            return {pool.name: len(self._ready.get(pool.name, ())) for pool in self.pools}

    def views(self) -> list[PoolView]:
        """All pools, as others are told of them."""
        ready = self.counts()
        return [
            PoolView(
                name=pool.name,
                blueprint=pool.spec.blueprint,
                nodes=pool.spec.nodes,
                memory=pool.spec.size.memory,
                count=pool.count,
                ready=ready[pool.name],
            )
            for pool in self.pools
        ]

    def amiss(self) -> set[str]:
        """The members that did not answer when they were to be given away."""
        with self._guard:
            found, self._amiss = self._amiss, set()
            return found

    def claim(self, job: JobRecord) -> str:
        """The lab that ``job``, which asks for one, has now; empty if no pool has it ready.

        Raises Interrupted if the job was cancelled.
        """
        asked = spec_of(job.request)
        settings = self._service.settings
        fitting = [
            pool
            for pool in self.pools
            if not job.request.get("cold") and pools.serves(settings, pool.spec, asked)
        ]
        for pool in fitting:
            while name := self._pop(pool.name):
                if self._give(name, pool.name, job):
                    self._service.metrics.claimed(time.time() - job.created_at)
                    self._service.keeper.rounds.wake()
                    return name
        if fitting:
            self._service.metrics.missed()
        return ""

    def _pop(self, pool: str) -> str:
        with self._guard:
            ready = self._ready.get(pool)
            return ready.pop(0) if ready else ""

    def _give(self, name: str, pool: str, job: JobRecord) -> bool:
        """Give a member to ``job``; False if it cannot be given away."""
        service, asked = self._service, job.request
        began = time.time()

        def also(store: Store) -> None:
            if store.jobs.get(job.id).cancel:
                raise Interrupted("the job was cancelled")
            store.jobs.update(job.id, state="running", lab=name, started_at=began)

        fields = pools.given_to(
            origin_of(job), str(asked["owner"]), float(asked["ttl"]), str(asked["snapshots"]),
            job.created_at,
        )  # fmt: skip
        try:
            with service.contexts.use() as ctx:
                pools.claim(ctx, name, pool, fields, also)
        except Interrupted:
            raise
        except Conflict:
            return False  # somebody else has it, or works on it
        except LabError as error:
            log.warning("a pooled lab is not given away", extra={"lab": name, "error": error.what})
            with self._guard:
                self._amiss.add(name)
            self._service.keeper.rounds.wake()
            return False
        service.events.add(job.id, Event("job", "begin", job.kind))
        took = time.time() - began
        service.heard(job, Event("claim", "end", f"{name} was ready in the pool", took))
        return True

"""Labs for requests from warm pools."""

from __future__ import annotations

import time
from typing import Any

from lab.api.core.core import Core
from lab.api.jobs.stored import origin_of
from lab.api.telemetry.logs import log
from lab.errors import Conflict, Interrupted, LabError
from lab.lifecycle.service import pool as pools
from lab.progress import Event
from lab.requests.labs import CreateLab
from lab.state.service import JobRecord
from lab.state.store import Store


def claim(core: Core, job: JobRecord, request: CreateLab) -> str:
    """Assign a ready lab of a matching warm pool to ``job``, and return its name; "" if none is.

    Raises Interrupted if the job was cancelled.
    """
    fitting = [
        pool
        for pool in core.pool.pools
        if not request.cold and pools.serves(core.settings, pool.spec, request)
    ]
    for pool in fitting:
        while name := core.pool.pop(pool.name):
            if _give(core, name, pool.name, job, request):
                core.metrics.claimed(time.time() - job.created_at)
                core.pool.requested(pool.name, hit=True)
                core.pool.wake.set()
                return name
    if fitting:
        core.metrics.missed()
    for pool in fitting:
        core.pool.requested(pool.name, hit=False)
    return ""


def _give(core: Core, name: str, pool: str, job: JobRecord, request: CreateLab) -> bool:
    """Assign the pooled lab ``name`` to ``job``; False if it cannot be claimed."""
    began = time.time()

    def also(store: Store) -> None:
        if store.jobs.get(job.id).cancel:
            raise Interrupted("the job was cancelled")
        store.jobs.update(job.id, state="running", lab=name, started_at=began)

    ttl = request.ttl or core.settings.serve.default_ttl
    origin = origin_of(job, request, core.store.tokens.find(job.token))

    def fields() -> dict[str, Any]:
        return pools.given_to(origin, request.owner, ttl, request.snapshots, job.created_at)

    try:
        with core.contexts.use() as ctx:
            pools.claim(ctx, name, pool, fields, also)
    except Interrupted:
        raise
    except Conflict:
        return False  # another job claimed it, or holds its lock
    except LabError as error:
        log.warning("a pooled lab cannot be claimed", extra={"lab": name, "error": error.what})
        core.pool.report_unsound(name)
        return False
    core.events.add(job.id, Event("job", "begin", job.kind))
    took = time.time() - began
    core.job_step(job, Event("claim", "end", f"{name} was ready in the pool", took))
    return True

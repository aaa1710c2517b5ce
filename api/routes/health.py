"""Health checks, which need no token: /healthz, /readyz and, if enabled, /metrics."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator

from fastapi import APIRouter
from fastapi.responses import PlainTextResponse, Response
from starlette.exceptions import HTTPException

from lab.api.core.core import Core
from lab.api.core.threads import Route
from lab.api.http.dependencies import CoreOf
from lab.api.telemetry.metrics import Now
from lab.errors import HostUnfit

router = APIRouter(tags=["health"], route_class=Route)


@router.get("/healthz", operation_id="health", response_class=PlainTextResponse)
async def health() -> str:
    """The process is alive; the answer needs no worker thread."""
    return "ok\n"


@router.get("/readyz", operation_id="readiness", response_class=PlainTextResponse)
def readiness(core: CoreOf) -> str:
    """The service accepts requests: the state database can be read."""
    if not core.ready.is_set():
        raise HostUnfit("the service is starting or stopping")
    core.store.jobs.open("")
    return "ok\n"


def states(core: Core) -> Iterator[str]:
    """The states of all labs, as they were observed last."""
    for name, found in core.observing.labs().items():
        seen = None if found.lab.pool else core.observing.seen(name)
        yield seen.view.state if seen else "pooled"


@router.get("/metrics", operation_id="metrics", response_class=PlainTextResponse)
def metrics(core: CoreOf) -> Response:
    """Metrics in the format of Prometheus, if the setting `metrics` is on."""
    if not core.settings.serve.metrics:
        raise HTTPException(404)
    store = core.store
    now = Now(
        labs=Counter(states(core)),
        jobs=Counter(str(job.state) for job in store.jobs.open()),
        ready=core.pool.counts(),
        space=core.space.get(),
        stored={
            "image": sum(image.size for image in store.images.all()),
            "template": sum(template.size for template in store.templates.all()),
        },
        memory=core.admission.memory_budget,
        memory_used=core.admission.used().memory,
        fleet=None if core.fleet is None else core.fleet.figures(time.monotonic()),
    )
    text = core.metrics.text(now)
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

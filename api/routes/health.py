"""What answers without a token: /healthz, /readyz and, by setting, /metrics."""

from __future__ import annotations

from collections import Counter

from fastapi import APIRouter
from fastapi.responses import PlainTextResponse, Response
from starlette.exceptions import HTTPException

from lab.api.http.dependencies import CoreOf
from lab.api.telemetry.metrics import Now
from lab.errors import HostUnfit

router = APIRouter(tags=["health"])


@router.get("/healthz", operation_id="health", response_class=PlainTextResponse)
async def health() -> str:
    """The process lives; no thread is needed to say so."""
    return "ok\n"


@router.get("/readyz", operation_id="readiness", response_class=PlainTextResponse)
def readiness(core: CoreOf) -> str:
    """The service takes requests: the record can be read."""
    if not core.ready.is_set():
        raise HostUnfit("the service is starting or ending")
    core.store.jobs.open("")
    return "ok\n"


@router.get("/metrics", operation_id="metrics", response_class=PlainTextResponse)
def metrics(core: CoreOf) -> Response:
    """Figures for Prometheus, if the setting `metrics` is on."""
    if not core.settings.serve.metrics:
        raise HTTPException(404)
    store = core.store
    now = Now(
        labs=Counter("pooled" if lab.pool else str(lab.state) for lab in store.labs.all()),
        jobs=Counter(str(job.state) for job in store.jobs.open()),
        ready=core.pool.counts(),
        space=core.space.get(),
        stored={
            "image": sum(image.size for image in store.images.all()),
            "template": sum(template.size for template in store.templates.all()),
        },
    )
    text = core.metrics.text(now)
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

"""Figures for Prometheus."""

from __future__ import annotations

import threading
from collections import deque

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from lab.progress import Event
from lab.state.records import JobRecord

_CLAIM_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
_QUANTILES = (0.5, 0.95)
_LATEST = 1000
_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class Metrics:
    """Counts what happens; a registry of its own, so that several services do not mix."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        self._steps = Histogram(
            "lab_step_seconds", "How long steps of jobs took", ("kind", "step"),
            registry=registry, buckets=_SECONDS,
        )  # fmt: skip
        self._jobs = Histogram(
            "lab_job_seconds", "From request to end", ("kind", "state"),
            registry=registry, buckets=_SECONDS,
        )  # fmt: skip
        self._errors = Counter(
            "lab_job_errors", "Jobs that failed", ("kind", "error"), registry=registry
        )
        self._expired = Counter("lab_leases_expired", "Labs that expired", registry=registry)
        self._pool = Gauge(
            "lab_pool_ready", "Labs that wait to be claimed", ("pool",), registry=registry
        )
        self._claims = Counter(
            "lab_pool_claims", "Requests that a pool is for", ("result",), registry=registry
        )
        self._claim_seconds = Histogram(
            "lab_pool_claim_seconds", "From request to a lab of a pool",
            registry=registry, buckets=_CLAIM_SECONDS,
        )  # fmt: skip
        self._quantiles = Gauge(
            "lab_pool_claim_quantile_seconds", f"The same, of the last {_LATEST} claims",
            ("quantile",), registry=registry,
        )  # fmt: skip
        self._guard = threading.Lock()
        self._latest: deque[float] = deque(maxlen=_LATEST)
        self._labs = Gauge("lab_labs", "Labs", ("state",), registry=registry)
        self._open = Gauge("lab_jobs_open", "Jobs not ended", ("state",), registry=registry)

    def step(self, kind: str, event: Event) -> None:
        """A step of a job of that kind."""
        if event.state in ("end", "fail"):
            self._steps.labels(kind, event.step).observe(event.seconds)

    def ended(self, job: JobRecord) -> None:
        """A job has ended."""
        took = (job.ended_at or job.created_at) - job.created_at
        self._jobs.labels(job.kind, job.state).observe(took)
        if job.error is not None:
            self._errors.labels(job.kind, job.error["type"]).inc()
        if job.kind == "expire" and job.state == "succeeded":
            self._expired.inc()

    def claimed(self, seconds: float) -> None:
        """A request was served from a pool, so many seconds after it came."""
        self._claims.labels("hit").inc()
        self._claim_seconds.observe(seconds)
        with self._guard:
            self._latest.append(seconds)

    def missed(self) -> None:
        """A pool had nothing ready for a request that it is for."""
        self._claims.labels("miss").inc()

    def text(self, labs: dict[str, int], jobs: dict[str, int], pools: dict[str, int]) -> bytes:
        """All figures, with how many labs and open jobs there are now, by state, and in pools."""
        for gauge, counts in ((self._labs, labs), (self._open, jobs), (self._pool, pools)):
            gauge.clear()
            for state, number in counts.items():
                gauge.labels(state).set(number)
        with self._guard:
            latest = sorted(self._latest)
        for share in _QUANTILES if latest else ():
            at = min(len(latest) - 1, int(len(latest) * share))
            self._quantiles.labels(str(share)).set(latest[at])
        return generate_latest(self._registry)

"""Figures for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from lab.progress import Event
from lab.state.records import JobRecord

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

    def text(self, labs: dict[str, int], jobs: dict[str, int]) -> bytes:
        """All figures, with how many labs and open jobs there are now, by state."""
        for gauge, counts in ((self._labs, labs), (self._open, jobs)):
            gauge.clear()
            for state, number in counts.items():
                gauge.labels(state).set(number)
        return generate_latest(self._registry)

"""Metrics for Prometheus."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from lab.progress import Event
from lab.state.service import JobRecord
from lab.storage import Space
from lab.values import dataclass

_CLAIM_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
_BEGIN_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 6, 15, 60, 300, 900)
_QUANTILES = (0.5, 0.95)
_LATEST = 1000
_RESTORE_SECONDS = (0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


_CLONED = ("restore", "start")
"""Steps that bring up the clones of a template: with its RAM, or by booting them."""


@dataclass(frozen=True)
class FleetFigures:
    """Of a fleet, as its database had it last: hosts and open placements by state, and ages.

    ``ages``: seconds since the last heartbeat of each host.
    """

    hosts: Mapping[str, int]
    placements: Mapping[str, int]
    ages: Mapping[str, float]


@dataclass(frozen=True)
class Now:
    """Values that are read for each scrape.

    Labs and open jobs by state, labs ready by pool, the storage's space (None: unknown), the bytes
    that images and templates take, the memory for labs and what they use of it, and the fleet's
    (None: unknown, or there is none).
    """

    labs: Mapping[str, int]
    jobs: Mapping[str, int]
    ready: Mapping[str, int]
    space: Space | None
    stored: Mapping[str, int]
    memory: int
    memory_used: int
    fleet: FleetFigures | None = None


class Metrics:
    """Counters of jobs, in a registry of its own, so that several services do not mix."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        self._steps = Histogram(
            "lab_step_seconds", "Duration of steps of jobs", ("kind", "step"),
            registry=registry, buckets=_SECONDS,
        )  # fmt: skip
        self._jobs = Histogram(
            "lab_job_seconds", "Duration of jobs, from request to end", ("kind", "state"),
            registry=registry, buckets=_SECONDS,
        )  # fmt: skip
        self._errors = Counter(
            "lab_job_errors", "Jobs that failed", ("kind", "error"), registry=registry
        )
        self._expired = Counter("lab_leases_expired", "Labs that expired", registry=registry)
        self._dropped = Counter(
            "lab_webhook_dropped", "Messages not sent: too many waited", registry=registry
        )
        self._lookups = Counter(
            "lab_template_lookups", "Labs cloned; a miss: the template had to be created first",
            ("result",), registry=registry,
        )  # fmt: skip
        self._restores = Histogram(
            "lab_restore_seconds", "Duration of restores, from captured RAM to running nodes",
            registry=registry, buckets=_RESTORE_SECONDS,
        )  # fmt: skip
        self._forming: set[str] = set()
        self._restoring: dict[str, float] = {}
        self._free = Gauge("lab_storage_free_bytes", "Free space of the storage", registry=registry)
        self._used = Gauge("lab_storage_used_bytes", "Used space of the storage", registry=registry)
        self._memory_free = Gauge(
            "lab_memory_free_bytes", "Memory for labs that none uses", registry=registry
        )
        self._memory_used = Gauge(
            "lab_memory_used_bytes", "Memory that labs use", registry=registry
        )
        self._stored = Gauge(
            "lab_storage_bytes", "Space used by images and templates", ("kind",), registry=registry
        )
        self._pool = Gauge(
            "lab_pool_ready", "Labs of a pool that can be claimed", ("pool",), registry=registry
        )
        self._claims = Counter(
            "lab_pool_claims", "Requests for a lab of a pool", ("result",), registry=registry
        )
        self._claim_seconds = Histogram(
            "lab_pool_claim_seconds", "Duration of claims, from request to lab",
            registry=registry, buckets=_CLAIM_SECONDS,
        )  # fmt: skip
        self._quantiles = Gauge(
            "lab_pool_claim_quantile_seconds", f"Quantiles of the last {_LATEST} claims",
            ("quantile",), registry=registry,
        )  # fmt: skip
        self._hosts = Gauge("lab_fleet_hosts", "Hosts", ("state",), registry=registry)
        self._placements = Gauge(
            "lab_fleet_placements", "Placed jobs not ended", ("state",), registry=registry
        )
        self._ages = Gauge(
            "lab_fleet_heartbeat_age_seconds", "Time since the last heartbeat", ("host",),
            registry=registry,
        )  # fmt: skip
        self._taken = Histogram(
            "lab_fleet_claim_seconds", "Time from the request of a lab until this host began it",
            registry=registry, buckets=_BEGIN_SECONDS,
        )  # fmt: skip
        self._lock = threading.Lock()
        self._latest: deque[float] = deque(maxlen=_LATEST)
        self._labs = Gauge("lab_labs", "Labs", ("state",), registry=registry)
        self._open = Gauge("lab_jobs_open", "Jobs not ended", ("state",), registry=registry)

    def step(self, job: JobRecord, event: Event) -> None:
        """A step of a job."""
        if event.state in ("end", "fail"):
            self._steps.labels(job.kind, event.step).observe(event.seconds)
        if (event.step, event.state) == ("template", "begin"):
            self._forming.add(job.id)
        elif event.state == "end" and event.step in _CLONED:
            if job.kind in ("create", "fill"):
                self._lookups.labels("miss" if job.id in self._forming else "hit").inc()
            if event.step == "restore":
                self._restoring[job.id] = event.seconds
        elif (event.step, event.state) == ("resume", "end"):
            self._restores.observe(self._restoring.pop(job.id, 0.0) + event.seconds)

    def ended(self, job: JobRecord) -> None:
        """A job has ended."""
        self._forming.discard(job.id)
        self._restoring.pop(job.id, None)
        took = (job.ended_at or job.created_at) - job.created_at
        self._jobs.labels(job.kind, job.state).observe(took)
        if job.error is not None:
            self._errors.labels(job.kind, job.error["type"]).inc()
        if job.kind == "expire" and job.state == "succeeded":
            self._expired.inc()

    def dropped(self, count: int) -> None:
        """So many messages to the webhook were dropped."""
        self._dropped.inc(count)

    def claimed(self, seconds: float) -> None:
        """A request was served from a pool, ``seconds`` after it was received."""
        self._claims.labels("hit").inc()
        self._claim_seconds.observe(seconds)
        with self._lock:
            self._latest.append(seconds)

    def taken(self, seconds: float) -> None:
        """A job of the fleet was begun here, ``seconds`` after it was requested."""
        self._taken.observe(seconds)

    def missed(self) -> None:
        """A pool had no member ready for a request that it serves."""
        self._claims.labels("miss").inc()

    def text(self, now: Now) -> bytes:
        """All figures in the text format of Prometheus, those of ``now`` among them."""
        fleet = now.fleet or FleetFigures({}, {}, {})
        gauges: tuple[tuple[Gauge, Mapping[str, float]], ...] = (
            (self._labs, now.labs),
            (self._open, now.jobs),
            (self._pool, now.ready),
            (self._stored, now.stored),
            (self._hosts, fleet.hosts),
            (self._placements, fleet.placements),
            (self._ages, fleet.ages),
        )
        for gauge, counts in gauges:
            gauge.clear()
            for label, number in counts.items():
                gauge.labels(label).set(number)
        free, total = (now.space.free, now.space.total) if now.space else (math.nan, math.nan)
        self._free.set(free)
        self._used.set(total - free)
        self._memory_free.set(max(0, now.memory - now.memory_used))
        self._memory_used.set(now.memory_used)
        with self._lock:
            latest = sorted(self._latest)
        for share in _QUANTILES if latest else ():
            at = min(len(latest) - 1, int(len(latest) * share))
            self._quantiles.labels(str(share)).set(latest[at])
        return generate_latest(self._registry)

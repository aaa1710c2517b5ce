"""Spans of requests, jobs and the steps of jobs, for an OpenTelemetry collector."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from lab.api.telemetry.current import TRACEPARENT
from lab.progress import Event
from lab.state.service import JobRecord

_PROPAGATOR = TraceContextTextMapPropagator()

Answered = Callable[[str, int], None]
"""Takes a request's route and the status of its answer."""


def exporting(url: str, name: str) -> Trace:
    """Traces for the collector at ``url``, or where OpenTelemetry's own variables say.

    ``name``: of the service, ``lab`` if empty.
    """
    exporter = OTLPSpanExporter(endpoint=f"{url.rstrip('/')}/v1/traces" if url else None)
    provider = TracerProvider(
        resource=Resource.create({SERVICE_NAME: name or "lab"}), shutdown_on_exit=False
    )
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return Trace(provider)


class Trace:
    """Creates spans of requests, jobs and steps. Safe for use by several threads.

    A job's span is a child of the span of its HTTP request, which the job's record names, so that
    it is found after a restart too; the spans of steps nest as the steps do.
    """

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("lab")
        self._lock = threading.Lock()
        self._open: dict[str, list[tuple[str, Span]]] = {}

    def close(self) -> None:
        """Export what is left; takes as long as the collector does."""
        self._provider.shutdown()

    @contextmanager
    def request(self, method: str, path: str, request: str, parent: str) -> Iterator[Answered]:
        """A request, for the block; ``parent``: the client's traceparent, or empty."""
        about = {"http.request.method": method, "url.path": path, "lab.request": request}
        span = self._tracer.start_span(
            method, context=_context(parent), kind=SpanKind.SERVER, attributes=about
        )

        def answered(route: str, status: int) -> None:
            if route:
                span.update_name(f"{method} {route}")
                span.set_attribute("http.route", route)
            span.set_attribute("http.response.status_code", status)
            if status >= 500:
                span.set_status(StatusCode.ERROR)

        token = TRACEPARENT.set(_parent(span))
        try:
            yield answered
        finally:
            TRACEPARENT.reset(token)
            span.end()

    def job_began(self, job: JobRecord, parent: str) -> None:
        """A job runs; one that was queued began when it was requested. ``parent``: or empty."""
        since = job.created_at if job.state == "queued" else time.time()
        span = self._tracer.start_span(
            f"job {job.kind}",
            context=_context(parent),
            attributes={"lab.job": job.id, "lab.project": job.project},
            start_time=_nanoseconds(since),
        )
        with self._lock:
            self._open[job.id] = [("", span)]

    def job_ended(self, job: JobRecord) -> None:
        """A job has ended, and its record says how."""
        with self._lock:
            spans = self._open.pop(job.id, [])
        if not spans:
            return
        span = spans[0][1]
        span.set_attributes({"lab.name": job.lab, "lab.state": job.state})
        if job.state == "failed":
            span.set_status(StatusCode.ERROR, str((job.error or {}).get("type", "")))
        for _, left in reversed(spans):
            left.end()

    def step(self, job: JobRecord, event: Event) -> None:
        """A step of a job that began."""
        with self._lock:
            spans = self._open.get(job.id)
            if not spans:
                return
            name, span = spans[-1]
            if event.state == "begin":
                spans.append((event.step, self._begun(span, event, time.time())))
                return
            if event.state == "note":
                span.add_event(event.text, {"lab.step": event.step})
                return
            if event.state == "update":
                return
            if name == event.step:
                spans.pop()
            else:  # reported once it was over
                span = self._begun(span, event, time.time() - event.seconds)
        if event.state == "fail":
            span.set_status(StatusCode.ERROR)
        span.end()

    def _begun(self, parent: Span, event: Event, since: float) -> Span:
        return self._tracer.start_span(
            event.step,
            context=set_span_in_context(parent, Context()),
            attributes={"lab.text": event.text} if event.text else None,
            start_time=_nanoseconds(since),
        )


def _context(parent: str) -> Context:
    """The context that a traceparent names; an invalid one is ignored."""
    return _PROPAGATOR.extract({"traceparent": parent} if parent else {}, Context())


def _parent(span: Span) -> str:
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier, set_span_in_context(span, Context()))
    return carrier.get("traceparent", "")


def _nanoseconds(at: float) -> int:
    return int(at * 1e9)

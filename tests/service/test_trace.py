"""Traces: one tree from the client's request to the last step of its job, or nothing at all."""

from __future__ import annotations

import gzip
import http.server
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from lab.api.telemetry.spans import Trace
from lab.api.telemetry.trace import wanted
from lab.client import Client
from lab.config.servefile import Serve
from lab.run import run
from tests import ROOT
from tests.support.serve_process import environment, serving
from tests.support.serve_world import BODY, Site, site

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"


@pytest.fixture(scope="module")
def spans() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory, spans: InMemorySpanExporter) -> Iterator[Site]:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    with site(tmp_path_factory.mktemp("trace"), trace=Trace(provider)) as found:
        yield found


def span(spans: InMemorySpanExporter, name: str) -> ReadableSpan:
    """The latest span of that name, once it has ended."""
    end = time.monotonic() + 10
    while True:
        found = [span for span in spans.get_finished_spans() if span.name == name]
        if found:
            return found[-1]
        assert time.monotonic() < end, [span.name for span in spans.get_finished_spans()]
        time.sleep(0.01)


def parent_of(span: ReadableSpan) -> str:
    assert span.parent is not None
    return f"{span.parent.span_id:016x}"


def id_of(span: ReadableSpan) -> str:
    assert span.context is not None
    return f"{span.context.span_id:016x}"


def test_a_request_its_job_and_steps_are_one_trace(here: Site, spans: InMemorySpanExporter) -> None:
    """Protects who looks for where the time went: from the client's own span to each step."""
    body = {**BODY, "name": "traced"}
    answer = here.ask("POST", "/v1/labs?wait=60", body, traceparent=TRACEPARENT)
    assert answer.status_code == 201
    job, request = span(spans, "job create"), span(spans, "POST /v1/labs")
    assert parent_of(request) == PARENT
    assert request.kind is SpanKind.SERVER
    about = dict(request.attributes or {})
    assert about["http.response.status_code"] == 201
    assert about["lab.request"] == answer.headers["x-request-id"]
    assert parent_of(job) == id_of(request)
    assert dict(job.attributes or {})["lab.job"] == answer.json()["job"]
    assert dict(job.attributes or {})["lab.state"] == "succeeded"
    # The first lab forms a template first: that has steps of its own.
    for name, parent in (("preflight", job), ("template", job), ("restore", job), ("ready", job)):
        step = span(spans, name)
        assert parent_of(step) == id_of(parent), name
        assert job.start_time is not None
        assert job.end_time is not None
        assert job.start_time <= (step.start_time or 0) <= (step.end_time or 0) <= job.end_time
    assert parent_of(span(spans, "capture")) == id_of(span(spans, "template"))
    ours = [span for span in spans.get_finished_spans() if span.name != "GET /v1/labs/{name}"]
    assert {f"{span.context.trace_id:032x}" for span in ours if span.context} == {TRACE}
    password = answer.json()["connection"]["password"]
    assert all(password not in span.to_json() for span in ours)


def test_our_client_goes_on_with_the_trace_of_a_pipeline(
    here: Site, spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects CI whose steps are spans: TRACEPARENT names their span."""
    for value, parent in ((TRACEPARENT, PARENT), ("no-trace", None)):
        spans.clear()
        monkeypatch.setenv("TRACEPARENT", value)
        with Client(str(here.client.base_url), here.admin) as client:
            client.labs()
        found = span(spans, "GET /v1/labs").parent
        assert (f"{found.span_id:016x}" if found else None) == parent


def test_a_retry_in_another_trace_is_the_same_request(here: Site) -> None:
    """Protects idempotency: who tries again has another span."""
    jobs = {
        here.ask(
            "POST", "/v1/labs?wait=60", {**BODY, "nodes": 1}, Idempotency_Key="again",
            traceparent=f"00-{TRACE}-00f067aa0ba902b{number}-01",
        ).json()["job"]
        for number in (1, 2)
    }  # fmt: skip
    assert len(jobs) == 1


def test_failures_are_marked(here: Site, spans: InMemorySpanExporter) -> None:
    """Protects who looks for what went wrong, with or without a span of the client's."""
    spans.clear()
    made = here.make("taken")
    spans.clear()
    here.ask("POST", "/v1/labs/taken/nodes/n1/kill?wait=20", traceparent="none of these")
    stop = span(spans, "job stop")
    assert parent_of(stop) == id_of(span(spans, "POST /v1/labs/{name}/nodes/{node}/{action}"))
    here.service.core.store.labs.update("taken", blueprint="gone")
    refused = here.ask("POST", "/v1/labs/taken/start?wait=20")
    assert refused.status_code == 422
    failed = span(spans, "job start")
    assert failed.status.status_code is StatusCode.ERROR
    assert failed.status.description == "urn:lab:error:invalid-spec"
    here.service.core.store.labs.update("taken", blueprint=made["blueprint"])
    here.ask("GET", "/healthz")
    assert "GET /healthz" not in [span.name for span in spans.get_finished_spans()]


@pytest.mark.rare
def test_a_collector_is_span(tmp_path: Path) -> None:
    """Protects the way out: OTLP over HTTP, by OpenTelemetry's own variables, to the last span."""
    heard: list[ExportTraceServiceRequest] = []

    class Collector(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            assert self.path == "/v1/traces"
            heard.append(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    env = environment(tmp_path) | {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{server.server_address[1]}"
    }
    try:
        with serving(env) as found:
            made = found.ask("POST", "/v1/labs?wait=60", BODY, traceparent=TRACEPARENT)
            assert made.status_code == 201
            found.process.terminate()
            assert found.process.wait(20) == 0
    finally:
        server.shutdown()
        server.server_close()
    resources = [one for request in heard for one in request.resource_spans]
    names = {pair.value.string_value for one in resources for pair in one.resource.attributes
             if pair.key == "service.name"}  # fmt: skip
    assert names == {"lab"}
    spans = [span for one in resources for scope in one.scope_spans for span in scope.spans]
    assert {"POST /v1/labs", "job create", "clone", "restore"} <= {span.name for span in spans}
    assert {span.trace_id.hex() for span in spans} == {TRACE}


@pytest.mark.parametrize(
    ("trace", "env", "on"),
    [
        ("", {}, False),
        ("http://127.0.0.1:4318", {}, True),
        ("", {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}, True),
        ("", {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:4318/v1/traces"}, True),
        ("http://127.0.0.1:4318", {"OTEL_SDK_DISABLED": "true"}, False),
        ("http://127.0.0.1:4318", {"OTEL_TRACES_EXPORTER": "none"}, False),
    ],
)
def test_traces_are_off_unless_asked_for(trace: str, env: dict[str, str], on: bool) -> None:
    """Protects from telling anybody who was not named."""
    assert wanted(Serve(trace=trace), env) is on


def test_what_is_off_is_not_imported() -> None:
    """Protects the start of the service, and those who did not install lab[trace]."""
    code = (
        "import sys, lab.api.server, lab.api.app\n"
        "from lab.api.telemetry.trace import open_trace\n"
        "from lab.config.servefile import Serve\n"
        "assert open_trace(Serve(), {}) is None\n"
        "print([m for m in sys.modules if m.startswith(('opentelemetry.sdk',"
        " 'opentelemetry.exporter', 'lab.api.telemetry.spans', 'google.protobuf'))])\n"
    )
    root = ROOT
    printed = run([sys.executable, "-c", code], cwd=root, timeout=60).stdout
    assert printed.strip() == "[]"

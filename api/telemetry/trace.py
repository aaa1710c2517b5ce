"""Whether traces are exported, by the settings or by OpenTelemetry's environment variables.

What needs OpenTelemetry is in ``spans``, which is imported only if traces are on.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from lab.distribution import extra

if TYPE_CHECKING:
    from lab.api.telemetry.spans import Trace
    from lab.config.servefile import Serve

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


def wanted(serve: Serve, env: Mapping[str, str]) -> bool:
    """Whether a collector is set: in our settings, or in OpenTelemetry's own variables."""
    off = env.get("OTEL_SDK_DISABLED", "").lower() == "true"
    none = env.get("OTEL_TRACES_EXPORTER", "otlp") != "otlp"
    return not off and not none and bool(serve.trace or any(env.get(one) for one in _ENDPOINTS))


def open_trace(serve: Serve, env: Mapping[str, str] = os.environ) -> Trace | None:
    """The exporter of spans, or None if traces are off; raises HostUnfit."""
    if not wanted(serve, env):
        return None
    with extra("trace", "the exporter of traces"):
        from lab.api.telemetry.spans import exporting
    return exporting(serve.trace, env.get("OTEL_SERVICE_NAME", ""))

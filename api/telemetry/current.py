"""The request and the job that the current thread or coroutine works on."""

from __future__ import annotations

from contextvars import ContextVar

REQUEST: ContextVar[str] = ContextVar("request", default="")
"""The id of the HTTP request."""
JOB: ContextVar[str] = ContextVar("job", default="")
"""The id of the job."""
TRACEPARENT: ContextVar[str] = ContextVar("traceparent", default="")
"""The span of the HTTP request, in the format of W3C Trace Context; empty if there is none."""

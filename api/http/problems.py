"""Answers that report errors, as problems (RFC 9457)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, ClassVar

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from lab.api.core.problem import internal, problem
from lab.api.http.units import OURS
from lab.api.telemetry.current import REQUEST
from lab.api.telemetry.logs import log
from lab.errors import Conflict, LabError, Unauthorized

MEDIA_TYPE = "application/problem+json"


class Changed(Conflict):
    """The resource does not have the ETag in the request's If-Match."""

    http_status: ClassVar[int] = 412


class Problem(BaseModel):
    """What went wrong (RFC 9457), and what to do about it."""

    type: str = Field(description="The kind of error.", examples=["urn:lab:error:not-found"])
    title: str = Field(description="The kind of error, for people.", examples=["Not found"])
    status: int = Field(description="The HTTP status.", examples=[404])
    detail: str = Field(description="What happened.", examples=["there is no lab 'shop'"])
    hint: str = Field("", description="What to do about it, or empty.")
    details: list[str] = Field(default_factory=list, description="Log lines, figures.")
    request_id: str = Field("", description="The id of this request in the service's log.")
    job: str | None = Field(None, description="The job that failed, if one did.")
    program: str | None = Field(None, description="The program that failed, if one did.")
    exit_status: int | None = Field(None, description="Its exit status; -n: ended by signal n.")


def respond(
    found: Mapping[str, Any], headers: Mapping[str, str] | None = None, *, job: str | None = None
) -> Response:
    """A response that reports a problem."""
    body = {**found, "request_id": REQUEST.get(), "job": job}
    return JSONResponse(
        body, status_code=found["status"], media_type=MEDIA_TYPE, headers=dict(headers or {})
    )


def headers_of(error: LabError) -> dict[str, str]:
    """The headers that go with an error."""
    if isinstance(error, Unauthorized):
        return {"WWW-Authenticate": 'Bearer realm="lab"'}
    after = error.retry_after
    return {} if after is None else {"Retry-After": str(math.ceil(after))}


def install(app: FastAPI) -> None:
    """Let ``app`` answer every error with a problem."""
    app.add_exception_handler(LabError, _lab_error)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Exception, _unexpected)


def _lab_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, LabError)  # noqa: S101  # for the type checker
    return respond(problem(error), headers_of(error))


def _invalid(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)  # noqa: S101  # for the type checker
    # The value is not repeated: it may be a secret in the wrong place.
    details = [
        f"{'.'.join(str(p) for p in e['loc'])}: {e['msg'].removeprefix(OURS)}"
        for e in error.errors()
    ]
    body = {
        "type": "urn:lab:error:invalid-spec",
        "title": "Invalid spec",
        "status": 422,
        "detail": "the request is invalid",
        "hint": "see the schema in /openapi.json",
        "details": details,
    }
    return respond(body)


def _http(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101  # for the type checker
    title = HTTPStatus(error.status_code).phrase
    body = {
        "type": f"urn:lab:error:{title.lower().replace(' ', '-')}",
        "title": title,
        "status": error.status_code,
        "detail": str(error.detail),
        "hint": "",
        "details": [],
    }
    return respond(body, error.headers)


def _unexpected(_: Request, error: Exception) -> Response:
    log.error("a request failed", exc_info=error)
    return respond(internal())

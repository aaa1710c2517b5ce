"""Errors as problems (RFC 9457), made from the error tree."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, ClassVar

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from lab.api.http.units import OURS
from lab.api.telemetry.logs import REQUEST, log
from lab.errors import CommandFailed, Conflict, LabError, Unauthorized

MEDIA_TYPE = "application/problem+json"


class Changed(Conflict):
    """What was to be changed is not what the request's If-Match tells of."""

    http_status: ClassVar[int] = 412


class Problem(BaseModel):
    """What went wrong (RFC 9457), and what to do about it."""

    type: str = Field(description="The kind of error.", examples=["urn:lab:error:not-found"])
    title: str = Field(description="The kind of error, for people.", examples=["Not found"])
    status: int = Field(description="The HTTP status.", examples=[404])
    detail: str = Field(description="What happened.", examples=["there is no lab 'shop'"])
    hint: str = Field("", description="What to do about it; empty if there is nothing to say.")
    details: list[str] = Field(default_factory=list, description="Log lines, figures.")
    request_id: str = Field("", description="The id of this request in the service's log.")
    job: str | None = Field(None, description="The job that failed, if one did.")
    program: str | None = Field(None, description="The program that failed, if one did.")
    exit_status: int | None = Field(None, description="Its exit status; -n: ended by signal n.")


def problem(error: LabError) -> dict[str, Any]:
    """``error`` as the service tells of it."""
    words = re.sub(r"(?<!^)(?=[A-Z])", " ", type(error).__name__).lower()
    ran: dict[str, Any] = {}
    if isinstance(error, CommandFailed):
        ran = {"program": error.argv[0], "exit_status": error.status}
    return {
        "type": f"urn:lab:error:{words.replace(' ', '-')}",
        "title": words.capitalize(),
        "status": error.http_status,
        "detail": error.what,
        "hint": error.hint,
        "details": list(error.details),
        **ran,
    }


def internal() -> dict[str, Any]:
    """A mistake of ours: what it was is in the log, and nowhere else."""
    return problem(LabError("internal error", hint="see the log of the service"))


def respond(
    found: Mapping[str, Any], headers: Mapping[str, str] | None = None, *, job: str | None = None
) -> Response:
    """A response that tells of a problem."""
    told = {**found, "request_id": REQUEST.get(), "job": job}
    return JSONResponse(
        told, status_code=found["status"], media_type=MEDIA_TYPE, headers=dict(headers or {})
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
    # What was sent is not told again: it may be a secret in the wrong place.
    details = [
        f"{'.'.join(str(p) for p in e['loc'])}: {e['msg'].removeprefix(OURS)}"
        for e in error.errors()
    ]
    told = {
        "type": "urn:lab:error:invalid-spec",
        "title": "Invalid spec",
        "status": 422,
        "detail": "the request does not fit the API",
        "hint": "/openapi.json describes what fits",
        "details": details,
    }
    return respond(told)


def _http(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101  # for the type checker
    title = HTTPStatus(error.status_code).phrase
    told = {
        "type": f"urn:lab:error:{title.lower().replace(' ', '-')}",
        "title": title,
        "status": error.status_code,
        "detail": str(error.detail),
        "hint": "",
        "details": [],
    }
    return respond(told, error.headers)


def _unexpected(_: Request, error: Exception) -> Response:
    log.error("a request failed", exc_info=error)
    return respond(internal())

"""Answers from templates."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fastapi import Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from lab.api.core.problem import problem
from lab.api.http.dependencies import core_of
from lab.api.http.problems import headers_of
from lab.api.http.session_path import session_path_of
from lab.errors import LabError, NotFound
from lab.options import described
from lab.state.jobs import OPEN
from lab.units import counted, format_duration, format_size

_HERE = Path(__file__).parent
_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
FILES: Mapping[str, tuple[bytes, str]] = {
    path.name: (path.read_bytes(), _TYPES[path.suffix])
    for path in sorted((_HERE / "static").iterdir())
}
"""The static files: content and type."""
_HEADERS = {
    # No inline code and nothing from other hosts, so that injected code does not run.
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self';"
    " img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none';"
    " frame-ancestors 'none'",
    # With no-referrer, browsers would not send the origin of forms.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


def _left(at: float | None) -> str:
    """The time left until ``at`` (epoch seconds), in whole minutes: pages rarely change."""
    if at is None:
        return "no end"
    seconds = at - time.time()
    if seconds <= 0:
        return "over"
    return format_duration(seconds // 60 * 60) if seconds >= 60 else "less than a minute"


def _clock(at: float | None) -> str:
    return "" if at is None else time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at))


def _asset(name: str) -> str:
    version = hashlib.sha256(FILES[name][0]).hexdigest()[:12]
    return f"/page/{name}?v={version}"


_TEMPLATES = Environment(
    loader=FileSystemLoader(_HERE / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.filters |= {
    "size": format_size,
    "duration": format_duration,
    "counted": counted,
    "options": described,
    "left": _left,
    "clock": _clock,
    "part": lambda text: quote(text, safe=""),
}
_TEMPLATES.globals |= {"asset": _asset, "OPEN": OPEN}


def page(
    request: Request,
    template: str,
    *,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
    **data: Any,
) -> Response:
    """The page that ``template`` renders with ``data``; all values are escaped.

    ``at``: the path to reload the page from, if it is not the path of the request.
    """
    caller = getattr(request.state, "caller", None)
    query = f"?{request.url.query}" if request.url.query else ""
    data.setdefault("at", request.url.path + query)
    fleet = core_of(request).fleet
    text = _TEMPLATES.get_template(template).render(
        base=session_path_of(request),
        host_name="" if fleet is None else fleet.name,
        caller=caller,
        may=caller is not None and caller.may("use"),
        admin=caller is not None and caller.may("admin"),
        **data,
    )
    return HTMLResponse(text, status_code=status, headers={**_HEADERS, **(headers or {})})


def error_page(
    request: Request, found: Mapping[str, Any], headers: Mapping[str, str] | None = None
) -> Response:
    """A page that reports a problem, as ``problem`` returns it."""
    return page(request, "problem.html", status=found["status"], headers=headers, problem=found)


def go(to: str) -> Response:
    """Redirect the browser to another page, after a form."""
    return RedirectResponse(to, status_code=303)


def done(act: Callable[[], str], refused: Callable[[LabError], Response]) -> Response:
    """Submit a form and redirect to the path that ``act`` returns; ``refused``: the error's page.

    Raises NotFound: there is no page then.
    """
    try:
        return go(act())
    except NotFound:
        raise
    except LabError as error:
        return refused(error)


def outcome(error: LabError | None) -> dict[str, Any]:
    """Arguments of ``page`` that report an error, with the status and headers of the answer."""
    if error is None:
        return {"problem": None, "wrong": frozenset()}
    found = problem(error)
    return {
        "problem": found,
        "wrong": getattr(error, "fields", frozenset()),
        "status": found["status"],
        "headers": headers_of(error),
    }

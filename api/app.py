"""The application: routes, errors, and the document that describes them."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute

from lab.api import web
from lab.api.core.core import Core
from lab.api.core.threads import Route
from lab.api.http import dependencies, problems
from lab.api.http.auth import FailedLogins, Needs, Reader
from lab.api.http.forward import Forward
from lab.api.http.middleware import RequestMiddleware
from lab.api.jobs.jobs import Jobs
from lab.api.routes import (
    archives,
    branches,
    bundles,
    catalog,
    datasets,
    events,
    health,
    host,
    hosts,
    jobs,
    labs,
    logs,
    placed,
    power,
    preview,
    snapshots,
    tokens,
    tunnels,
)

document_router = APIRouter(tags=["host"], route_class=Route)


@document_router.get("/openapi.json", operation_id="getOpenApi")
def described(request: Request, _: Reader) -> dict[str, Any]:
    """The document that describes this API."""
    found: dict[str, Any] = request.app.openapi()
    return found


ROUTERS = (
    document_router,
    health.router,
    labs.router,
    preview.router,
    snapshots.router,
    branches.router,
    power.router,
    logs.router,
    bundles.router,
    tunnels.router,
    jobs.router,
    events.router,
    host.router,
    hosts.router,
    placed.router,
    archives.router,
    catalog.router,
    datasets.router,
    tokens.router,
)
_ERRORS = {
    "401": "There is no valid token.",
    "403": "The token does not allow this.",
    "404": "There is no such resource, or it is another project's.",
    "408": "The request did not arrive in time.",
    "409": "The resource exists, is busy or protected, or others depend on it.",
    "412": "The resource does not have the ETag in If-Match.",
    "413": "The request is too large.",
    "422": "The request is invalid.",
    "429": "A quota, a rate limit or the limit of the queue is reached.",
    "499": "The job was cancelled.",
    "500": "A command failed, or an internal error.",
    "503": "The host has no room, or cannot run labs.",
    "504": "A node was not ready in time.",
}


def create_app(core: Core, jobs: Jobs) -> FastAPI:
    """The application of a service that is open."""
    app = FastAPI(
        title="lab",
        version="1",
        summary="Disposable VM labs of MySQL-family clusters.",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )
    dependencies.install(app, core, jobs)
    app.state.forward = Forward(core)
    app.state.failures = FailedLogins(core.settings.serve.failed_auth)
    for router in ROUTERS:
        app.include_router(router)
    app.add_middleware(RequestMiddleware, core=core, forward=app.state.forward)
    if core.settings.serve.page:
        web.install(app)  # outside of the middleware, whose log and audit trail have no places
    problems.install(app)
    app.openapi = lambda: document(app)  # type: ignore[method-assign]  # the documented way
    return app


def scope_of(route: APIRoute) -> str:
    """The scope that a route needs; empty if it answers without a token."""
    found = [d.call for d in route.dependant.dependencies if isinstance(d.call, Needs)]
    return found[0].scope if found else ""


_LIMITS = {
    "ge": "minimum",
    "le": "maximum",
    "gt": "exclusiveMinimum",
    "lt": "exclusiveMaximum",
    "multiple_of": "multipleOf",
}
"""Limits of pydantic, and their keywords in JSON Schema."""


def document(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document: with the scope of each operation, and its errors as they are."""
    if app.openapi_schema:
        return app.openapi_schema
    found = get_openapi(
        title=app.title, version=app.version, summary=app.summary, routes=app.routes
    )
    schemas = found.setdefault("components", {}).setdefault("schemas", {})
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    schemas["Problem"] = problems.Problem.model_json_schema()
    for route in (route for router in ROUTERS for route in router.routes):
        if isinstance(route, APIRoute) and route.include_in_schema:
            for method in route.methods or ():
                _describe(found["paths"][route.path_format][method.lower()], scope_of(route))
    _simplify(found)
    app.openapi_schema = found
    return found


def _simplify(part: object) -> None:
    """Write the document as any version of pydantic: no keyword says what goes without saying."""
    if isinstance(part, list):
        for one in part:
            _simplify(one)
    if not isinstance(part, dict):
        return
    if part.get("additionalProperties") is True:
        del part["additionalProperties"]
    if "const" in part and part.get("enum") == [part["const"]]:
        del part["enum"]
    if isinstance(part.get("anyOf"), list):
        _limit(part)
    for one in part.values():
        _simplify(one)


def _limit(part: dict[str, Any]) -> None:
    """Move limits that pydantic puts next to alternatives to the number among these.

    As keywords of JSON Schema, which ignores others.
    """
    for word, keyword in _LIMITS.items():
        if word in part:
            limit = part.pop(word)
            for one in part["anyOf"]:
                if one.get("type") in ("integer", "number"):
                    one[keyword] = limit


def _describe(operation: dict[str, Any], scope: str) -> None:
    if scope:
        operation["x-scope"] = scope
        operation["description"] += f"\n\nScope: {scope}."
    for status, text in _ERRORS.items():
        if not scope and status not in ("500", "503", "404"):
            operation["responses"].pop(status, None)
            continue
        schema = {"schema": {"$ref": "#/components/schemas/Problem"}}
        operation["responses"][status] = {
            "description": text,
            "content": {problems.MEDIA_TYPE: schema},
        }

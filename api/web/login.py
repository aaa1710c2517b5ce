"""Signing in and out, and static files."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from lab.api.core.problem import problem
from lab.api.http import problems
from lab.api.http.auth import identified
from lab.api.http.session_path import new_session_path, session_path_of
from lab.api.http.sessions import COOKIE, LASTS, cookies, session_caller
from lab.api.web import pages
from lab.api.web.request import Fields, PageRoute, same_origin
from lab.errors import LabError

router = APIRouter(route_class=PageRoute, include_in_schema=False)

_YEAR = 365 * 86400


@router.get("/sign-in", operation_id="signInPage")
def sign_in_page(request: Request, to: Annotated[str, Query(max_length=500)] = "/") -> Response:
    """The form for a token."""
    return pages.page(request, "sign-in.html", to=_inside(to), problem=None)


@router.post("/sign-in", operation_id="signIn")
def sign_in(request: Request, fields: Fields) -> Response:
    """Start a session; the token is checked as in the API."""
    same_origin(request)
    to = _inside(fields.get("to", "/"))
    try:
        caller = identified(request, fields.get("token", "").strip())
    except LabError as error:
        found = problem(error)
        # Not WWW-Authenticate: the browser would ask for a password.
        headers = {k: v for k, v in problems.headers_of(error).items() if k == "Retry-After"}
        return pages.page(
            request, "sign-in.html", status=found["status"], headers=headers, to=to, problem=found
        )
    sessions = request.app.state.sessions
    for text in cookies(request):
        sessions.end(session_path_of(request), text)
    path = new_session_path()
    response = pages.go(path + to)
    response.set_cookie(
        COOKIE,
        sessions.begin(caller.token.id, path),
        path=path,
        max_age=int(LASTS),
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
    return response


@router.post("/sign-out", operation_id="signOut")
def sign_out(request: Request) -> Response:
    """End the session, if there is one."""
    same_origin(request)
    request.state.caller = session_caller(request)
    path = session_path_of(request)
    for text in cookies(request):
        request.app.state.sessions.end(path, text)
    response = pages.go("/sign-in")
    response.delete_cookie(COOKIE, path=path or "/")
    return response


@router.get("/page/{file}", operation_id="pageFile")
def file(file: str) -> Response:
    """A stylesheet, a script or an icon; its URL changes with its content."""
    if file not in pages.FILES:
        raise HTTPException(404)
    content, kind = pages.FILES[file]
    headers = {"Cache-Control": f"public, max-age={_YEAR}, immutable"}
    return Response(content, media_type=kind, headers=headers)


def _inside(to: str) -> str:
    """``to`` if it is a path of this service, else the first page."""
    parts = urlsplit(to)
    ours = not parts.scheme and not parts.netloc and to.isascii() and to.isprintable()
    return to if ours and to.startswith("/") and not to.startswith("//") and "\\" not in to else "/"

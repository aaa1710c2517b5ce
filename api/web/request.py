"""Who asks for a page, where a form came from, and errors as pages."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Annotated, Any
from urllib.parse import parse_qsl, quote

from fastapi import Depends, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import RedirectResponse, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection

from lab.api.http import problems
from lab.api.http.auth import Caller, service_of
from lab.api.telemetry.logs import log
from lab.api.web import pages
from lab.api.web.place import place_of
from lab.errors import Forbidden, InvalidSpec, LabError, NotFound, Unauthorized
from lab.lifecycle.service.token import valid
from lab.state.records import Scope

COOKIE = "lab_session"
_FIELDS = 50


class NotSignedIn(Unauthorized):
    """The browser has no session, or it is over."""


def same_origin(request: Request) -> None:
    """Raise Forbidden unless a form was sent by a page of ours.

    Browsers tell where a request comes from, in a header that no page can set: all of them in
    Sec-Fetch-Site, where they trust the connection, and in Origin elsewhere.
    """
    site = request.headers.get("sec-fetch-site")
    if site is None:
        ours = f"{request.url.scheme}://{request.headers.get('host', '')}"
        same = request.headers.get("origin") == ours
    else:
        same = site == "same-origin"
    if not same:
        raise Forbidden(
            "the form was not sent from this page",
            hint="open the page anew; behind a proxy, it must pass on Host and X-Forwarded-Proto",
        )


def cookies(request: HTTPConnection) -> list[str]:
    """All cookies of a session: a lab's port can set one as well, for all ports of the host."""
    parts = [p for line in request.headers.getlist("cookie") for p in line.split(";")]
    pairs = [part.strip().partition("=") for part in parts]
    return [value for name, _, value in pairs if name == COOKIE]


def visitor(request: HTTPConnection) -> Caller | None:
    """Whom the session of a request belongs to, as long as their token is valid."""
    sessions, place = request.app.state.sessions, place_of(request)
    found = (sessions.token_of(place, text) for text in cookies(request))
    token = next(filter(None, found), None)
    record = service_of(request).store.tokens.find(token) if token else None
    return Caller(record) if record is not None and valid(record) else None


class Visit:
    """A dependency: the caller by session, who has at least ``scope``.

    Raises NotSignedIn, and Forbidden, for forms from elsewhere as well.
    """

    def __init__(self, scope: Scope) -> None:
        self.scope: Scope = scope

    def __call__(self, request: Request) -> Caller:
        """See the class."""
        if request.method not in ("GET", "HEAD"):
            same_origin(request)
        caller = visitor(request)
        if caller is None:
            raise NotSignedIn("you are not signed in (any more)", hint="sign in with your token")
        request.state.caller = caller
        caller.needs(self.scope)
        return caller


class PageRoute(APIRoute):
    """A route whose errors are pages."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Wrap the usual handler."""
        handle = super().get_route_handler()

        async def handler(request: Request) -> Response:
            try:
                return await handle(request)
            except NotSignedIn as error:
                if request.method != "GET":
                    return pages.problem(request, problems.problem(error))
                return to_sign_in(request)
            except LabError as error:
                told, headers = problems.problem(error), problems.headers_of(error)
                return pages.problem(request, told, headers)
            except RequestValidationError:
                nothing = NotFound("there is no such page", hint="the labs are at /")
                return pages.problem(request, problems.problem(nothing))
            except HTTPException:
                raise
            except Exception as error:  # noqa: BLE001  # whatever it is: it is logged and told
                log.error("a page failed", exc_info=error)
                return pages.problem(request, problems.internal())

        return handler


def to_sign_in(request: Request) -> Response:
    """Have the browser sign in, then come back."""
    if request.headers.get("sec-fetch-site") == "cross-site":
        # With links from elsewhere browsers send no cookie: let it ask once more, from here.
        return pages.page(request, "again.html")
    here = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    to = "" if here == "/" else f"?to={quote(here, safe='')}"
    return RedirectResponse(f"/sign-in{to}", status_code=303)


async def _fields(request: Request) -> dict[str, str]:
    """What a form holds; the last one of equal names."""
    text = (await request.body()).decode(errors="replace")
    try:
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=_FIELDS))
    except ValueError as error:
        raise InvalidSpec("the form has too many fields") from error


Looking = Annotated[Caller, Depends(Visit("read"))]
Using = Annotated[Caller, Depends(Visit("use"))]
Administering = Annotated[Caller, Depends(Visit("admin"))]
Fields = Annotated[dict[str, str], Depends(_fields)]

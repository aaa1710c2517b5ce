"""The caller of a page, the origin of a form, and errors as pages."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Annotated, Any
from urllib.parse import parse_qsl, quote

from fastapi import Depends, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import RedirectResponse, Response
from starlette.exceptions import HTTPException

from lab.api.core.problem import internal, problem
from lab.api.core.threads import Route, in_thread
from lab.api.http import problems
from lab.api.http.auth import Caller
from lab.api.http.dependencies import core_of
from lab.api.http.peers import is_peer
from lab.api.http.sessions import session_caller
from lab.api.telemetry.logs import log
from lab.api.web import pages
from lab.errors import Forbidden, InvalidSpec, LabError, NotFound, Unauthorized
from lab.state.service import Scope

_FIELDS = 50
_READS = ("GET", "HEAD")


class NotSignedIn(Unauthorized):
    """The browser has no session, or it has expired."""


def same_origin(request: Request) -> None:
    """Raise Forbidden unless a form was sent by a page of this service.

    Browsers send the origin of a request in a header that no page can set: Sec-Fetch-Site where
    they trust the connection, and Origin elsewhere.
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
            hint="reload the page; a proxy must forward Host and X-Forwarded-Proto",
        )


class SessionCaller:
    """A dependency: the caller by session, who has at least ``scope``.

    Raises NotSignedIn; Forbidden, also for forms from other origins.
    """

    def __init__(self, scope: Scope) -> None:
        self.scope: Scope = scope

    def __call__(self, request: Request) -> Caller:
        """Check the request; see the class."""
        if request.method not in _READS and not is_peer(request.scope):
            same_origin(request)
        caller = session_caller(request)
        if caller is None:
            raise NotSignedIn(
                "not signed in, or the session has expired", hint="sign in with a token"
            )
        request.state.caller = caller
        caller.needs(self.scope)
        return caller


class PageRoute(Route):
    """A route whose errors are pages."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Wrap the usual handler."""
        handle = super().get_route_handler()

        async def handler(request: Request) -> Response:
            try:
                passed = await _elsewhere(request)
                return await handle(request) if passed is None else passed
            except NotSignedIn as error:
                if request.method != "GET":
                    return pages.error_page(request, problem(error))
                return to_sign_in(request)
            except LabError as error:
                found, headers = problem(error), problems.headers_of(error)
                return pages.error_page(request, found, headers)
            except RequestValidationError:
                nothing = NotFound("page not found", hint="the list of labs is at /")
                return pages.error_page(request, problem(nothing))
            except HTTPException:
                raise
            except Exception as error:  # noqa: BLE001  # whatever it is: it is logged and reported
                log.error("a page failed", exc_info=error)
                return pages.error_page(request, internal())

        return handler


async def _elsewhere(request: Request) -> Response | None:
    """The page of another host of the fleet; None: it is of this one, or refused by it.

    Raises Forbidden for forms from other origins, NotFound, HostUnfit.
    """
    core, forward = core_of(request), request.app.state.forward
    caller = await in_thread(session_caller, request) if core.fleet is not None else None
    host = None if caller is None else await forward.page_to(request.scope)
    if caller is None or host is None:
        return None
    if request.method not in _READS:
        same_origin(request)
    request.state.caller = caller
    found: Response = await forward.page(host, await request.body(), request.scope, caller.token.id)
    return found


def to_sign_in(request: Request) -> Response:
    """Redirect to the sign-in page, and from there back."""
    if request.headers.get("sec-fetch-site") == "cross-site":
        # Browsers send no SameSite cookie with links from other sites: repeat the request here.
        return pages.page(request, "again.html")
    here = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    to = "" if here == "/" else f"?to={quote(here, safe='')}"
    return RedirectResponse(f"/sign-in{to}", status_code=303)


async def _fields(request: Request) -> dict[str, str]:
    """The fields of a form; of equal names, the last one."""
    text = (await request.body()).decode(errors="replace")
    try:
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=_FIELDS))
    except ValueError as error:
        raise InvalidSpec("the form has too many fields") from error


ReadAccess = Annotated[Caller, Depends(SessionCaller("read"))]
UseAccess = Annotated[Caller, Depends(SessionCaller("use"))]
AdminAccess = Annotated[Caller, Depends(SessionCaller("admin"))]
Fields = Annotated[dict[str, str], Depends(_fields)]

"""Authentication and authorisation: the caller of a request, and what it may do."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Annotated

from fastapi import Depends, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.requests import HTTPConnection

from lab.api.core.core import Core
from lab.api.http.dependencies import core_of
from lab.api.http.peers import via
from lab.api.jobs.placing import record_of
from lab.api.telemetry.current import REQUEST
from lab.api.telemetry.logs import log
from lab.errors import Forbidden, LabError, LimitReached, NotFound, Unauthorized
from lab.fleet import ids, placements
from lab.lifecycle.service import token as tokens
from lab.lifecycle.service.token import SCOPES
from lab.state.records import LabRecord
from lab.state.service import JobRecord, Scope, TokenRecord
from lab.state.store import Store
from lab.values import dataclass

_WINDOW = 60.0
_ADDRESSES = 10_000
_NOTED = 60

_bearer = HTTPBearer(auto_error=False, description="A token from `lab token create`.")


@dataclass(frozen=True)
class Caller:
    """The holder of a valid token."""

    token: TokenRecord

    @property
    def project(self) -> str | None:
        """The project that the caller may see; None: all, for admins."""
        return None if self.token.scope == "admin" else self.token.project

    def may(self, scope: Scope) -> bool:
        """Whether the token's scope includes ``scope``."""
        return SCOPES.index(self.token.scope) >= SCOPES.index(scope)

    def needs(self, scope: Scope) -> None:
        """Raise Forbidden unless the token's scope includes ``scope``."""
        if not self.may(scope):
            raise Forbidden(f"this requires the scope {scope}, the token has {self.token.scope}")

    def sees(self, project: str) -> bool:
        """Whether the caller may see what belongs to ``project``."""
        return self.project is None or self.project == project

    def valid(self, core: Core) -> bool:
        """Whether the token is still valid: it may have been revoked or expired."""
        record = core.store.tokens.find(self.token.id)
        return record is not None and tokens.valid(record)

    def lab(self, core: Core, name: str) -> LabRecord:
        """A lab that the caller may see; raises NotFound, also for labs of other projects."""
        record = core.store.labs.find(name)
        if record is None or record.pool or not self.sees(record.project):
            raise NotFound(
                f"there is no lab {name!r}", hint="`lab ls`, or GET /v1/labs, lists the labs"
            )
        return record

    def job(self, core: Core, identity: str) -> JobRecord:
        """A job that the caller may see; raises NotFound."""
        record = core.store.jobs.find(identity)
        if record is None and core.fleet is not None and ids.host_of(identity, ()) is None:
            placed = placements.find(core.fleet.database, identity)
            ours = placed is not None and placed.host == core.fleet.name
            begun = ("ended",) if ours else ("claimed", "ended")
            record = record_of(placed) if placed and placed.state not in begun else None
        if record is None or not self.sees(record.project):
            raise NotFound(
                f"there is no job {identity!r}",
                hint="the page Jobs, or GET /v1/jobs, lists the jobs",
            )
        return record


class FailedLogins:
    """Counts invalid tokens by address: after ``limit`` within a minute, more get LimitReached.

    Valid ones are never refused: tokens are far too long to be guessed.
    """

    def __init__(self, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = limit
        self._clock = clock
        self._lock = threading.Lock()
        self._failed: dict[str, deque[float]] = {}
        self._noted: deque[float] = deque(maxlen=_NOTED)

    def failed(self, address: str) -> bool:
        """Count an invalid token; whether to record it: at most ``_NOTED`` are, in a minute.

        Raises LimitReached if that address failed too often.
        """
        now = self._clock()
        with self._lock:
            if len(self._failed) >= _ADDRESSES:
                self._failed.clear()  # so that many addresses do not use up memory
            times = self._failed.setdefault(address, deque(maxlen=self._limit))
            if len(times) == self._limit and times[0] + _WINDOW > now:
                raise LimitReached(
                    "too many invalid tokens from this address",
                    retry_after=times[0] + _WINDOW - now,
                )
            times.append(now)
            if len(self._noted) == _NOTED and self._noted[0] + _WINDOW > now:
                return False
            self._noted.append(now)
            return True


def bearer(request: HTTPConnection) -> str | None:
    """The token in a request's headers."""
    scheme, _, text = request.headers.get("authorization", "").partition(" ")
    return text.strip() if scheme.lower() == "bearer" else None


def identified(request: HTTPConnection, text: str | None) -> Caller:
    """The holder of the token ``text``, recorded in the request's state; invalid ones are audited.

    Raises Unauthorized, and LimitReached for invalid tokens after too many from that address.
    """
    if text is None:
        raise Unauthorized("a token is required", hint="send it as: Authorization: Bearer TOKEN")
    core = core_of(request)
    store = core.store
    try:
        caller = Caller(core.known.check(store, text))
    except Unauthorized:
        address = request.client.host if request.client else ""
        if request.app.state.failures.failed(address):
            note(
                store,
                action="wrongToken",
                target=request.scope["path"][:200],
                status=Unauthorized.http_status,
                address=address,
                via=via(request.scope),
            )
        raise
    request.state.caller = caller
    return caller


def known(request: HTTPConnection, text: str | None) -> Caller | None:
    """The caller with the token ``text``, without a look-up; None if one is needed."""
    core = core_of(request)
    record = core.known.find(core.store, text) if text else None
    if record is None:
        return None
    request.state.caller = Caller(record)
    return Caller(record)


def note(store: Store, *, token: str = "", project: str = "", **fields: object) -> None:
    """Add to the audit trail; if it cannot be written, that is logged, and nothing fails."""
    try:
        store.audit.add(token=token, project=project, request=REQUEST.get(), **fields)
    except LabError as error:
        log.error("cannot write the audit trail", extra={"error": error.what})


class Needs:
    """A dependency: the caller, who has at least ``scope``; the middleware has checked the token.

    Raises Forbidden.
    """

    def __init__(self, scope: Scope) -> None:
        self.scope: Scope = scope

    async def __call__(
        self,
        request: Request,
        _: Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)],
    ) -> Caller:
        """See the class."""
        caller: Caller = request.state.caller
        caller.needs(self.scope)
        return caller


Reader = Annotated[Caller, Depends(Needs("read"))]
User = Annotated[Caller, Depends(Needs("use"))]
Admin = Annotated[Caller, Depends(Needs("admin"))]

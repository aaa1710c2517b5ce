"""Who asks, and what they may do."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.requests import HTTPConnection

from api.service import Service
from lab.errors import Forbidden, LimitReached, NotFound, Unauthorized
from lab.lifecycle import token as tokens
from lab.lifecycle.token import SCOPES
from lab.state.records import JobRecord, LabRecord, Scope, TokenRecord

_WINDOW = 60.0
_ADDRESSES = 10_000

_bearer = HTTPBearer(auto_error=False, description="A token from `lab token create`.")


@dataclass(frozen=True)
class Caller:
    """Who asks."""

    token: TokenRecord

    @property
    def project(self) -> str | None:
        """The project whose things may be seen; None: all, for admins."""
        return None if self.token.scope == "admin" else self.token.project

    def may(self, scope: Scope) -> bool:
        """Whether the token's scope includes ``scope``."""
        return SCOPES.index(self.token.scope) >= SCOPES.index(scope)

    def needs(self, scope: Scope) -> None:
        """Raise Forbidden unless the token's scope includes ``scope``."""
        if not self.may(scope):
            raise Forbidden(f"this takes the scope {scope}, the token has {self.token.scope}")

    def sees(self, project: str) -> bool:
        """Whether things of ``project`` may be seen."""
        return self.project is None or self.project == project

    def valid(self, service: Service) -> bool:
        """Whether the token is valid still: it may have been revoked, or its time may be over."""
        record = service.store.tokens.find(self.token.id)
        return record is not None and tokens.valid(record)

    def lab(self, service: Service, name: str) -> LabRecord:
        """A lab that the caller may see; raises NotFound, also for those of others."""
        record = service.store.labs.find(name)
        if record is None or record.pool or not self.sees(record.project):
            raise NotFound(f"there is no lab {name!r}", hint="GET /v1/labs lists the labs")
        return record

    def job(self, service: Service, identity: str) -> JobRecord:
        """A job that the caller may see; raises NotFound."""
        record = service.store.jobs.find(identity)
        if record is None or not self.sees(record.project):
            raise NotFound(f"there is no job {identity!r}", hint="GET /v1/jobs lists the jobs")
        return record


class FailedLogins:
    """Counts wrong tokens by address, and refuses an address that has too many."""

    def __init__(self, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = limit
        self._clock = clock
        self._guard = threading.Lock()
        self._failed: dict[str, deque[float]] = {}

    def check(self, address: str) -> None:
        """Raise LimitReached if that address failed too often within a minute."""
        with self._guard:
            times = self._recent(address)
            if len(times) >= self._limit:
                raise LimitReached(
                    "too many wrong tokens came from this address",
                    retry_after=times[0] + _WINDOW - self._clock(),
                )

    def failed(self, address: str) -> None:
        """A wrong token came from there."""
        with self._guard:
            if len(self._failed) >= _ADDRESSES:
                self._failed.clear()  # so that many addresses do not take our memory
            self._failed.setdefault(address, deque(maxlen=self._limit)).append(self._clock())

    def _recent(self, address: str) -> deque[float]:
        times = self._failed.get(address, deque())
        while times and times[0] + _WINDOW <= self._clock():
            times.popleft()
        if not times:
            self._failed.pop(address, None)
        return times


def service_of(request: HTTPConnection) -> Service:
    """The service that a request came to."""
    service = request.app.state.service
    assert isinstance(service, Service)  # noqa: S101  # for the type checker
    return service


def identified(request: HTTPConnection, text: str | None) -> Caller:
    """Whose token ``text`` is; also told to the log and the audit trail.

    Raises Unauthorized, and LimitReached after too many failures from that address.
    """
    failures = request.app.state.failures
    address = request.client.host if request.client else ""
    failures.check(address)
    if text is None:
        raise Unauthorized("a token is needed", hint="send it as: Authorization: Bearer TOKEN")
    try:
        caller = Caller(tokens.check(service_of(request).store, text))
    except Unauthorized:
        failures.failed(address)
        raise
    request.state.caller = caller
    return caller


class Needs:
    """A dependency: the caller, who has at least ``scope``.

    Raises Unauthorized, Forbidden, and LimitReached after too many failures.
    """

    def __init__(self, scope: Scope) -> None:
        self.scope: Scope = scope

    def __call__(
        self,
        request: Request,
        given: Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)],
    ) -> Caller:
        """See the class."""
        caller = identified(request, given.credentials if given else None)
        caller.needs(self.scope)
        return caller


ServiceOf = Annotated[Service, Depends(service_of)]
Reader = Annotated[Caller, Depends(Needs("read"))]
User = Annotated[Caller, Depends(Needs("use"))]
Admin = Annotated[Caller, Depends(Needs("admin"))]

"""Tokens: /v1/tokens, for admins; a project's token can see itself."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated

from fastapi import APIRouter, Path, Response

from lab.api.core.core import Core
from lab.api.core.threads import Route
from lab.api.http.answers import Answer, Page, answer, model, page, paged
from lab.api.http.auth import Admin, Reader
from lab.api.http.bodies import FromBody
from lab.api.http.dependencies import CoreOf
from lab.api.http.queries import After, Filter, Limit
from lab.api.jobs import quota
from lab.errors import NotFound
from lab.fleet.database import Unreachable
from lab.lifecycle.service import token as tokens
from lab.requests.tokens import CreateToken
from lab.state.service import TokenRecord
from lab.views.tokens import MadeToken, TokenView

router = APIRouter(prefix="/v1/tokens", tags=["tokens"], route_class=Route)

Id = Annotated[str, Path(pattern=r"^[0-9a-f]{12}$")]


@router.post("", operation_id="createToken", status_code=201, response_model=model(MadeToken))
def create(core: CoreOf, _: Admin, asked: FromBody[CreateToken], response: Response) -> Answer:
    """Create a token; its text is shown here and never again."""
    made = tokens.create(core.store, asked)
    _shared(core)
    response.headers["Location"] = f"/v1/tokens/{made.record.id}"
    return answer(made, MadeToken, token=_one(core, made.record))


@router.get("", operation_id="listTokens", response_model=page(TokenView))
def list_tokens(
    core: CoreOf,
    caller: Reader,
    project: Filter = "",
    after: After = "",
    limit: Limit = 100,
) -> Page[Answer]:
    """Tokens, the oldest first; revoked and expired ones too. Without admin: the caller's own."""
    found = tokens.tokens(core.store, project or None)
    if caller.project is not None:
        found = [record for record in found if record.id == caller.token.id]
    ids = [record.id for record in found]
    begin = ids.index(after) + 1 if after in ids else 0
    shown = found[begin : begin + limit]
    more = len(found) > begin + limit
    return paged(TokenView, _answers(core, shown), shown[-1].id if more else None)


@router.get("/{token}", operation_id="getToken", response_model=model(TokenView))
def get(core: CoreOf, caller: Reader, token: Id) -> Answer:
    """A token. Without admin: the caller's own."""
    if caller.project is not None and token != caller.token.id:
        raise NotFound(f"there is no token {token!r}")
    return _one(core, core.store.tokens.get(token))


@router.delete("/{token}", operation_id="revokeToken", response_model=model(TokenView))
def revoke(core: CoreOf, _: Admin, token: Id) -> Answer:
    """Revoke a token, with immediate effect; no error if it is revoked already."""
    record = tokens.revoke(core.store, core.store.tokens.get(token).id)
    _shared(core)
    return _one(core, record)


def _shared(core: Core) -> None:
    """Have the other hosts of a fleet know what was changed, now or when its database answers."""
    if core.fleet is not None:
        with suppress(Unreachable):
            core.fleet.share_tokens(core.store)
            core.fleet.signal("")


def _one(core: Core, record: TokenRecord) -> Answer:
    return _answers(core, [record])[0]


def _answers(core: Core, records: Sequence[TokenRecord]) -> list[Answer]:
    """Tokens, each with what its project has; the storage is listed once."""
    projects = {record.project for record in records}
    taken = quota.snapshots_of(core, next(iter(projects)) if len(projects) == 1 else None)
    used = {project: quota.used(core, project, taken) for project in projects}
    return [
        answer(
            record,
            TokenView,
            last_used_at=core.known.last_used(record),
            used=used[record.project],
        )
        for record in records
    ]

"""Tokens: /v1/tokens, for admins; a project's token can see itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Path, Query, Response

from lab.api.core.core import Core
from lab.api.core.threads import Route
from lab.api.http.auth import Admin, Reader
from lab.api.http.dependencies import CoreOf
from lab.api.http.models import MadeToken, Page, Token, TokenRequest
from lab.api.jobs import quota
from lab.errors import NotFound
from lab.lifecycle.service import token as tokens
from lab.lifecycle.service.token import Quota
from lab.state.service import TokenRecord

router = APIRouter(prefix="/v1/tokens", tags=["tokens"], route_class=Route)

Id = Annotated[str, Path(pattern=r"^[0-9a-f]{12}$")]


@router.post("", operation_id="createToken", status_code=201)
def create(core: CoreOf, _: Admin, asked: TokenRequest, response: Response) -> MadeToken:
    """Create a token; its text is shown here and never again."""
    limits = Quota(
        labs=asked.max_labs,
        nodes=asked.max_nodes,
        memory=asked.max_memory,
        ttl=asked.max_ttl,
        cpus=asked.max_cpus,
        disk=asked.max_disk,
        snapshots=asked.max_snapshots,
        templates=asked.max_templates,
    )
    made = tokens.create(
        core.store,
        asked.name,
        scope=asked.scope,
        project=asked.project,
        ttl=asked.ttl,
        quota=limits,
    )
    response.headers["Location"] = f"/v1/tokens/{made.record.id}"
    return MadeToken(token=_one(core, made.record), text=made.text)


@router.get("", operation_id="listTokens")
def list_tokens(
    core: CoreOf,
    caller: Reader,
    project: Annotated[str, Query(max_length=64)] = "",
    after: Annotated[str, Query(max_length=64)] = "",
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
) -> Page[Token]:
    """Tokens, the oldest first; revoked and expired ones too. Without admin: the caller's own."""
    found = tokens.tokens(core.store, project or None)
    if caller.project is not None:
        found = [record for record in found if record.id == caller.token.id]
    ids = [record.id for record in found]
    begin = ids.index(after) + 1 if after in ids else 0
    items = _views(core, found[begin : begin + limit])
    more = len(found) > begin + limit
    return Page(items=items, next=items[-1].id if more else None)


@router.get("/{token}", operation_id="getToken")
def get(core: CoreOf, caller: Reader, token: Id) -> Token:
    """A token. Without admin: the caller's own."""
    if caller.project is not None and token != caller.token.id:
        raise NotFound(f"there is no token {token!r}")
    return _one(core, core.store.tokens.get(token))


@router.delete("/{token}", operation_id="revokeToken")
def revoke(core: CoreOf, _: Admin, token: Id) -> Token:
    """Revoke a token, with immediate effect; no error if it is revoked already."""
    return _one(core, tokens.revoke(core.store, core.store.tokens.get(token).id))


def _one(core: Core, record: TokenRecord) -> Token:
    return _views(core, [record])[0]


def _views(core: Core, records: Sequence[TokenRecord]) -> list[Token]:
    """Tokens, each with what its project has; the storage is listed once."""
    projects = {record.project for record in records}
    taken = quota.snapshots_of(core, next(iter(projects)) if len(projects) == 1 else None)
    used = {project: quota.used(core, project, taken) for project in projects}
    return [
        Token.of(
            {
                **vars(record),
                "last_used_at": core.known.last_used(record),
                "used": used[record.project],
            }
        )
        for record in records
    ]

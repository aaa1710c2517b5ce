"""Tokens: /v1/tokens, for admins."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Response

from lab.api.core.threads import Route
from lab.api.http.auth import Admin
from lab.api.http.dependencies import CoreOf
from lab.api.http.models import MadeToken, Page, Token, TokenRequest
from lab.lifecycle.service import token as tokens
from lab.lifecycle.service.token import Quota

router = APIRouter(prefix="/v1/tokens", tags=["tokens"], route_class=Route)

Id = Annotated[str, Path(pattern=r"^[0-9a-f]{12}$")]


@router.post("", operation_id="createToken", status_code=201)
def create(core: CoreOf, _: Admin, asked: TokenRequest, response: Response) -> MadeToken:
    """Create a token; its text is shown here and never again."""
    quota = Quota(
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
        quota=quota,
    )
    response.headers["Location"] = f"/v1/tokens/{made.record.id}"
    return MadeToken(token=Token.of(made.record), text=made.text)


@router.get("", operation_id="listTokens")
def list_tokens(
    core: CoreOf,
    _: Admin,
    project: Annotated[str, Query(max_length=64)] = "",
    after: Annotated[str, Query(max_length=64)] = "",
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
) -> Page[Token]:
    """Tokens, the oldest first; revoked and expired ones too."""
    found = tokens.tokens(core.store, project or None)
    ids = [record.id for record in found]
    begin = ids.index(after) + 1 if after in ids else 0
    items = [Token.of(record) for record in found[begin : begin + limit]]
    more = len(found) > begin + limit
    return Page(items=items, next=items[-1].id if more else None)


@router.get("/{token}", operation_id="getToken")
def get(core: CoreOf, _: Admin, token: Id) -> Token:
    """A token."""
    return Token.of(core.store.tokens.get(token))


@router.delete("/{token}", operation_id="revokeToken")
def revoke(core: CoreOf, _: Admin, token: Id) -> Token:
    """Revoke a token, with immediate effect; no error if it is revoked already."""
    return Token.of(tokens.revoke(core.store, core.store.tokens.get(token).id))

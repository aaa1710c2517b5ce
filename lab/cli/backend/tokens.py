"""Tokens, wherever they are kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from lab.lifecycle.service import token as tokens
from lab.lifecycle.service.token import NewToken, Quota

if TYPE_CHECKING:
    from lab.state.records import Scope, TokenRecord
    from lab.state.store import Store


class Tokens(Protocol):
    """What ``lab token`` works with: see ``lab.client.tokens.Tokens`` for those elsewhere."""

    def create(
        self, name: str, *, scope: Scope, project: str, ttl: float | None, quota: Quota
    ) -> NewToken:
        """Make one; raises InvalidSpec."""

    def all(self) -> list[TokenRecord]:
        """All of them, the oldest first."""

    def revoke(self, which: str) -> TokenRecord:
        """Make one worthless; raises NotFound, Conflict."""


class Kept:
    """Those in the record of this host."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def create(
        self, name: str, *, scope: Scope, project: str, ttl: float | None, quota: Quota
    ) -> NewToken:
        """See Tokens."""
        return tokens.create(self._store, name, scope=scope, project=project, ttl=ttl, quota=quota)

    def all(self) -> list[TokenRecord]:
        """See Tokens."""
        return tokens.tokens(self._store)

    def revoke(self, which: str) -> TokenRecord:
        """See Tokens."""
        return tokens.revoke(self._store, which)

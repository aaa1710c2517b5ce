"""The tokens of a service, on this host or elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from lab.lifecycle.service import token as tokens
from lab.lifecycle.service.token import NewToken, Quota

if TYPE_CHECKING:
    from lab.state.records import Scope, TokenRecord
    from lab.state.store import Store


class Tokens(Protocol):
    """What ``lab token`` needs; ``lab.client.tokens.Tokens`` is another implementation."""

    def create(
        self, name: str, *, scope: Scope, project: str, ttl: float | None, quota: Quota
    ) -> NewToken:
        """Create a token; raises InvalidSpec."""

    def all(self) -> list[TokenRecord]:
        """All tokens, the oldest first."""

    def revoke(self, which: str) -> TokenRecord:
        """Revoke a token immediately; raises NotFound, Conflict."""


class Kept:
    """The tokens in the state database of this host."""

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

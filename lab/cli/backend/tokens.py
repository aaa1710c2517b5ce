"""The tokens of a service, on this host or elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from lab.errors import LabError
from lab.lifecycle.service import token as tokens
from lab.lifecycle.service.token import NewToken, Quota

if TYPE_CHECKING:
    from lab.lifecycle.core.context import Context
    from lab.lifecycle.service.token import Used
    from lab.state.service import Scope, TokenRecord


class Tokens(Protocol):
    """What ``lab token`` needs; ``lab.client.tokens.Tokens`` is another implementation."""

    def create(
        self, name: str, *, scope: Scope, project: str, ttl: float | None, quota: Quota
    ) -> NewToken:
        """Create a token; raises InvalidSpec."""

    def listed(self) -> list[tuple[TokenRecord, Used | None]]:
        """All tokens that the caller may see, the oldest first, with what their projects have.

        None: unknown, since the storage cannot be listed, or an older service does not say it.
        """

    def revoke(self, which: str) -> TokenRecord:
        """Revoke a token immediately; raises NotFound, Conflict."""


class Kept:
    """The tokens in the state database of this host."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def create(
        self, name: str, *, scope: Scope, project: str, ttl: float | None, quota: Quota
    ) -> NewToken:
        """See Tokens."""
        store = self._context.store
        return tokens.create(store, name, scope=scope, project=project, ttl=ttl, quota=quota)

    def listed(self) -> list[tuple[TokenRecord, Used | None]]:
        """See Tokens."""
        from lab.lifecycle.service.usage import used

        found: Mapping[str, Used] = {}
        with suppress(LabError):  # the storage cannot be listed
            found = used(self._context)
        return [(one, found.get(one.project)) for one in tokens.tokens(self._context.store)]

    def revoke(self, which: str) -> TokenRecord:
        """See Tokens."""
        return tokens.revoke(self._context.store, which)

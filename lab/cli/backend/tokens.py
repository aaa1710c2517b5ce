"""The tokens of a service, on this host or elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from lab.errors import LabError
from lab.lifecycle.service import token as tokens
from lab.views.tokens import MadeToken, TokenView, Used

if TYPE_CHECKING:
    from lab.lifecycle.core.context import Context
    from lab.requests.tokens import CreateToken


class Tokens(Protocol):
    """What ``lab token`` needs; ``lab.client.tokens.Tokens`` is another implementation."""

    def create(self, asked: CreateToken) -> MadeToken:
        """Create a token; raises InvalidSpec."""

    def all(self) -> list[TokenView]:
        """All tokens that the caller may see, the oldest first, with what their projects have.

        That is None where it is unknown: the storage cannot be listed, or an older service does not
        say it.
        """

    def revoke(self, which: str) -> TokenView:
        """Revoke a token immediately; raises NotFound, Conflict."""


class Kept:
    """The tokens in the state database of this host."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def create(self, asked: CreateToken) -> MadeToken:
        """See Tokens."""
        made = tokens.create(self._context.store, asked)
        return MadeToken(tokens.view_of(made.record), made.text)

    def all(self) -> list[TokenView]:
        """See Tokens."""
        from lab.lifecycle.service.usage import used

        found: Mapping[str, Used] = {}
        with suppress(LabError):  # the storage cannot be listed
            found = used(self._context)
        records = tokens.tokens(self._context.store)
        return [tokens.view_of(one, found.get(one.project)) for one in records]

    def revoke(self, which: str) -> TokenView:
        """See Tokens."""
        return tokens.view_of(tokens.revoke(self._context.store, which))

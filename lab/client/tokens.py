"""Tokens of a service, for its administrators."""

from __future__ import annotations

from lab.client.models import read
from lab.client.transport import Wire, path_of
from lab.lifecycle.service.token import chosen
from lab.request import body_of
from lab.requests.tokens import CreateToken
from lab.views.tokens import MadeToken, TokenView


class Tokens:
    """The tokens of a service; its methods raise as those of ``Client`` do."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def create(self, asked: CreateToken) -> MadeToken:
        """Create a token; raises InvalidSpec."""
        body = body_of(asked)  # an older service does not know all limits
        return read(self._wire.ask("POST", path_of("tokens"), body=body).body, MadeToken)

    def all(self) -> list[TokenView]:
        """All tokens that the caller may see, the oldest first, revoked and expired ones too."""
        return [read(item, TokenView) for item in self._wire.items(path_of("tokens"), {})]

    def revoke(self, which: str) -> TokenView:
        """Revoke a token immediately, by id or name; raises NotFound, Conflict."""
        found = chosen(self.all(), which)
        return read(self._wire.ask("DELETE", path_of("tokens", found.id)).body, TokenView)

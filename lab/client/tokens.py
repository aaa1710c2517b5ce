"""Tokens of a service, for its administrators."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lab.client.models import read
from lab.client.transport import Wire, path_of
from lab.lifecycle.service.token import UNLIMITED, NewToken, Quota, Used, chosen
from lab.state.service import Scope, TokenRecord


class Tokens:
    """The tokens of a service; its methods raise as those of ``Client`` do.

    Hashes stay with the service: those of the records here are empty.
    """

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def create(
        self,
        name: str,
        *,
        scope: Scope,
        project: str,
        ttl: float | None = None,
        quota: Quota = UNLIMITED,
    ) -> NewToken:
        """Create a token for ``ttl`` seconds or without end; raises InvalidSpec."""
        # Only limits are sent: an older service does not know all of them.
        limits = {name: value for name, value in quota.columns.items() if value is not None}
        body = {"name": name, "scope": scope, "project": project, "ttl": ttl, **limits}
        created = read(self._wire.ask("POST", path_of("tokens"), body=body).body, _Created)
        return NewToken(_record(created.token), created.text)

    def listed(self) -> list[tuple[TokenRecord, Used | None]]:
        """All tokens that the caller may see, the oldest first, with what their projects have.

        Revoked and expired ones too. None: the service is older, and does not say it.
        """
        found = []
        for item in self._wire.items(path_of("tokens"), {}):
            used = item.get("used")
            found.append((_record(item), None if used is None else read(used, Used)))
        return found

    def all(self) -> list[TokenRecord]:
        """``listed``, without what their projects have."""
        return [record for record, _ in self.listed()]

    def revoke(self, which: str) -> TokenRecord:
        """Revoke a token immediately, by id or name; raises NotFound, Conflict."""
        found = chosen(self.all(), which)
        answer = self._wire.ask("DELETE", path_of("tokens", found.id))
        return _record(read(answer.body, dict[str, Any]))


@dataclass(frozen=True)
class _Created:
    """A new token, with its text."""

    token: dict[str, Any]
    text: str = field(repr=False)


def _record(token: dict[str, Any]) -> TokenRecord:
    return read({**token, "hash": ""}, TokenRecord)

"""Tokens of a service, for its admins."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lab.client.models import read
from lab.client.transport import Wire, path_of
from lab.lifecycle.service.token import UNLIMITED, NewToken, Quota, chosen
from lab.state.records import Scope, TokenRecord


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
        """Make one that works at once, for ``ttl`` seconds or without end; raises InvalidSpec."""
        # What is not limited is not said: an older service does not know all quotas.
        limits = {name: value for name, value in quota.columns.items() if value is not None}
        body = {"name": name, "scope": scope, "project": project, "ttl": ttl, **limits}
        made = read(self._wire.ask("POST", path_of("tokens"), body=body).body, _Made)
        return NewToken(_record(made.token), made.text)

    def all(self) -> list[TokenRecord]:
        """All of them, the oldest first; revoked and expired ones too."""
        return [_record(item) for item in self._wire.items(path_of("tokens"), {})]

    def revoke(self, which: str) -> TokenRecord:
        """Make one, by id or by name, worthless from now on; raises NotFound, Conflict."""
        found = chosen(self.all(), which)
        answer = self._wire.ask("DELETE", path_of("tokens", found.id))
        return _record(read(answer.body, dict[str, Any]))


@dataclass(frozen=True)
class _Made:
    """What a service tells of a token once."""

    token: dict[str, Any]
    text: str = field(repr=False)


def _record(told: dict[str, Any]) -> TokenRecord:
    return read({**told, "hash": ""}, TokenRecord)

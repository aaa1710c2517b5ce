"""Tokens of a fleet: each host has a copy of all, so that no request asks the database for one.

A token never changes but by being revoked, so copies are merged: what one host has, or has revoked,
all have.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import msgspec

from lab.fleet.database import FleetDatabase
from lab.state.service import TokenRecord
from lab.values import dataclass


@dataclass(frozen=True)
class Merged:
    """What a host is to change of its tokens."""

    take: Sequence[TokenRecord]
    """Those that it lacks, or has not revoked, as the fleet has them."""
    unknown: frozenset[str]
    """The ids of those that say what this version does not know, such as a limit: they are not
    valid here."""


def merged(database: FleetDatabase, ours: Sequence[TokenRecord]) -> Merged:
    """What this host lacks; the fleet is given what it lacks of ours. Raises Unreachable."""
    rows = {row.id: row.record for row in database.run("SELECT id, record FROM lab.tokens")}
    read = {identity: _read(record) for identity, record in rows.items()}
    theirs = {identity: one for identity, one in read.items() if one is not None}
    for one in ours:  # also where the rest of what the fleet says of it is not known here
        revoked = rows[one.id].get("revoked_at") if one.id in rows else None
        if revoked and one.id not in theirs:
            at = float(revoked) if isinstance(revoked, int | float) else time.time()
            theirs[one.id] = replace(one, revoked_at=at)
    known = {one.id: one for one in ours}
    give = [one for one in ours if one.id not in rows or _revokes(one, rows[one.id])]
    if give:
        plain = [msgspec.to_builtins(replace(one, last_used_at=None)) for one in give]
        database.run(
            "INSERT INTO lab.tokens AS t (id, record)"
            " SELECT r ->> 'id', r FROM jsonb_array_elements(CAST(:rows AS jsonb)) AS r"
            " ON CONFLICT (id) DO UPDATE SET record = t.record"
            "  || jsonb_build_object('revoked_at', excluded.record -> 'revoked_at')"
            " WHERE t.record ->> 'revoked_at' IS NULL",
            rows=msgspec.json.encode(plain).decode(),
        )
    return Merged(
        [
            one
            for one in theirs.values()
            if one.id not in known or (one.revoked_at and not known[one.id].revoked_at)
        ],
        frozenset(rows.keys() - theirs.keys()),
    )


def _revokes(one: TokenRecord, record: Mapping[str, Any]) -> bool:
    return one.revoked_at is not None and record.get("revoked_at") is None


def _read(record: Mapping[str, Any]) -> TokenRecord | None:
    """A token; None if this version does not know all that it says."""
    names = {one.name for one in fields(TokenRecord)}
    if any(value is not None for name, value in record.items() if name not in names):
        return None
    try:
        return msgspec.convert(record, TokenRecord)
    except msgspec.ValidationError:  # such as a scope
        return None

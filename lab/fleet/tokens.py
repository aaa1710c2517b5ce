"""Tokens of a fleet: each host has a copy of all, so that no request asks the database for one.

A token never changes but by being revoked, so copies are merged: what one host has, or has revoked,
all have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from lab.fleet.database import FleetDatabase
from lab.state.service import TokenRecord


def merged(database: FleetDatabase, ours: Sequence[TokenRecord]) -> list[TokenRecord]:
    """The tokens that this host lacks, or has not revoked, as the fleet has them.

    What the fleet lacks of ours, or has not revoked, it is given. Raises Unreachable.
    """
    rows = database.run("SELECT record FROM lab.tokens")
    theirs = {one.id: one for one in (msgspec.convert(row.record, TokenRecord) for row in rows)}
    known = {one.id: one for one in ours}
    give = [one for one in ours if one.id not in theirs or _revokes(one, theirs[one.id])]
    if give:
        plain = [msgspec.to_builtins(replace(one, last_used_at=None)) for one in give]
        database.run(
            "INSERT INTO lab.tokens AS t (id, record)"
            " SELECT r ->> 'id', r FROM jsonb_array_elements(CAST(:rows AS jsonb)) AS r"
            " ON CONFLICT (id) DO UPDATE SET record = excluded.record"
            " WHERE t.record ->> 'revoked_at' IS NULL",
            rows=msgspec.json.encode(plain).decode(),
        )
    return [one for one in theirs.values() if one.id not in known or _revokes(one, known[one.id])]


def _revokes(one: TokenRecord, other: TokenRecord) -> bool:
    return one.revoked_at is not None and other.revoked_at is None

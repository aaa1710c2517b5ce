"""Tokens: who may use the service. Only a hash of each is kept."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import time
from collections.abc import Sequence
from dataclasses import field
from typing import TYPE_CHECKING, TypeVar

from msgspec.structs import asdict

from lab import request
from lab.errors import Conflict, NotFound, Unauthorized
from lab.requests.tokens import CreateToken
from lab.state.service import Scope, TokenRecord
from lab.values import dataclass
from lab.views.tokens import TokenView, Used

if TYPE_CHECKING:
    from lab.paths import Home
    from lab.state.store import Store

T = TypeVar("T", TokenRecord, TokenView)

SCOPES: tuple[Scope, ...] = ("read", "use", "admin")
"""Each includes those before it."""

_TOKEN = re.compile(r"lab_([0-9a-f]{12})_([A-Za-z0-9_-]{43})")
_NOBODY = hashlib.sha256(b"nobody's").hexdigest()


@dataclass(frozen=True)
class NewToken:
    """A token, and its ``text``, which is not stored."""

    record: TokenRecord
    text: str = field(repr=False)


def create(store: Store, asked: CreateToken) -> NewToken:
    """Create a token; raises InvalidSpec."""
    asked = request.check(asked)
    limits = {name: its for name, its in asdict(asked).items() if name.startswith("max_")}
    identity, secret, now = secrets.token_hex(6), secrets.token_urlsafe(32), time.time()
    record = TokenRecord(
        id=identity,
        name=asked.name,
        hash=_hash(secret),
        scope=asked.scope,
        project=asked.project,
        created_at=now,
        expires_at=None if asked.ttl is None else now + asked.ttl,
        asleep_after=asked.asleep_after,
        **limits,
    )
    store.tokens.add(record)
    return NewToken(record, f"lab_{identity}_{secret}")


def view_of(record: TokenRecord, used: Used | None = None) -> TokenView:
    """A token as it is shown: without its hash."""
    return TokenView(**{k: v for k, v in vars(record).items() if k != "hash"}, used=used)


def tokens(store: Store, project: str | None = None) -> list[TokenRecord]:
    """All tokens (of a project only), the oldest first; revoked and expired ones too."""
    found = [r for r in store.tokens.all() if project is None or r.project == project]
    return sorted(found, key=lambda record: record.created_at)


def chosen(records: Sequence[T], which: str) -> T:
    """The token of that id, or the valid one of that name.

    Raises NotFound, and Conflict if several have that name.
    """
    for record in records:
        if record.id == which:  # an id is meant, whatever others are called
            return record
    named = [record for record in records if record.name == which and record.revoked_at is None]
    if len(named) > 1:
        raise Conflict(
            f"{len(named)} tokens have the name {which}",
            hint=f"give an id: {', '.join(record.id for record in named)}",
        )
    if not named:
        raise NotFound(f"there is no token {which!r}", hint="`lab token ls` lists them")
    return named[0]


def revoke(store: Store, which: str) -> TokenRecord:
    """Revoke a token at once; no error if it is revoked already. Raises as ``chosen``."""
    record = chosen(store.tokens.all(), which)
    if record.revoked_at is None:
        store.tokens.update(record.id, revoked_at=time.time())
        store.sync()
    return store.tokens.get(record.id)


def check(store: Store, text: str) -> TokenRecord:
    """The record of a token; raises Unauthorized, without the reason.

    What is compared takes the same time whether the token is known or not.
    """
    match = _TOKEN.fullmatch(text)
    record = store.tokens.find(match[1]) if match else None
    given = _hash(match[2] if match else text)
    same = hmac.compare_digest(given, record.hash if record else _NOBODY)
    if record is None or not same or not valid(record):
        raise Unauthorized("no valid token", hint="`lab token create` makes one")
    return record


def valid(record: TokenRecord | TokenView) -> bool:
    """Whether a token is neither revoked nor expired."""
    expired = record.expires_at is not None and record.expires_at <= time.time()
    return record.revoked_at is None and not expired


def first(store: Store, home: Home) -> NewToken | None:
    """The admin token that an installation without tokens begins with; it is kept in a file.

    None if there are tokens. Only the user can read the file, ``home.admin_token``.
    """
    with store.transaction():
        if store.tokens.all():
            return None
        made = create(store, CreateToken(name="admin", scope="admin", project="admin"))
        path = home.admin_token
        path.unlink(missing_ok=True)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(fd, "w", encoding="ascii") as file:
            file.write(f"{made.text}\n")
    return made


def _hash(secret: str) -> str:
    # Secrets are 256 random bits: nothing is won by a slow hash.
    return hashlib.sha256(secret.encode(errors="replace")).hexdigest()

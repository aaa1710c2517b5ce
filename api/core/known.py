"""The tokens that were found valid lately, and when they were used."""

from __future__ import annotations

import hashlib
import threading
import time

from lab.errors import LabError
from lab.lifecycle.service import token as tokens
from lab.state.service import TokenRecord
from lab.state.store import Store

_MOST = 10_000


class KnownTokens:
    """Tokens that were found valid, and none was changed since: they need no look-up.

    For use in the service's loop and its threads. When they are used is remembered here, and
    written by ``record_uses``, so that no request that reads waits for the record.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._version: object = None
        self._found: dict[bytes, TokenRecord] = {}
        self._used: dict[str, float] = {}

    def find(self, store: Store, text: str) -> TokenRecord | None:
        """The record of a token; None if it is to be checked. Takes microseconds."""
        version, key = store.tokens_version(), _key(text)
        with self._lock:
            record = self._found.get(key) if version == self._version else None
        if record is None or not tokens.valid(record):
            return None
        self.used(record.id)
        return record

    def check(self, store: Store, text: str) -> TokenRecord:
        """``tokens.check``, remembered."""
        before, version = store.version(), store.tokens_version()
        record = tokens.check(store, text)
        if store.version() == before:  # else it may have changed before it was read
            with self._lock:
                if version != self._version or len(self._found) >= _MOST:
                    self._version, self._found = version, {}
                self._found[_key(text)] = record
        self.used(record.id)
        return record

    def used(self, identity: str) -> None:
        """The token of that id is used now."""
        with self._lock:
            self._used[identity] = time.time()

    def last_used(self, record: TokenRecord) -> float | None:
        """When a token was used last, written or not; None: never."""
        with self._lock:
            return self._used.get(record.id, record.last_used_at)

    def record_uses(self, store: Store) -> None:
        """Write when tokens were used since the last call, in one transaction.

        Those that are known stay known: they are read again, all at once.
        """
        with self._lock:
            used, self._used = self._used, {}
        if not used:
            return
        try:
            with store.transaction():
                for record in store.tokens.all():
                    if record.id in used:
                        store.tokens.update(record.id, last_used_at=used[record.id])
        except LabError:
            with self._lock:
                self._used = {**used, **self._used}
            raise
        before, version = store.version(), store.tokens_version()
        now = {record.id: record for record in store.tokens.all()}
        if store.version() != before:  # as in ``check``
            now = {}
        with self._lock:
            known = {key: now.get(record.id) for key, record in self._found.items()}
            self._found = {key: record for key, record in known.items() if record is not None}
            self._version = version


def _key(text: str) -> bytes:
    # Not the token itself, and what is compared is not what a client sends.
    return hashlib.sha256(text.encode(errors="replace")).digest()

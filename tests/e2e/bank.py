"""A bank's workload whose clients reconnect: what they were promised is compared afterwards.

Each client moves money between accounts, and counts its transfers in a row of its connection's own:
``number`` there is what was acknowledged, or one more if the last commit's answer was lost.
"""

from __future__ import annotations

import random
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import pymysql

ACCOUNTS = 20
EACH = 100
TOTAL = ACCOUNTS * EACH
SCHEMA = (
    "CREATE DATABASE bank",
    "CREATE TABLE bank.accounts (id INT PRIMARY KEY, balance INT NOT NULL)",
    "CREATE TABLE bank.sessions (id CHAR(12) PRIMARY KEY, number INT NOT NULL)",
    "INSERT INTO bank.accounts VALUES "
    + ", ".join(f"({number}, {EACH})" for number in range(ACCOUNTS)),
)
_CONFLICTS = (1205, 1213)
"""Lock wait timeout, and deadlock, which is also what certification of Galera says."""
_REST = 0.05
_SILENCE = 60.0


@dataclass
class Session:
    """One connection of a client. Times are those of ``time.monotonic``, in seconds."""

    id: str
    opened: float
    acknowledged: int = 0
    begun: float = 0.0
    """When the last transfer began that was acknowledged."""
    slowest: float = 0.0
    """Seconds of the slowest transfer."""
    error: str = ""
    """What ended it; empty: it is open, or was closed at the end."""


@dataclass
class Clerk:
    """A client of one node, in a thread of its own: it connects again whenever it is cut off."""

    address: Callable[[], Mapping[str, Any]]
    """Arguments of ``pymysql.connect``."""
    sessions: list[Session] = field(default_factory=list)
    refused: int = 0
    """Attempts to connect that failed."""

    def run(self, ends: threading.Event) -> None:
        """Work until the event is set."""
        while not ends.is_set():
            try:
                connection = pymysql.connect(
                    **self.address(), connect_timeout=10, read_timeout=_SILENCE,
                    write_timeout=_SILENCE, autocommit=False,
                )  # fmt: skip
            except pymysql.Error:
                self.refused += 1
                ends.wait(_REST)
                continue
            session = Session(secrets.token_hex(6), time.monotonic())
            self.sessions.append(session)
            try:
                while not ends.wait(_REST):
                    _transfer(connection, session)
            except pymysql.Error as error:
                session.error = f"{type(error).__name__}: {error}"
            finally:
                with suppress(pymysql.Error):
                    connection.close()

    def broken(self) -> list[str]:
        """What ended its connections."""
        return [session.error for session in self.sessions if session.error]


def _transfer(connection: Any, session: Session) -> None:
    """Move 1 from one account to another, once; the session counts it."""
    began = time.monotonic()
    # In the order of their keys: two transfers in one server do not wait for each other.
    low, high = sorted(random.sample(range(ACCOUNTS), 2))
    number = session.acknowledged + 1
    move = "UPDATE bank.accounts SET balance = balance + %s WHERE id = %s"
    count = "INSERT INTO bank.sessions VALUES (%s, %s) ON DUPLICATE KEY UPDATE number = %s"
    while True:
        try:
            with connection.cursor() as cursor:
                cursor.execute(move, (1, low))
                cursor.execute(move, (-1, high))
                cursor.execute(count, (session.id, number, number))
            connection.commit()
        except pymysql.OperationalError as error:
            if error.args[0] not in _CONFLICTS:
                raise
            connection.rollback()
        else:
            break
    session.acknowledged, session.begun = number, began
    session.slowest = max(session.slowest, time.monotonic() - began)


@contextmanager
def working(addresses: Sequence[Callable[[], Mapping[str, Any]]]) -> Iterator[list[Clerk]]:
    """A clerk at each address for the block; all have ended after it."""
    ends, clerks = threading.Event(), [Clerk(address) for address in addresses]
    threads = [threading.Thread(target=clerk.run, args=(ends,)) for clerk in clerks]
    for thread in threads:
        thread.start()
    try:
        yield clerks
    finally:
        ends.set()
        for thread in threads:
            thread.join(2 * _SILENCE)


def promises(clerks: Sequence[Clerk]) -> dict[str, int]:
    """The transfers that were acknowledged to each session so far."""
    return {session.id: session.acknowledged for clerk in clerks for session in clerk.sessions}


def differences(
    found: Mapping[str, int], clerks: Sequence[Clerk], promised: Mapping[str, int], opened: float
) -> list[str]:
    """What is wrong with ``found``, the rows of ``bank.sessions``, by what the clerks know.

    ``promised``: of before the rows were read. A session that was opened before ``opened`` has no
    row; one that was opened after it and still works has what it was promised. Of one that broke
    after it, nothing is known.
    """
    wrong = []
    known = {session.id: session for clerk in clerks for session in clerk.sessions}
    for key, number in found.items():
        session = known.get(key)
        if session is None or session.opened < opened:
            wrong.append(f"{number} transfers of {key}, a connection of before")
        elif number > session.acknowledged + 1:
            wrong.append(f"{number} transfers of {key}, which made {session.acknowledged}")
    for key, number in promised.items():
        if known[key].opened < opened or known[key].error:
            continue
        if found.get(key, 0) < number:
            wrong.append(f"{found.get(key, 0)} of {number} transfers of {key}: lost")
    return wrong

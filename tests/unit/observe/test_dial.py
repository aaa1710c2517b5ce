"""Connections that are begun before the client is loaded."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from lab.errors import NotReady
from lab.observe.account import Account
from lab.observe.dial import begin, finish
from lab.observe.sql import ask_all
from lab.passwords import CACHING_SHA2
from lab.wait import Deadline

ACCOUNT = Account("lab", "the-password-of-a-lab")


@pytest.fixture
def silent() -> Iterator[int]:
    """A port that accepts and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


@pytest.fixture
def closed() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        return int(free.getsockname()[1])


def files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def begun_at(port: int) -> socket.socket:
    begun = begin("127.0.0.1", port)
    assert begun is not None
    return begun


def test_one_that_is_begun_is_made(silent: int) -> None:
    with begun_at(silent) as begun:
        finish(begun, Deadline.after(5))
        assert begun.getpeername() == ("127.0.0.1", silent)


def test_nobody_listens(closed: int) -> None:
    """At the beginning, or once it is waited for: which of both is the kernel's choice."""
    begun = begin("127.0.0.1", closed)
    if begun is not None:
        with begun, pytest.raises(ConnectionRefusedError):
            finish(begun, Deadline.after(5))


def test_a_name_is_not_looked_up() -> None:
    """Looking it up could take seconds, and is left to who waits."""
    assert begin("db.example.org", 3306) is None
    assert begin("::1", 3306) is None


def test_nobody_accepts() -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        port = full.getsockname()[1]
        waiting = [begin("127.0.0.1", port) for _ in range(3)]
        last = waiting[-1]
        assert last is not None
        with pytest.raises(TimeoutError):
            finish(last, Deadline.after(0.1))
        for begun in waiting:
            if begun is not None:
                begun.close()


@pytest.mark.parametrize("account", [ACCOUNT, replace(ACCOUNT, plugin=CACHING_SHA2)])
def test_it_is_closed_however_a_question_ends(account: Account, silent: int, closed: int) -> None:
    """Protects services, which ask as long as they live; the second account is refused by us."""
    before = files()
    for port in (silent, closed):
        with pytest.raises(NotReady):
            ask_all(account, port, ["SELECT 1"], timeout=0.2, begun=begin("127.0.0.1", port))
    assert files() == before

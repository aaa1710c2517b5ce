"""Connections that are kept, on a real server."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import replace

import pymysql
import pytest

from lab.errors import CommandFailed, NotReady
from lab.lifecycle.service.activity import _COUNTERS, count_of
from lab.observe.account import Account
from lab.observe.ask import LOOK
from lab.observe.sql import KeptConnections, ask_all, ask_text
from lab.wait import Deadline, until
from tests.support.mariadb_server import NoServer, Server, server

ACCOUNT = Account("lab", "the-password-of-a-lab")
QUESTION = "SELECT VARIABLE_NAME, VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS LIMIT 1"


@contextmanager
def _listening(options: Sequence[str] = ()) -> Iterator[tuple[Server, int]]:
    """A server and its port, with ``ACCOUNT``; without one the test is skipped."""
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    network = ["--skip-networking=0", "--bind-address=127.0.0.1", f"--port={port}"]
    try:
        with server([*network, *options]) as real:
            real.ask(
                f"CREATE USER lab@'127.0.0.1' IDENTIFIED BY '{ACCOUNT.password}'",
                "GRANT PROCESS ON *.* TO lab@'127.0.0.1'",
            )
            yield real, port
    except NoServer as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def place() -> Iterator[tuple[Server, int]]:
    with _listening(["--max-connections=10"]) as found:
        yield found


def sessions(real: Server) -> list[int]:
    rows = real.ask("SELECT ID FROM information_schema.PROCESSLIST WHERE USER = 'lab'")
    return [row[0] for row in rows]


def gone(real: Server) -> bool:
    return bool(until(lambda: not sessions(real), Deadline.after(10)))


def test_one_connection_serves_all_questions_until_it_is_closed(place: tuple[Server, int]) -> None:
    """Protects servers from a login, with its cryptography, for each look."""
    real, port = place
    with closing(KeptConnections()) as kept:
        for _ in range(5):
            assert kept(ACCOUNT, port, ["SELECT 1", "SELECT 2"], timeout=9)[1].rows == ((2,),)
        assert len(sessions(real)) == 1
    assert gone(real)


def test_a_look_under_way_leaves_no_connection_once_they_are_closed(
    place: tuple[Server, int],
) -> None:
    """Protects captures: a look that began before a job asks further nodes while the job works."""
    real, port = place
    kept = KeptConnections()
    kept.close()
    assert kept(ACCOUNT, port, ["SELECT 1"], timeout=9)[0].rows == ((1,),)
    assert gone(real)


class _Seconds(float):
    """A limit that says when it begins."""

    def __new__(cls, seconds: float, begun: threading.Event) -> _Seconds:
        found = super().__new__(cls, seconds)
        found.begun = begun
        return found

    begun: threading.Event

    def __radd__(self, other: float) -> float:
        self.begun.set()
        return other + float(self)


def test_a_question_is_not_cut_by_the_end_of_an_earlier_one(place: tuple[Server, int]) -> None:
    """Protects looks from a node that seems lost: both were under way as a job began."""
    real, port = place
    kept, waits = KeptConnections(), threading.Event()

    def is_asked(text: str) -> bool:
        found = f"SELECT 1 FROM information_schema.PROCESSLIST WHERE INFO LIKE '{text}%'"
        return bool(real.ask(found))

    def count() -> int:
        (found,) = real.ask("SHOW GLOBAL STATUS LIKE 'Com_do'")
        return int(found[1])

    before = count()
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(kept, ACCOUNT, port, ["SELECT SLEEP(0.5)"], timeout=9)
        assert until(lambda: is_asked("SELECT SLEEP"), Deadline.after(9))
        seconds = _Seconds(9, waits)
        second = threads.submit(kept, ACCOUNT, port, ["DO SLEEP(1)"], timeout=seconds)
        assert waits.wait(9)
        kept.close()
        with kept._guard:  # the first one has its answer, and may not put the connection away yet
            until(lambda: is_asked("DO SLEEP"), Deadline.after(2))
        assert len(first.result()) == len(second.result()) == 1
    assert count() == before + 1
    assert gone(real)


@pytest.mark.parametrize("how", ["KILL {id}", "SET GLOBAL wait_timeout = 1"])
def test_a_connection_that_its_server_ended_is_made_again(
    place: tuple[Server, int], how: str
) -> None:
    """Protects the state of a lab that was rolled back, promoted or restarted."""
    real, port = place
    try:
        with closing(KeptConnections()) as kept:
            if "{id}" not in how:
                real.ask(how)
            kept(ACCOUNT, port, ["SELECT 1"], timeout=9)
            if "{id}" in how:
                real.ask(how.format(id=sessions(real)[0]))
            assert gone(real)
            assert kept(ACCOUNT, port, ["SELECT 3"], timeout=9)[0].rows == ((3,),)
    finally:
        real.ask("SET GLOBAL wait_timeout = DEFAULT")
        assert gone(real)


def test_what_a_server_refuses_is_the_answer(place: tuple[Server, int]) -> None:
    """Protects from taking an error for a broken connection without end."""
    real, port = place
    with closing(KeptConnections()) as kept:
        for _ in range(2):
            with pytest.raises(CommandFailed) as failed:
                kept(ACCOUNT, port, ["SELECT nothing"], timeout=9)
            assert failed.value.status == 1054
    assert gone(real)


def test_looks_on_it_are_no_use_of_the_lab(place: tuple[Server, int]) -> None:
    """Protects the detection of idle labs: the observer looks all the time."""
    real, port = place
    with closing(KeptConnections()) as kept:
        kept(ACCOUNT, port, [LOOK, QUESTION], timeout=9)
        (before,) = kept(ACCOUNT, port, [_COUNTERS], timeout=9)
        for _ in range(3):
            kept(ACCOUNT, port, [LOOK, QUESTION], timeout=9)
        (after,) = kept(ACCOUNT, port, [_COUNTERS], timeout=9)
        assert count_of(after) == count_of(before)
        (idle,) = real.ask("SELECT COMMAND, INFO FROM information_schema.PROCESSLIST"
                           " WHERE USER = 'lab'")  # fmt: skip
        assert idle == ("Sleep", None)
    assert gone(real)


def test_it_answers_where_users_have_all_connections(place: tuple[Server, int]) -> None:
    """Protects the state of a server whose connections are used up: it is not unreachable."""
    real, port = place
    with closing(KeptConnections()) as kept:
        kept(ACCOUNT, port, ["SELECT 1"], timeout=9)
        taken: list[pymysql.Connection[pymysql.cursors.Cursor]] = []
        with suppress(pymysql.err.OperationalError):
            while True:
                taken.append(
                    pymysql.connect(
                        host="127.0.0.1", port=port, user="lab", password=ACCOUNT.password
                    )
                )
        try:
            with pytest.raises(NotReady):
                ask_all(ACCOUNT, port, ["SELECT 1"], timeout=9)
            assert kept(ACCOUNT, port, ["SELECT 4"], timeout=9)[0].rows == ((4,),)
        finally:
            for one in taken:
                one.close()
    assert gone(real)


@pytest.mark.parametrize(("default", "statements"), [("utf8mb4", 1), ("latin1", 2)])
def test_a_look_sends_set_names_only_where_the_server_would_answer_in_another_character_set(
    default: str, statements: int
) -> None:
    """Protects looks from a second round trip, and what they read from being decoded wrongly."""
    count = "SHOW SESSION STATUS LIKE 'Questions'"
    with _listening([f"--character-set-server={default}"]) as (_, port):
        look = replace(ACCOUNT, peer=os.geteuid())
        rows = ask_all(look, port, [count, "SELECT 'ä', @@character_set_client"], timeout=9)
        assert rows[0].rows == (("Questions", str(statements)),)
        assert rows[1].rows == (("ä", "utf8mb4"),)


def test_a_users_statements_have_the_servers_collation_of_utf8mb4() -> None:
    """Protects views and routines, which store it, from the one that the handshake names."""
    options = ["--character-set-server=utf8mb4", "--collation-server=utf8mb4_unicode_ci"]
    with _listening(options) as (real, port):
        collation = "SELECT @@collation_connection"
        expected = tuple(real.ask("SET NAMES utf8mb4", collation))
        assert next(iter(ask_text(ACCOUNT, port, collation, timeout=9))).rows == expected
        count = "SHOW SESSION STATUS LIKE 'Questions'"
        counted, its = ask_all(ACCOUNT, port, [count, collation], timeout=9)
        assert (counted.rows, its.rows) == ((("Questions", "2"),), expected)

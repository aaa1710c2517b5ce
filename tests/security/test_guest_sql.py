"""A server in a guest, or another user's program at its port: what we ask has an end and a size."""

from __future__ import annotations

import os
import time
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest

from api.core.problem import problem
from lab.errors import CommandFailed, LabError, NotReady
from lab.observe.account import Account
from lab.observe.sql import ask
from lab.passwords import CACHING_SHA2
from tests.security.guest import SQL, THIEVES, behaving, over_tls, signed

ACCOUNT = Account("lab", "the-password-of-a-lab")
LIMIT = 1.0


@pytest.mark.parametrize("behaviour", [*SQL, "silent", "drip", "endless", "http"])
def test_no_answer_takes_the_service_s_time_or_memory(behaviour: str) -> None:
    """Protects the service: it asks every 15 s, and lives on a host with other work."""
    with behaving(behaviour, "tcp:0") as port:
        tracemalloc.start()
        began = time.monotonic()
        try:
            if behaviour == "sql-columns":
                assert ask(ACCOUNT, port, "SELECT 1", timeout=LIMIT).rows == (("NaN",),)
            else:
                with pytest.raises(NotReady):
                    ask(ACCOUNT, port, "SELECT 1", timeout=LIMIT)
            assert time.monotonic() - began < LIMIT + 8.0  # memory is traced, which takes time
            assert tracemalloc.get_traced_memory()[1] < 40_000_000
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize(("behaviour", "begun"), [("sql-drip", True), ("silent", False)])
def test_a_slow_answer_is_not_taken_for_none(behaviour: str, begun: bool) -> None:
    """Protects waits on busy hosts: a server gets more time once it began to answer."""
    with behaving(behaviour, "tcp:0") as port, pytest.raises(NotReady) as failed:
        ask(ACCOUNT, port, "SELECT 1", timeout=LIMIT)
    assert failed.value.begun == begun
    assert problem(failed.value)["type"] == "urn:lab:error:not-ready"  # to users it is the same


def test_what_the_user_asks_for_has_any_size_but_an_end() -> None:
    """Protects `lab sql`: a large result is the user's own wish."""
    with behaving("sql-large", "tcp:0") as port:
        tracemalloc.start()
        try:
            with pytest.raises(NotReady):
                ask(ACCOUNT, port, "SELECT 1", timeout=LIMIT, whole=True)
            assert tracemalloc.get_traced_memory()[1] > 16_000_000
        finally:
            tracemalloc.stop()


def test_what_a_server_refuses_is_cut() -> None:
    """Protects the record and the terminal from an error's text."""
    with behaving("sql-error", "tcp:0") as port, pytest.raises(CommandFailed) as failed:
        ask(ACCOUNT, port, "SELECT 1", timeout=5)
    assert failed.value.status == 1064
    assert len(failed.value.stderr) <= 1024


def _content(leak: Path) -> bytes:
    """What the server got so far; the file exists before it is written."""
    return leak.read_bytes() if leak.exists() else b""


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("behaviour", THIEVES)
def test_no_server_is_given_the_password(behaviour: str, tls: bool, tmp_path: Path) -> None:
    """Protects the password from who listens at a port, even with the key of another lab's node."""
    leak = tmp_path / "leak"
    made = signed(tmp_path)
    with behaving(behaviour, "tcp:0", leak) as plain, over_tls(plain, made.chain) as secured:
        account = Account(ACCOUNT.user, ACCOUNT.password, ca=str(made.ca)) if tls else ACCOUNT
        with pytest.raises(LabError):
            ask(account, secured if tls else plain, "SELECT 1", timeout=5)
        end = time.monotonic() + 5
        while b"answer:" not in _content(leak) and time.monotonic() < end:
            time.sleep(0.02)
        got = _content(leak)
    assert b"lab\0" in got, "it did not come to a login"
    assert ACCOUNT.password.encode() not in got
    assert got.endswith(b"answer:"), "it was given what it asked for"


@pytest.mark.parametrize("behaviour", ["sql-clear", "sql-columns", "silent", "http"])
def test_nobody_without_our_certificate_sees_a_login(behaviour: str, tmp_path: Path) -> None:
    """Protects the password of a lab from other users of the host: its ports are free for them."""
    leak = tmp_path / "leak"
    made = signed(tmp_path)
    (tmp_path / "other").mkdir()
    other = signed(tmp_path / "other")
    account = Account(ACCOUNT.user, ACCOUNT.password, ca=str(made.ca))
    with behaving(behaviour, "tcp:0", leak) as plain, over_tls(plain, other.chain) as forged:
        for port in (plain, forged):
            with pytest.raises(NotReady):
                ask(account, port, "SELECT 1", timeout=1.0)
    assert not leak.exists() or b"lab\0" not in leak.read_bytes()


def test_a_server_with_our_certificate_is_asked(tmp_path: Path) -> None:
    """The same way as above leads to an answer, where the server is the one that it should be."""
    made = signed(tmp_path)
    account = Account(ACCOUNT.user, ACCOUNT.password, ca=str(made.ca))
    with behaving("sql-columns", "tcp:0") as plain, over_tls(plain, made.chain) as port:
        assert ask(account, port, "SELECT 1", timeout=5).rows == (("NaN",),)
        (tmp_path / "wrong").mkdir()
    wrong = signed(tmp_path / "wrong", name="192.0.2.1")
    elsewhere = Account(ACCOUNT.user, ACCOUNT.password, ca=str(wrong.ca))
    with behaving("sql-columns", "tcp:0") as plain, over_tls(plain, wrong.chain) as port:
        with pytest.raises(NotReady):
            ask(elsewhere, port, "SELECT 1", timeout=5)
        loose = Account(ACCOUNT.user, ACCOUNT.password, ca=str(wrong.ca), verify=False)
        assert ask(loose, port, "SELECT 1", timeout=5).rows


@pytest.mark.parametrize("checks", [False, True])
def test_a_password_is_sent_to_the_node_itself_only(checks: bool, tmp_path: Path) -> None:
    """Protects labs with MySQL, whose plugin sends it: to a certificate of ours alone."""
    leak = tmp_path / "leak"
    made = signed(tmp_path)
    (tmp_path / "other").mkdir()
    other = signed(tmp_path / "other")
    account = replace(ACCOUNT, ca=str(made.ca), plugin=CACHING_SHA2, verify=checks)
    with behaving("sql-sha2", "tcp:0", leak) as plain, over_tls(plain, other.chain) as forged:
        for port in (plain, forged):
            with pytest.raises(NotReady):
                ask(account, port, "SELECT 1", timeout=1.0)
        with pytest.raises(NotReady, match="no SQL"):
            ask(replace(account, ca=""), plain, "SELECT 1", timeout=1.0)
    assert not leak.exists() or b"lab\0" not in leak.read_bytes()


def test_without_tls_only_the_program_is_asked_that_forwards_the_port(tmp_path: Path) -> None:
    """Protects labs from other users of the host, who may listen at the port of a stopped node."""
    leak = tmp_path / "leak"
    made = signed(tmp_path)
    ours = Account(ACCOUNT.user, ACCOUNT.password, ca=str(made.ca), peer=os.geteuid())
    with behaving("sql-clear", "tcp:0", leak) as port:
        with pytest.raises(NotReady) as failed:
            ask(replace(ours, peer=os.geteuid() + 1), port, "SELECT 1", timeout=5)
        assert "another program" in failed.value.details[0]
        assert b"lab\0" not in _content(leak)
    with behaving("sql-columns", "tcp:0") as port:
        assert ask(ours, port, "SELECT 1", timeout=5).rows == (("NaN",),)

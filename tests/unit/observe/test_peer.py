"""Questions without TLS, on this host: to whom, and where a server takes TLS alone."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from lab.observe.account import Account
from lab.observe.peer import owner_of
from lab.observe.sql import KeptConnections, ask
from tests.contract.hypervisor_site import free_port
from tests.security.guest import signed
from tests.support.mariadb_server import NoServer, Server, server

PASSWORD = "of-a-lab"
CIPHER = "SHOW SESSION STATUS LIKE 'Ssl_cipher'"


@pytest.fixture
def db(tmp_path: Path) -> Iterator[tuple[Server, Account, int]]:
    """A server with a certificate, its account, and its port."""
    made, port = signed(tmp_path), free_port()
    options = (
        "--skip-networking=0", f"--port={port}", "--bind-address=127.0.0.1",
        f"--ssl-cert={made.chain}", f"--ssl-key={made.chain}",
    )  # fmt: skip
    try:
        with server(options) as running:
            by = f"IDENTIFIED VIA mysql_native_password USING PASSWORD('{PASSWORD}')"
            running.ask(f"CREATE USER lab@'%' {by}", "GRANT ALL ON *.* TO lab@'%'")
            yield running, Account("lab", PASSWORD, ca=str(made.ca), peer=os.geteuid()), port
    except NoServer as why:
        pytest.skip(str(why))


def cipher(account: Account, port: int) -> str:
    ((_, found),) = ask(account, port, CIPHER, timeout=20).rows
    return str(found)


def test_a_server_is_asked_without_tls_unless_it_takes_nothing_else(
    db: tuple[Server, Account, int],
) -> None:
    """Protects views of labs whose users have set their servers, or the account, to TLS alone."""
    running, account, port = db
    assert cipher(account, port) == ""
    assert cipher(replace(account, peer=None), port) != ""
    running.ask("ALTER USER lab@'%' REQUIRE SSL")
    assert cipher(account, port) != ""
    running.ask("ALTER USER lab@'%' REQUIRE NONE", "SET GLOBAL require_secure_transport = ON")
    assert cipher(account, port) != ""
    kept = KeptConnections()
    for _ in range(2):
        ((_, found),) = kept(account, port, [CIPHER], timeout=20)[0].rows
        assert found
    kept.close()


def test_who_is_at_the_other_end(tmp_path: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        with socket.create_connection(listener.getsockname()) as connected:
            accepted, _ = listener.accept()
            assert owner_of(connected) == os.geteuid()
            accepted.close()
            assert owner_of(connected, path=tmp_path / "absent") is None
        if os.geteuid() == 0:
            _of_another(listener)


def _of_another(listener: socket.socket) -> None:
    """A program of another user accepts."""
    nobody = 65534
    child = os.fork()
    if not child:
        os.setuid(nobody)
        accepted, _ = listener.accept()
        accepted.sendall(b"x")
        accepted.recv(1)
        os._exit(0)
    with socket.create_connection(listener.getsockname()) as connected:
        connected.recv(1)
        assert owner_of(connected) == nobody
    os.waitpid(child, 0)

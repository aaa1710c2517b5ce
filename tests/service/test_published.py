"""A service whose databases others can reach: what it tells them, and what they make of it."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path
from typing import Any

import pytest

from lab.cli.backend.remote import RemoteSession
from lab.client import Client
from lab.client.ca import check_pem, keep
from lab.errors import LabError
from lab.lifecycle.core.environment import environment
from lab.names import EVERYWHERE
from lab.observe.account import Account
from lab.observe.ways import Rows
from lab.progress import ignore
from tests.support.lifecycle_world import make_lab
from tests.support.serve_world import site


def test_a_client_can_check_the_databases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects passwords on the way: the reported address leads to the lab, by TLS."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    asked: list[Account] = []

    def ask(account: Account, port: int, statement: str, **_: Any) -> Rows:
        asked.append(account)
        return Rows(("a",), ((port, statement),), 1)

    with site(tmp_path, publish=EVERYWHERE) as here:
        login = here.make("shop")["connection"]
        assert login["dsn"].endswith("/?ssl-mode=VERIFY_IDENTITY")
        assert "@localhost:" in login["dsn"]
        answer = here.ask("GET", login["ssl_ca"], token=here.token(scope="read"))
        assert answer.headers["content-type"].startswith("application/pem-certificate-chain")
        assert answer.text == here.service.core.settings.home.ca.read_text()
        assert "PRIVATE" not in answer.text
        assert here.client.get(login["ssl_ca"]).status_code == 401

        with Client(str(here.client.base_url), here.admin) as client:
            assert client.ca() == answer.text
            session = RemoteSession(client, ignore, ask)
            file = session.ca()
            assert file.read_text() == answer.text
            assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
            variables = environment(session.lab("shop"))
            assert variables["LAB_SSL_CA"] == str(file)
            assert variables["LAB_SSL_MODE"] == "VERIFY_IDENTITY"
            file.write_text("half of it")  # a command was killed
            assert session.query("shop", None, "SELECT 1").rows[0][1] == "SELECT 1"
            assert file.read_text() == answer.text
        assert (asked[0].host, asked[0].ca, asked[0].verify) == ("localhost", str(file), True)


def test_on_the_loopback_nothing_changes(tmp_path: Path) -> None:
    with site(tmp_path) as here:
        with here.service.core.contexts.use() as ctx:
            make_lab(ctx)
        login = here.ask("GET", "/v1/labs/shop").json()["connection"]
        assert login["ssl_ca"] == ""
        assert login["dsn"].endswith("/")
        # It is there all the same: servers have certificates that it signed.
        assert here.ask("GET", "/v1/host/ca").status_code == 200


def test_a_machine_without_a_cache(tmp_path: Path) -> None:
    """Protects CI machines: that their user may write nowhere costs no lab that was just made."""
    (tmp_path / "file").touch()
    (tmp_path / "tmp").mkdir()
    env = {"XDG_CACHE_HOME": str(tmp_path / "file"), "TMPDIR": str(tmp_path / "tmp")}
    kept = keep("the certificate", env)
    assert kept.read_text() == "the certificate"
    assert kept.is_relative_to(tmp_path / "tmp")
    assert stat.S_IMODE(kept.parent.stat().st_mode) == 0o700


def test_certificates_that_are_not_used_any_more_are_removed(tmp_path: Path) -> None:
    """Protects the user's cache: each service that ever was has a certificate of its own."""
    env = {"XDG_CACHE_HOME": str(tmp_path)}
    gone, used, recent = (keep(f"certificate {n}", env) for n in range(3))
    old = time.time() - 31 * 86400
    for path in (gone, used):
        os.utime(path, (old, old))
    assert keep("certificate 1", env) == used
    new = keep("certificate 3", env)
    assert sorted(new.parent.iterdir()) == sorted((used, recent, new))


def test_what_is_no_certificate_is_not_kept() -> None:
    for data in (None, "", "<html>", "-----BEGIN CERTIFICATE-----" + "A" * (1 << 20)):
        with pytest.raises(LabError, match="not a certificate"):
            check_pem(data)

"""SQL that other hosts can reach: by TLS only, from servers that can be checked."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pymysql
import pytest

from lab.guest import authority
from tests.e2e.e2e_site import PXC, Site

pytestmark = pytest.mark.e2e


@pytest.fixture
def address() -> str:
    """An address of this host that is not the loopback's."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # no packet is sent: it only takes a route
        except OSError:
            pytest.skip("this host has no other address than the loopback's")
        return str(probe.getsockname()[0])


def login(view: Mapping[str, Any], host: str, **tls: Any) -> str:
    """What cipher a client gets that logs in at the first node."""
    port = view["nodes"][0]["sql_port"]
    with (
        pymysql.connect(
            host=host, port=port, user="lab", password=view["password"], **tls
        ) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute("SHOW STATUS LIKE 'Ssl_cipher'")
        return str(cursor.fetchall()[0][1])


def test_a_published_lab_takes_tls_from_who_can_check_it(
    site: Site, address: str, tmp_path: Path
) -> None:
    """Protects passwords and data on the way, and clients from a server that is another."""
    other = tmp_path / "other.pem"
    other.write_bytes(authority.make("lab").certificate)
    path = site.lab("ca", "--path").stdout.strip()
    assert Path(path).read_text() == site.lab("ca").stdout
    published = replace(site, settings={**site.settings, "LAB_PUBLISH": address})
    with published.up(*PXC, "--nodes", "3", "--name", site.name("open")) as view:
        assert view["ssl_ca"] == path
        assert f"@{address}:" in view["dsn"]
        assert login(view, address, ssl_ca=path, ssl_verify_identity=True)
        with pytest.raises(pymysql.err.OperationalError, match="verify failed"):
            login(view, address, ssl_ca=str(other), ssl_verify_identity=True)
        with pytest.raises(pymysql.err.OperationalError, match="denied"):
            login(view, address, ssl_disabled=True)
        with pytest.raises(pymysql.err.OperationalError, match="refused"):
            login(view, "127.0.0.1")
        # Without the setting: the lab keeps its address.
        assert site.sql(view["name"], "n2", "SELECT 1") == [[1]]
        if shutil.which("mariadb"):
            assert "42" in site.lab("sql", view["name"], stdin="SELECT 6 * 7;").stdout
            refused = subprocess.run(
                ["mariadb", f"--ssl-ca={other}", "--ssl-verify-server-cert", "-h", address,
                 "-P", str(view["nodes"][0]["sql_port"]), "-u", "lab", "-e", "SELECT 1"],
                env={"MYSQL_PWD": view["password"]}, capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert refused.returncode
            assert "certificate" in refused.stderr

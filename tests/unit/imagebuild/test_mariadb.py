"""The MariaDB image: what of Debian's package it relies on."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROVISION = (ROOT / "images/mariadb/provision").read_text(encoding="utf-8")
DROP_IN = PROVISION.partition("lab.conf <<'EOF'\n")[2].partition("EOF\n")[0]


def settings(*units: str) -> dict[str, list[str]]:
    """What systemd makes of a unit and its drop-ins: an empty value forgets those before it."""
    found: dict[str, list[str]] = {}
    for unit in units:
        for line in unit.splitlines():
            name, equals, value = line.partition("=")
            if not equals or line.startswith("#"):
                continue
            found[name] = [*found.get(name, []), value] if value else []
    return found


@pytest.mark.parametrize(
    "packaged",
    [
        (
            "EnvironmentFile=-/run/mysqld/wsrep-start-position\n"
            "ExecStartPre=+/bin/sh -c galera_recovery\n"
            "ExecStart=/usr/sbin/mariadbd $MYSQLD_OPTS $_WSREP_NEW_CLUSTER $_WSREP_START_POSITION\n"
        ),
        (
            "EnvironmentFile=-/run/mariadb-wsrep-new-cluster\n"
            "ExecStart=/bin/sh -c `galera_recovery` mariadbd $_WSREP_NEW_CLUSTER $VAR\n"
        ),
    ],
    ids=["11.8.6", "11.8.9"],
)
def test_the_server_starts_from_the_position_of_recover(packaged: str) -> None:
    """Protects from a cluster that is never bootstrapped, and from a second start of the server."""
    found = settings(packaged, DROP_IN)
    assert found["EnvironmentFile"] == ["-/run/mysqld/wsrep-start-position", "-/run/lab-source"]
    assert found["ExecStart"] == ["/usr/sbin/mariadbd $_WSREP_START_POSITION $LAB_SOURCE"]
    assert found["ExecStartPre"] == ["+/usr/lib/lab/recover"]
    recover = (ROOT / "images/guest/usr/lib/lab/recover").read_text(encoding="utf-8")
    assert '"_WSREP_START_POSITION=' in recover
    assert ">/run/mysqld/wsrep-start-position" in recover

"""What differs between the dialects of servers, in the SQL and the options that blueprints share.

Which family of engines has which dialect is in ``images/engines.toml``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lab.blueprints import Engine
from lab.config.enginefile import DialectName, family_of


@dataclass(frozen=True)
class Dialect:
    """The SQL and the options of servers."""

    renew: str
    """The statement with which a server reads its certificate and key again."""
    by_native_hash: str
    """What sets an account's password in a statement, by the ``{hash}`` of the older plugin."""
    gtid_domains: bool
    """Whether GTIDs have domains, one for each history."""
    unlogged: str
    """The lines of an option file without which a server has a binary log."""
    initial: Mapping[str, frozenset[str]]
    """Options whose values a server keeps from when its data directory was initialised, in the
    image, each with the values that it starts with."""


DIALECTS: Mapping[DialectName, Dialect] = {
    "mariadb": Dialect(
        renew="FLUSH LOCAL SSL",
        by_native_hash="IDENTIFIED VIA mysql_native_password USING '{hash}'",
        gtid_domains=True,
        unlogged="",
        initial={
            "lower_case_table_names": frozenset({"0", "1", "2"}),
            "innodb_page_size": frozenset({"16384", "16k"}),
        },
    ),
    "mysql": Dialect(
        renew="ALTER INSTANCE RELOAD TLS",
        by_native_hash="IDENTIFIED WITH mysql_native_password AS '{hash}'",
        gtid_domains=False,
        unlogged="\n[mysqld]\nskip_log_bin\n",
        initial={
            "lower_case_table_names": frozenset({"0"}),
            "innodb_page_size": frozenset({"16384", "16k"}),
        },
    ),
}


def dialect_of(engine: Engine) -> Dialect:
    """The dialect of the server in an image."""
    return DIALECTS[family_of(engine.name).dialect]

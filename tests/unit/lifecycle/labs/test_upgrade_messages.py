"""Options that servers do not have as before, by what real ones log of them."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lab.errors import CommandFailed
from lab.lifecycle.labs.upgrade_messages import option_names, options_in
from lab.run import run
from tests.support import mariadb_server, mysql_server
from tests.support.mariadb_server import NoServer

OPTIONS = """\
[mysqld]
# innodb_log_files_in_group = 3
loose-nosuch = 1
max_connections=0
skip-log-bin
"""


def log(program: list[str], text: str, *words: str) -> list[str]:
    """What a server logs that only checks an option file."""
    with tempfile.TemporaryDirectory(prefix="lab-") as path:
        (Path(path) / "cnf").write_text(text)
        argv = [*program, f"--defaults-file={path}/cnf", f"--datadir={path}", *words]
        try:
            return run(argv, timeout=60).stderr.splitlines()
        except CommandFailed as failed:
            return failed.stderr.splitlines()


def mariadb(text: str) -> list[str]:
    return log([str(mariadb_server.daemon())], text, "--help", "--verbose", "--user=root")


def mysql(text: str) -> list[str]:
    root = mysql_server.kept_root()
    return log(
        mysql_server.program(root, "usr/sbin/mysqld"), f"{text}\nsecure_file_priv = ''\n",
        "--validate-config", "--user=root", "--log-error-verbosity=2",
        f"--lc-messages-dir={root}/usr/share/mysql",
    )  # fmt: skip


MORE: dict[Callable[[str], list[str]], tuple[str, tuple[str, str]]] = {
    mariadb: ("innodb_log_files_in_group=2", ("innodb_log_files_in_group", "ignored")),
    mysql: ("sync_relay_log_info=5", ("sync_relay_log_info", "deprecated")),
}


@pytest.mark.parametrize("server", MORE)
def test_what_real_servers_log(server: Callable[[str], list[str]]) -> None:
    line, expected = MORE[server]
    text = f"{OPTIONS}{line}\n"
    try:
        said = server(text)
        wrong = server(f"{text}default_nosuch=x\n")
        off = server(f"{text}skip-nosuch\n")
    except NoServer as reason:
        pytest.skip(str(reason))
    found = options_in(said, option_names(text))
    states = {(one.name, one.state) for one in found}
    assert states == {("nosuch", "unknown"), ("max_connections", "adjusted"), expected}
    assert all(one.said in said for one in found)
    assert options_in(said, ()) == ()
    for lines, name in ((wrong, "default_nosuch"), (off, "nosuch")):
        assert [(one.name, one.state) for one in options_in(lines, ())] == [(name, "unknown")]


def test_names_of_an_option_file() -> None:
    assert option_names(OPTIONS) == {"nosuch", "max_connections", "log_bin"}
    assert option_names("[mysqld]\n\n;x\n!include /y\n") == set()


def test_words_of_other_versions() -> None:
    """As their sources have them (mysqld.cc of MariaDB 10.11, MySQL's manual of 8.0)."""
    for line, expected in {
        "[Warning] --innodb-flush-method is deprecated and will be removed": "innodb_flush_method",
        "[Warning] [MY-011069] [Server] The syntax '--expire-logs-days' is deprecated and will be"
        " removed. Please use binlog_expire_logs_seconds instead.": "expire_logs_days",
        "[Warning] 'big-tables' is deprecated and will be removed": "big_tables",
    }.items():
        assert [one.name for one in options_in([line], {expected})] == [expected]


def test_a_long_line_takes_no_time() -> None:
    """Protects an upgrade from a guest whose log is made to be searched for hours."""
    began = time.process_time()
    assert options_in(["[ERROR] " + "option 'a': " * 40_000], ["a"]) == ()
    assert time.process_time() - began < 10

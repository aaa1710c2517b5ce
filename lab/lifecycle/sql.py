"""SQL from the host, through the published ports."""

from __future__ import annotations

import os
import secrets
import shutil
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pymysql
import pymysql.cursors

from lab.errors import CommandFailed, HostUnfit, NotReady
from lab.lifecycle.context import Context
from lab.lifecycle.views import Rows
from lab.names import Owner

_QUERY_SECONDS = 600.0


@dataclass(frozen=True)
class Account:
    """Who logs in at the host's loopback."""

    user: str
    password: str = field(repr=False)
    host: str = "127.0.0.1"


def ask(account: Account, port: int, statement: str, *, timeout: float) -> Rows:
    """Run one statement; ``timeout`` in seconds holds for connecting and for each answer.

    Raises NotReady if the server does not answer, CommandFailed if it refuses the statement.
    """
    try:
        connection = pymysql.connect(
            host=account.host,
            port=port,
            user=account.user,
            password=account.password,
            connect_timeout=max(1, round(timeout)),
            read_timeout=timeout,
            write_timeout=timeout,
            autocommit=True,
            ssl_disabled=True,  # the loopback; the server's certificate is for others
        )
    except (pymysql.err.MySQLError, OSError) as error:
        raise NotReady(f"no SQL at {account.host}:{port}", details=[_text(error)]) from None
    try:
        with connection.cursor(pymysql.cursors.Cursor) as cursor:
            affected = cursor.execute(statement)
            columns = tuple(column[0] for column in cursor.description or ())
            return Rows(columns, tuple(cursor.fetchall()), affected)
    except pymysql.err.OperationalError as error:
        if error.args and error.args[0] in (2006, 2013):
            raise NotReady("the server closed the connection", details=[_text(error)]) from None
        raise CommandFailed(["SQL"], _code(error), stderr=_text(error)) from None
    except (pymysql.err.MySQLError, OSError) as error:
        raise CommandFailed(["SQL"], _code(error), stderr=_text(error)) from None
    finally:
        with suppress(pymysql.err.MySQLError, OSError):
            connection.close()


def query(ctx: Context, name: str, node: str | None, statement: str) -> Rows:
    """Run one statement on a node of a lab (the first by default), as the lab's user.

    Raises NotFound, NotReady or CommandFailed.
    """
    account, port = _login(ctx, name, node)
    return ask(account, port, statement, timeout=_QUERY_SECONDS)


@dataclass(frozen=True)
class Client:
    """The client program for one node; ``argv`` works within the ``with`` block only.

    The password is in a file that only the user can read, never in ``argv``.
    """

    argv: list[str]
    options: Path
    content: str = field(repr=False)

    def __enter__(self) -> Client:
        fd = os.open(self.options, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(self.content)
        return self

    def __exit__(self, *_: object) -> None:
        self.options.unlink(missing_ok=True)


def client(ctx: Context, name: str, node: str | None) -> Client:
    """The client program that opens a session on a node; raises HostUnfit if there is none."""
    account, port = _login(ctx, name, node)
    program = next((found for p in ("mariadb", "mysql") if (found := shutil.which(p))), None)
    if program is None:
        raise HostUnfit(
            "no mariadb or mysql client is installed",
            hint="install mariadb-client, or give the statement with -e",
        )
    options = ctx.home.private(Owner("lab", name)) / f"client-{secrets.token_hex(6)}.cnf"
    content = (
        f"[client]\nhost={account.host}\nport={port}\nprotocol=tcp\n"
        f"user={account.user}\npassword={account.password}\n"
    )
    return Client([program, f"--defaults-extra-file={options}"], options, content)


def _login(ctx: Context, name: str, node: str | None) -> tuple[Account, int]:
    nodes = ctx.store.nodes.of(name)
    record = ctx.store.labs.get(name)
    if not nodes or not record.user:
        raise NotReady(f"the lab {name} is {record.state}: it has no account yet")
    chosen = nodes[0] if node is None else ctx.store.nodes.get(name, node)
    return Account(record.user, record.password), chosen.sql_port


def _text(error: Exception) -> str:
    return str(error.args[1]) if len(error.args) > 1 else str(error)


def _code(error: Exception) -> int:
    return error.args[0] if error.args and isinstance(error.args[0], int) else 1

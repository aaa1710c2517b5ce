"""SQL from the host, through the published ports."""

from __future__ import annotations

import ssl
import struct
from contextlib import suppress
from dataclasses import dataclass, field

import pymysql
import pymysql.cursors

from lab.errors import CommandFailed, NotReady
from lab.lifecycle.views import Rows
from lab.names import LOOPBACK

_FAILURES = (pymysql.err.MySQLError, OSError, struct.error, IndexError, ValueError)
"""What the client raises: the last three for an answer that is cut, or is none of a server."""


@dataclass(frozen=True)
class Account:
    """Who logs in, and where.

    ``ca``: a file with the certificate of the authority that the server's is to be signed by;
    empty: no TLS. ``verify``: check that certificate, and that it is for ``host``.
    """

    user: str
    password: str = field(repr=False)
    host: str = LOOPBACK
    ca: str = ""
    verify: bool = True


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
            connect_timeout=timeout,
            read_timeout=timeout,
            write_timeout=timeout,
            autocommit=True,
            ssl=_tls(account) if account.ca else None,
            ssl_disabled=not account.ca,
        )
    except _FAILURES as error:
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
    except _FAILURES as error:
        raise CommandFailed(["SQL"], _code(error), stderr=_text(error)) from None
    finally:
        with suppress(pymysql.err.MySQLError, OSError):
            connection.close()


def _tls(account: Account) -> ssl.SSLContext:
    """What checks the server; raises OSError if there is no authority in the file."""
    context = ssl.create_default_context(cafile=account.ca)
    if not account.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _text(error: Exception) -> str:
    return str(error.args[1]) if len(error.args) > 1 else str(error)


def _code(error: Exception) -> int:
    return error.args[0] if error.args and isinstance(error.args[0], int) else 1

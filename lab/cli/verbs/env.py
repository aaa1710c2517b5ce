"""``lab env``."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from ipaddress import ip_address
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer

from lab.cli import flags
from lab.cli.app import app_of, pick
from lab.cli.manual import manual
from lab.cli.terminal.output import as_json, as_yaml
from lab.config.enginefile import family_of
from lab.errors import Conflict, InvalidSpec, NotFound
from lab.lifecycle.core.environment import environment
from lab.lifecycle.labs.conditions import why_no_writes
from lab.suggest import did_you_mean

if TYPE_CHECKING:
    from lab.views.labs import LabView, NodeView

_LONGEST_NAME = 64
_BARE = re.compile(r"[A-Za-z0-9_@%+=:,./?&-]*")


def exports(variables: Mapping[str, str]) -> str:
    """Lines for a shell to ``eval``."""
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())


def dotenv(variables: Mapping[str, str]) -> str:
    """Lines of a .env file: unquoted where possible, as some readers support no quotes."""
    return "".join(f"{name}={_dotenv_value(value)}\n" for name, value in variables.items())


def jdbc(view: LabView, node: NodeView, database: str = "") -> str:
    """The URL for Connector/J of MariaDB, or that of MySQL for other engines."""
    family, options = family_of(view.engine), {"user": view.user}
    if view.password:
        options["password"] = view.password
    query = _query(options)
    if view.ssl_ca:  # MySQL's reads certificates from a key store, which is for users to make
        query += "&" + family.jdbc_tls.format(ca=_value(view.ssl_ca))
    place = f"{node.address}/{quote(database, safe='')}"
    return f"jdbc:{family.dialect}://{place}?{query}"


def go(view: LabView, node: NodeView, database: str = "") -> str:
    """The DSN for go-sql-driver/mysql."""
    tls = "?tls=true" if view.ssl_ca else ""  # trusts the system's certificates and SSL_CERT_FILE
    login = f"{view.user}:{view.password}" if view.password else view.user
    return f"{login}@tcp({node.address})/{quote(database, safe='')}{tls}"


def sqlalchemy(view: LabView, node: NodeView, database: str = "") -> str:
    """The URL for SQLAlchemy with PyMySQL."""
    dialect = family_of(view.engine).dialect
    # Those that its dialects know (dialects/mysql/mysqldb.py); others make PyMySQL forget ssl_ca.
    tls = {"ssl_ca": view.ssl_ca, "ssl_check_hostname": "true"} if view.ssl_ca else {}
    return _url(f"{dialect}+pymysql", view, node, database, tls)


def node_js(view: LabView, node: NodeView, database: str = "") -> str:
    """The URL for mysql2 of Node.js, and so for what is built on it.

    Its options are JSON. Certificates are not read from files: those of NODE_EXTRA_CA_CERTS are
    trusted besides Node's own. It compares the names in certificates with a host's name only, not
    with an address (mysql2 3: ``startTLS`` passes no ``servername`` then).
    """
    named = "" if _is_address(node.host) else ',"verifyIdentity":true'
    tls = {"ssl": f'{{"rejectUnauthorized":true{named}}}'} if view.ssl_ca else {}
    return _url("mysql", view, node, database, tls)


def rails(view: LabView, node: NodeView, database: str = "") -> str:
    """The DATABASE_URL for Rails' adapter mysql2."""
    tls = {"sslca": view.ssl_ca, "ssl_mode": "verify_identity"} if view.ssl_ca else {}
    return _url("mysql2", view, node, database, tls)


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _url(
    scheme: str, view: LabView, node: NodeView, database: str, options: Mapping[str, str]
) -> str:
    query = f"?{_query(options)}" if options else ""
    return f"{scheme}://{_login(view)}@{node.address}/{quote(database, safe='')}{query}"


def _login(view: LabView) -> str:
    password = f":{quote(view.password, safe='')}" if view.password else ""
    return quote(view.user, safe="") + password


_VARIABLES: Mapping[str, Callable[[Mapping[str, str]], str]] = {
    "shell": exports,
    "dotenv": dotenv,
    "json": as_json,
    "yaml": as_yaml,
}
_URLS: Mapping[str, Callable[[LabView, NodeView, str], str]] = {
    "jdbc": jdbc,
    "go": go,
    "sqlalchemy": sqlalchemy,
    "node": node_js,
    "rails": rails,
}
_FORMATS = (*_VARIABLES, *_URLS)


@manual(
    'eval "$(lab env shop)"',
    "lab env shop --format dotenv > .env",
    "lab env shop --format jdbc --node n2 --database crm",
    "lab env shop --format node --account app",
)
def env(
    ctx: typer.Context,
    *,
    name: flags.Name = "",
    node: flags.Node = "",
    how: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="FORMAT",
            autocompletion=lambda incomplete: [f for f in _FORMATS if f.startswith(incomplete)],
            help=f"Variables as {', '.join(_VARIABLES)}; or a URL for {', '.join(_URLS)}.",
        ),
    ] = "shell",
    database: Annotated[
        str,
        typer.Option(
            "-D", "--database", metavar="NAME", show_default=False, help="The default database."
        ),
    ] = "",
    account: Annotated[
        str,
        typer.Option(
            "--account",
            metavar="NAME",
            show_default=False,
            help="An account of `lab up --user`, with the password in LAB_ACCOUNT_PASSWORD.",
        ),
    ] = "",
) -> None:
    """Print how to connect to a lab: variables, or a URL.

    Of accounts that `lab up --user` made only digests of passwords are kept: the password of
    `--account` is read from the variable LAB_ACCOUNT_PASSWORD, and left out if that is not set.
    """
    app = app_of(ctx)
    if how not in _FORMATS:
        hint = did_you_mean(how, _FORMATS, otherwise=f"one of {', '.join(_FORMATS)}")
        raise InvalidSpec(f"{how!r} is not a format of lab env", hint=hint)
    with app.open() as session:
        view = session.lab(pick(session, name))
    if view.state == "pooled":
        raise Conflict(f"the lab {view.name} waits to be taken: nobody uses it yet")
    if not database.isprintable() or len(database) > _LONGEST_NAME:
        raise InvalidSpec(f"--database: {database[:_LONGEST_NAME]!r} is not a name")
    if account:
        view = _as(view, account)
        if not view.password:
            app.say(
                f"the password of {account} is not known here, only its digest: set"
                " LAB_ACCOUNT_PASSWORD to have it in the output"
            )
    if not node and (why := why_no_writes(view)):
        app.say(f"note: {why}; `lab status {view.name}` shows its nodes")
    if view.unencrypted:
        app.say(f"note: connections are not encrypted: {view.unencrypted}")
    entry = _node(view, node) if node else view.entry
    variables = environment(view, entry, database)
    if how in _VARIABLES:
        sys.stdout.write(_VARIABLES[how](variables))
    elif entry is not None:
        sys.stdout.write(_URLS[how](view, entry, database) + "\n")


def _as(view: LabView, account: str) -> LabView:
    """The lab as one of its further accounts sees it; raises NotFound."""
    accounts = view.options.get("user", ())
    known = (
        [str(one).partition("@")[0] for one in accounts]
        if isinstance(accounts, list | tuple)
        else []
    )
    if account not in known:
        raise NotFound(
            f"the lab {view.name} has no account {account}",
            hint=f"its accounts: {', '.join(known)}"
            if known
            else "`lab up --user` gives a lab further accounts",
        )
    password = os.environ.get("LAB_ACCOUNT_PASSWORD", "")
    changed = replace(view, user=account, password=password)
    _, _, place = view.dsn.rpartition("@")
    return replace(changed, dsn=f"mysql://{_login(changed)}@{place}")


def _node(view: LabView, name: str) -> NodeView:
    found = next((n for n in view.nodes if name in (n.name, n.name.removeprefix("n"))), None)
    if found is None or not found.sql_port:
        raise NotFound(
            f"the lab {view.name} has no node {name} with SQL",
            hint=f"its nodes are {', '.join(n.name for n in view.nodes if n.sql_port)}",
        )
    return found


def _query(options: Mapping[str, str]) -> str:
    return "&".join(f"{key}={_value(value)}" for key, value in options.items())


def _value(text: str) -> str:
    return quote(text, safe="/")


def _dotenv_value(value: str) -> str:
    if _BARE.fullmatch(value):
        return value
    escaped = value.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
    return f"'{escaped}'"

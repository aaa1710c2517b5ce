"""``lab env``, and the environment that ``lab run`` gives to a command."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer

from lab.cli import flags
from lab.cli.app import app_of, pick
from lab.cli.manual import manual
from lab.cli.terminal.output import as_json, as_yaml
from lab.errors import InvalidSpec, NotFound
from lab.lifecycle.core.conditions import why_no_writes
from lab.lifecycle.core.views import SSL_MODE
from lab.suggest import did_you_mean

if TYPE_CHECKING:
    from lab.lifecycle.core.views import LabView, NodeView

_BARE = re.compile(r"[A-Za-z0-9_@%+=:,./?&-]*")


def environment(view: LabView, entry: NodeView | None = None) -> dict[str, str]:
    """The variables for a program that uses a lab, with the address of its first endpoint.

    Of an endpoint the first node that is not stopped: others may listen at a stopped one's port.
    ``entry``: the node instead of that endpoint's. ``LAB_DSN_RO`` is there if the lab has an
    endpoint for reads, ``LAB_DSN_N1`` and so on where it has several servers, whose
    addresses and ports are in ``LAB_HOSTS`` and ``LAB_PORTS``. The MYSQL_ variables are those that
    the mysql and mariadb clients read. ``LAB_SSL_`` ones are there if the lab takes TLS.
    Raises NotFound if the lab has no nodes, or no account yet.
    """
    first = entry or view.entry
    if first is None:
        raise NotFound(f"the lab {view.name} has no nodes", hint="`lab down` removes the rest")
    if not view.user:
        raise NotFound(
            f"the lab {view.name} is {view.state}: its ports and its password are unknown",
            hint=f"`lab status {view.name}` shows its nodes, `lab down {view.name}` removes it",
        )
    # A proxy is none of them: it has a port for reads of its own.
    servers = [node for node in view.nodes if node.sql_port and "ro" not in node.ports]
    tls = {"LAB_SSL_CA": view.ssl_ca, "LAB_SSL_MODE": SSL_MODE} if view.ssl_ca else {}
    more = {f"LAB_DSN_{node.name.upper()}": _dsn(view, node) for node in servers[1:] and servers}
    if reads := view.address("ro"):
        more = {"LAB_DSN_RO": _dsn_at(view, reads), **more}
    return {
        "LAB_NAME": view.name,
        "LAB_DSN": _dsn(view, first),
        **more,
        "LAB_HOST": first.host,
        "LAB_PORT": str(first.sql_port),
        "LAB_USER": view.user,
        "LAB_PASSWORD": view.password,
        "LAB_HOSTS": ",".join(node.host for node in servers),
        "LAB_PORTS": ",".join(str(node.sql_port) for node in servers),
        "MYSQL_HOST": first.host,
        "MYSQL_TCP_PORT": str(first.sql_port),
        "MYSQL_PWD": view.password,
        **tls,
    }


def exports(variables: Mapping[str, str]) -> str:
    """Lines for a shell to ``eval``."""
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())


def dotenv(variables: Mapping[str, str]) -> str:
    """Lines of a .env file: unquoted where possible, as some readers support no quotes."""
    return "".join(f"{name}={_dotenv_value(value)}\n" for name, value in variables.items())


def jdbc(view: LabView, node: NodeView) -> str:
    """The URL for Connector/J of MariaDB, or that of MySQL for other engines."""
    mariadb = view.engine == "mariadb"
    options = {"user": view.user, "password": view.password}
    if view.ssl_ca and mariadb:
        options |= {"sslMode": "verify-full", "serverSslCert": view.ssl_ca}
    elif view.ssl_ca:  # it reads certificates from a key store, which is for users to make
        options |= {"sslMode": SSL_MODE}
    return f"jdbc:{'mariadb' if mariadb else 'mysql'}://{node.address}/?{_query(options)}"


def go(view: LabView, node: NodeView) -> str:
    """The DSN for go-sql-driver/mysql."""
    tls = "?tls=true" if view.ssl_ca else ""  # trusts the system's certificates and SSL_CERT_FILE
    return f"{view.user}:{view.password}@tcp({node.address})/{tls}"


def sqlalchemy(view: LabView, node: NodeView) -> str:
    """The URL for SQLAlchemy with PyMySQL."""
    dialect = "mariadb" if view.engine == "mariadb" else "mysql"
    # Those that its dialects know (dialects/mysql/mysqldb.py); others make PyMySQL forget ssl_ca.
    tls = {"ssl_ca": view.ssl_ca, "ssl_check_hostname": "true"} if view.ssl_ca else {}
    query = f"?{_query(tls)}" if tls else ""
    login = f"{quote(view.user, safe='')}:{quote(view.password, safe='')}"
    return f"{dialect}+pymysql://{login}@{node.address}/{query}"


_VARIABLES: Mapping[str, Callable[[Mapping[str, str]], str]] = {
    "shell": exports,
    "dotenv": dotenv,
    "json": as_json,
    "yaml": as_yaml,
}
_URLS: Mapping[str, Callable[[LabView, NodeView], str]] = {
    "jdbc": jdbc,
    "go": go,
    "sqlalchemy": sqlalchemy,
}
_FORMATS = (*_VARIABLES, *_URLS)


@manual(
    'eval "$(lab env shop)"',
    "lab env shop --format dotenv > .env",
    "lab env shop --format jdbc --node n2",
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
) -> None:
    """Print how to connect to a lab: variables, or a URL."""
    app = app_of(ctx)
    if how not in _FORMATS:
        hint = did_you_mean(how, _FORMATS, otherwise=f"one of {', '.join(_FORMATS)}")
        raise InvalidSpec(f"{how!r} is not a format of lab env", hint=hint)
    with app.open() as session:
        view = session.lab(pick(session, name))
    if not node and (why := why_no_writes(view)):
        app.say(f"note: {why}; `lab status {view.name}` shows its nodes")
    entry = _node(view, node) if node else view.entry
    variables = environment(view, entry)
    if how in _VARIABLES:
        sys.stdout.write(_VARIABLES[how](variables))
    elif entry is not None:
        sys.stdout.write(_URLS[how](view, entry) + "\n")


def _node(view: LabView, name: str) -> NodeView:
    found = next((n for n in view.nodes if name in (n.name, n.name.removeprefix("n"))), None)
    if found is None or not found.sql_port:
        raise NotFound(
            f"the lab {view.name} has no node {name} with SQL",
            hint=f"its nodes are {', '.join(n.name for n in view.nodes if n.sql_port)}",
        )
    return found


def _dsn(view: LabView, node: NodeView) -> str:
    """The lab's DSN, for one of its nodes."""
    return view.dsn if node == view.entry else _dsn_at(view, node.address)


def _dsn_at(view: LabView, address: str) -> str:
    head, _, rest = view.dsn.rpartition("@")
    _, slash, query = rest.partition("/")
    return f"{head}@{address}{slash}{query}"


def _query(options: Mapping[str, str]) -> str:
    return "&".join(f"{key}={quote(value, safe='/')}" for key, value in options.items())


def _dotenv_value(value: str) -> str:
    if _BARE.fullmatch(value):
        return value
    escaped = value.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
    return f"'{escaped}'"

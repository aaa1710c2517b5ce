"""``lab env``, and the environment that ``lab run`` gives to a command."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from lab.cli import flags
from lab.cli.app import app_of, pick
from lab.cli.manual import manual
from lab.cli.terminal.output import emit, parse_format
from lab.errors import InvalidSpec, NotFound
from lab.lifecycle.core.views import SSL_MODE

if TYPE_CHECKING:
    from lab.lifecycle.core.views import LabView

_BARE = re.compile(r"[A-Za-z0-9_@%+=:,./?&-]*")


def environment(view: LabView) -> dict[str, str]:
    """The variables for a program that uses a lab, with the address of its first endpoint.

    ``LAB_HOSTS`` and ``LAB_PORTS`` have the addresses and ports of all nodes with SQL. The MYSQL_
    variables are those that the mysql and mariadb clients read. ``LAB_SSL_`` ones are there if
    the lab takes TLS.
    """
    first = view.entry
    if first is None:
        raise NotFound(f"lab {view.name} has no nodes", hint="`lab down` removes the rest")
    if not view.user:
        raise NotFound(
            f"lab {view.name} is {view.state}: its ports and its password are unknown",
            hint=f"`lab status {view.name}` shows its nodes, `lab down {view.name}` removes it",
        )
    servers = [node for node in view.nodes if node.sql_port]
    tls = {"LAB_SSL_CA": view.ssl_ca, "LAB_SSL_MODE": SSL_MODE} if view.ssl_ca else {}
    return {
        "LAB_NAME": view.name,
        "LAB_DSN": view.dsn,
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


@manual('eval "$(lab env shop)"', "lab env shop --dotenv > .env", "lab env -o json")
def env(
    ctx: typer.Context,
    *,
    name: flags.Name = "",
    as_dotenv: Annotated[
        bool, typer.Option("--dotenv", help="Print lines of a .env file.")
    ] = False,
    output: flags.Output = "table",
) -> None:
    """Print the addresses and the account of a lab as shell exports."""
    app = app_of(ctx)
    how = parse_format(output)
    if as_dotenv and how != "table":
        raise InvalidSpec("--dotenv cannot be combined with --output")
    with app.open() as session:
        variables = environment(session.lab(pick(session, name)))
    if as_dotenv:
        sys.stdout.write(dotenv(variables))
        return
    emit(variables, how, table=lambda: exports(variables), names=lambda: list(variables))


def _dotenv_value(value: str) -> str:
    if _BARE.fullmatch(value):
        return value
    escaped = value.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
    return f"'{escaped}'"

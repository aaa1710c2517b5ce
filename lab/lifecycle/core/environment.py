"""The variables for programs that use a lab: of ``lab env``, ``lab run`` and the API."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import quote

from lab.errors import NotFound
from lab.views.labs import SSL_MODE

if TYPE_CHECKING:
    from lab.views.labs import LabView, NodeView


def environment(view: LabView, entry: NodeView | None = None, database: str = "") -> dict[str, str]:
    """The variables for a program that uses a lab, with the address of its first endpoint.

    Of an endpoint the first node that is not stopped: others may listen at a stopped one's port.
    ``entry``: the node instead of that endpoint's. ``LAB_DSN_RO`` is there if the lab has an
    endpoint for reads, ``LAB_DSN_N1`` and so on where it has several servers, whose
    addresses and ports are in ``LAB_HOSTS`` and ``LAB_PORTS``. The MYSQL_ variables are those that
    the mysql and mariadb clients read. ``LAB_SSL_`` ones are there if the lab takes TLS.
    ``database``: the default one, in the DSNs and in ``LAB_DATABASE``.
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
    if database:
        head, slash, options = view.dsn.rpartition("/")
        view = replace(view, dsn=f"{head}{slash}{quote(database, safe='')}{options}")
    more = {f"LAB_DSN_{node.name.upper()}": _dsn(view, node) for node in servers[1:] and servers}
    if reads := view.address("ro"):
        more = {"LAB_DSN_RO": _dsn_at(view, reads), **more}
    if database:
        more["LAB_DATABASE"] = database
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
        "LAB_ENGINE": view.engine,
        "LAB_ENGINE_VERSION": view.engine_version,
        "MYSQL_HOST": first.host,
        "MYSQL_TCP_PORT": str(first.sql_port),
        "MYSQL_PWD": view.password,
        **tls,
    }


def _dsn(view: LabView, node: NodeView) -> str:
    """The lab's DSN, for one of its nodes."""
    return view.dsn if node == view.entry else _dsn_at(view, node.address)


def _dsn_at(view: LabView, address: str) -> str:
    head, _, rest = view.dsn.rpartition("@")
    _, slash, query = rest.partition("/")
    return f"{head}@{address}{slash}{query}"

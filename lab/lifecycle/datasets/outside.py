"""What a source has beside databases: accounts are data; links and options are another server's.

Nothing of it is lost or kept without a word: a note for each, and fields of the view.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lab.config.enginefile import DialectName, family_of
from lab.lifecycle.datasets.loader import Server
from lab.values import dataclass

_SYSTEM = "('mysql', 'sys', 'information_schema', 'performance_schema')"


def _definers(account: str) -> str:
    """The question for definers that are no account; ``account``: of a row ``u``, as texts."""
    return (
        "SELECT DISTINCT d.definer FROM (SELECT definer FROM information_schema.views"  # noqa: S608
        f" WHERE security_type = 'DEFINER' AND table_schema NOT IN {_SYSTEM}"
        " UNION SELECT definer FROM information_schema.routines"
        f" WHERE security_type = 'DEFINER' AND routine_schema NOT IN {_SYSTEM}"
        " UNION SELECT definer FROM information_schema.triggers"
        f" WHERE trigger_schema NOT IN {_SYSTEM} UNION SELECT definer"
        f" FROM information_schema.events WHERE event_schema NOT IN {_SYSTEM}) d"
        " WHERE NOT EXISTS (SELECT 1 FROM mysql.user u"
        f" WHERE BINARY d.definer IN ({account})) ORDER BY 1 LIMIT 1000"
    )


@dataclass(frozen=True)
class _Questions:
    """The statements whose rows are names of what a server has beside databases."""

    accounts: str
    definers: str
    settings: str
    """Global variables that statements have set."""
    plugins: str
    functions: str = (
        "SELECT name FROM mysql.func WHERE EXISTS (SELECT 1 FROM information_schema.engines)"
        " ORDER BY 1 LIMIT 100"
    )
    servers: str = (
        "SELECT server_name FROM mysql.servers"
        " WHERE EXISTS (SELECT 1 FROM information_schema.engines) ORDER BY 1 LIMIT 100"
    )


_QUESTIONS: Mapping[DialectName, _Questions] = {
    "mariadb": _Questions(
        accounts="SELECT DISTINCT grantee FROM information_schema.user_privileges WHERE grantee"
        " NOT IN ('''root''@''localhost''', '''mysql''@''localhost''',"
        " '''mariadb.sys''@''localhost''', '''lab''@''%''', '''PUBLIC''@''''')"
        " UNION SELECT user FROM mysql.user WHERE is_role = 'Y' AND user <> 'PUBLIC'"
        " ORDER BY 1 LIMIT 1000",
        definers=_definers("CONCAT(u.user, '@', u.host), IF(u.is_role = 'Y', u.user, '')"),
        settings="SELECT LOWER(variable_name) FROM information_schema.system_variables"
        " WHERE global_value_origin = 'SQL' AND variable_name NOT IN"
        " ('MAX_ALLOWED_PACKET', 'GTID_SLAVE_POS') ORDER BY 1 LIMIT 100",
        plugins="SELECT p.name FROM mysql.plugin p"
        " JOIN information_schema.plugins i ON i.plugin_name = p.name ORDER BY 1 LIMIT 100",
    ),
    "mysql": _Questions(
        accounts="SELECT CONCAT(QUOTE(user), '@', QUOTE(host)) FROM mysql.user WHERE"
        " CONCAT(user, '@', host) NOT IN ('root@localhost', 'mysql.sys@localhost',"
        " 'mysql.session@localhost', 'mysql.infoschema@localhost', 'lab@%')"
        " ORDER BY user, host LIMIT 1000",
        definers=_definers("CONCAT(u.user, '@', u.host)"),
        # The server itself counts the check of foreign keys.
        settings="SELECT LOWER(variable_name) FROM performance_schema.variables_info"
        " WHERE variable_source IN ('DYNAMIC', 'PERSISTED') AND variable_name NOT IN"
        " ('max_allowed_packet', 'gtid_purged', 'foreign_key_checks') ORDER BY 1 LIMIT 100",
        plugins="SELECT name FROM mysql.plugin WHERE name <> 'auth_socket' UNION"
        " SELECT component_urn FROM mysql.component ORDER BY 1 LIMIT 100",
    ),
}
_MOST = 10
_LENGTH = 200
_LIMIT = 1000
"""Names that are kept: the questions ask for no more, and a guest may say more."""


@dataclass(frozen=True)
class Outside:
    """What is there, beside databases.

    ``accounts``: users and roles that are not of the image; ``definers``: of views, routines,
    triggers and events, that are no account.
    """

    accounts: tuple[str, ...] = ()
    definers: tuple[str, ...] = ()


def outside(server: Server, *, masked: bool) -> Outside:
    """What ``server`` has, which has loaded a source; links and positions are removed from it.

    ``masked``: another server gets its databases and accounts only. Raises NotReady.
    """
    ask = _QUESTIONS[family_of(server.engine.name).dialect]
    found = Outside(_names(server, ask.accounts), _names(server, ask.definers))
    for line in server.forget_links():
        kind, _, what = line.partition(" ")
        text = f"its replication link {what!r}" if kind == "link" else f"its GTID position, {what}"
        _note(server, f"removed what the source's server was to others: {text}")
    if settings := _names(server, ask.settings):
        _note(
            server,
            f"the SQL sets global variables, which end with the server that loads it:"
            f" {_listed(settings)}; labs get them with `lab up --set NAME=VALUE`",
        )
    if masked and (lost := (*_names(server, ask.plugins), *_names(server, ask.servers))):
        _note(
            server,
            f"masked data have neither plugins nor foreign servers of the source: {_listed(lost)};"
            " `lab up --set plugin_load_add=FILE` loads a plugin,"
            " `--init FILE.sql` creates servers",
        )
    if functions := _names(server, ask.functions):
        _note(
            server,
            f"the source has loadable functions, whose libraries are in no image: calls fail"
            f" (error 1305): {_listed(functions)}; replace them by stored functions",
        )
    if found.accounts:
        _note(server, f"accounts of the source are in the dataset: {_listed(found.accounts)}")
    if found.definers:
        _note(
            server,
            "views, routines, triggers or events have definers that are no account, and fail with"
            f" error 1449: {_listed(found.definers)}; give a file with CREATE USER and GRANT for"
            " them with --sql",
        )
    return found


def _note(server: Server, text: str) -> None:
    server.ctx.progress.note("dataset", text)


def _names(server: Server, question: str) -> tuple[str, ...]:
    """The first column of some rows, without what could be no text of a line."""
    rows = server.rows(question)[:_LIMIT]
    return tuple(row[0][:_LENGTH] for row in rows if row[0].isprintable())


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _MOST
    return ", ".join(names[:_MOST]) + (f" and {more} more" if more > 0 else "")

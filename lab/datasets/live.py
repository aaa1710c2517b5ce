"""A live server as a source: its dump, consistent, by the dump program of its own family.

One run dumps all tables in one snapshot. Tables with a condition (``--where``) are dumped before,
each by a run of its own, because the program takes one condition for all tables: so each of them is
of its own moment.

The password comes from the environment or a defaults file. It is given to the programs in an option
file without a name, as their standard input, and is part of no command, message or log.

What the server says is hostile: its names are behind ``--`` in a command, and the programs, which
read all that it sends, run as a user that can write nothing if we are root.
"""

from __future__ import annotations

import errno
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import field
from pathlib import Path
from typing import IO
from urllib.parse import unquote

from lab import run
from lab.config.enginefile import DialectName, family_of, numbers
from lab.datasets.accounts import Script, translated
from lab.datasets.pieces import Piece
from lab.datasets.selection import Selection
from lab.datasets.source import (
    OWN,
    PASSWORD_HINT,
    PASSWORD_VARIABLE,
    Server,
    check_defaults_file,
)
from lab.datasets.source_dialect import dialect_of_version, greeting
from lab.datasets.survey import short
from lab.errors import CommandFailed, HostUnfit, InvalidSpec
from lab.paths import writing
from lab.texts import without_mark
from lab.units import MIB
from lab.values import dataclass
from lab.wait import Deadline

_STALL = 1800.0
"""Seconds without a byte after which a server is given up: a condition may read long."""
_ASK = 120.0
_VERSION = 10.0
_LIST_LIMIT = 32 * MIB
"""Bytes of the list of a server's tables, at most: a hundred thousand of the longest names."""
_OPTIONS_LIMIT = MIB
_NAME_LIMIT = 64
"""Characters of a name of either engine."""
_OPTIONS = (
    "--single-transaction", "--quick", "--triggers", "--hex-blob", "--skip-lock-tables",
    "--no-tablespaces", "--max-allowed-packet=1G", "--default-character-set=utf8mb4",
)  # fmt: skip
_QUESTION = (
    "SELECT HEX(table_schema), HEX(table_name) FROM information_schema.tables UNION"
    " SELECT HEX(schema_name), '' FROM information_schema.schemata"
)
_ERROR = re.compile(r"(?:ERROR |[Ee]rror:? )\(?(\d{4})\b|\((\d{4})\)")
_ABSENT = frozenset({2002, 2003, 2005, 2013, 2026})
"""Errors of a client that reached no server, or agreed with it on no encryption."""

Name = tuple[str, str]
"""A database and a table of it."""


@dataclass(frozen=True)
class _Tools:
    """The programs that read a server of a dialect, and how they are had."""

    dump: str
    package: str
    """What has both of them; a sentence's end."""
    options: tuple[str, ...] = ()
    """Of the dump, beside ``_OPTIONS``; ``{histograms}``: 1 if the server can have these."""
    users: tuple[str, ...] = ()
    """Arguments with which the dump program writes accounts; empty: the server is asked."""
    accounts: str = ""
    """The question for users and hosts, in hexadecimal."""
    has_namesakes: bool = False
    """Whether the other family's packages have programs of these names."""
    account: str = ""
    """The statements that say what an account is, which has an {account}."""


_TOOLS: Mapping[DialectName, _Tools] = {
    "mariadb": _Tools(
        "mariadb-dump",
        "install the package mariadb-client; it is MariaDB's own since 10.4.6",
        users=("--system=users", "--insert-ignore"),
    ),
    # GTIDs are the server's own history. Programs of 5.7 know no histograms, some of 8.0 expect
    # them of servers of 5.7.
    "mysql": _Tools(
        "mysqldump",
        "install MySQL's own client: the package mysql-client of Ubuntu or of MySQL's or Percona's"
        " repositories (Debian's programs of these names are MariaDB's); or dump where it is, and"
        " create the dataset from the file: mysqldump --single-transaction --set-gtid-purged=OFF"
        " --routines --events --triggers --hex-blob --databases shop",
        ("--set-gtid-purged=OFF", "--loose-column-statistics={histograms}"),
        accounts="SELECT HEX(user), HEX(host) FROM mysql.user ORDER BY user, host LIMIT 1001",
        has_namesakes=True,
        account="SHOW CREATE USER {account}; SHOW GRANTS FOR {account};",
    ),
}
_HISTOGRAMS = (8, 0)
"""The first series of MySQL that has them."""
_ACCOUNTS_LIMIT = 1000
_ACCOUNTS_AT_ONCE = 100
_ACCOUNT_LIMIT = 255
"""Characters of a user's name, or of a host's."""
_PAIR = 2
_AS_HEX = "/*!80017 SET print_identified_with_as_hex = ON */;"
_WIDTH = 300
"""Characters of a server's words in a note."""
_HINTS = {
    1045: PASSWORD_HINT,
    2059: "MySQL's client has no mysql_native_password since 9.0: use an account with another"
    " plugin, or a client of 8.4 or 8.0",
    2061: "turn TLS on, or set `get-server-public-key` in the [client] group of a --defaults-file:"
    " then whoever is between this host and the server can learn the password",
}
"""What can be done about errors of clients."""
_LOGIN_FILE = "MYSQL_TEST_LOGIN_FILE"
"""The variable with the path of a file whose address and password would precede ours."""
_DEFAULT_ROLES = re.compile(
    r"(CREATE USER (`(?:[^`]|``)*`@`(?:[^`]|``)*`).*?)"
    r" DEFAULT ROLE (`(?:[^`]|``)*`@`(?:[^`]|``)*`(?:,`(?:[^`]|``)*`@`(?:[^`]|``)*`)*)(.*)",
    re.DOTALL,
)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_SIGNS = {"n": "\n", "t": "\t", "0": "\0"}


def check_selection(selection: Selection) -> None:
    """Raise InvalidSpec unless all of it can be understood."""
    of_tables = (("--tables", selection.tables), ("--schema-only", selection.schema_only))
    for option, texts in of_tables:
        for text in texts:
            table(text, option)
    conditions = [condition(text)[0] for text in selection.where]
    bare = [table(text, "--schema-only") for text in selection.schema_only]
    if twice := [one for one in conditions if conditions.count(one) > 1 or one in bare]:
        raise InvalidSpec(
            f"--where: {'.'.join(twice[0])} has two conditions, or is in --schema-only",
            hint="join two conditions by AND",
        )
    if selection.defaults_file:
        check_defaults_file(Path(selection.defaults_file))


def require_server(selection: Selection, source: object) -> None:
    """Raise InvalidSpec if a source that is no server is given with a selection."""
    # First: what is said of a file of the host depends on the file.
    if selection != Selection() and not isinstance(source, Server):
        raise InvalidSpec(
            f"{source} is not a live server, so no tables of it can be selected",
            hint="--tables, --where, --schema-only and --defaults-file are for mysql://... only",
        )
    check_selection(selection)


def table(text: str, option: str) -> Name:
    """The table that ``shop.orders`` names; raises InvalidSpec."""
    database, dot, name = (unquote(part) for part in text.partition("."))
    if not dot or not all(
        1 <= len(one) <= 64 and one.isprintable() and one == one.strip() for one in (database, name)
    ):
        raise InvalidSpec(
            f"{option}: {text!r} is not a table",
            hint="such as shop.orders; write other dots and commas as %2E and %2C",
        )
    return database, name


def condition(text: str) -> tuple[Name, str]:
    """The table and the condition of ``shop.orders:id < 100``; raises InvalidSpec."""
    name, colon, found = text.partition(":")
    if not colon or not found.strip() or "\0" in found:
        raise InvalidSpec(
            f"--where: {text!r} is not a table and a condition",
            hint="such as --where 'shop.orders:created_at > NOW() - INTERVAL 30 DAY'",
        )
    return table(name, "--where"), found.strip()


def dumping(version: str, more: Sequence[str], databases: Sequence[str]) -> list[str]:
    """Arguments that dump ``databases``, whose names are no options whatever they are.

    ``version``: as the server says it.
    """
    histograms = int(numbers(version) >= _HISTOGRAMS)
    own = [one.format(histograms=histograms) for one in _TOOLS[dialect_of_version(version)].options]
    return [*_OPTIONS, *own, *more, "--databases", "--", *databases]


def check_programs(source: Server) -> str:
    """The version that a server says; raises HostUnfit if no program here dumps it.

    Also if it cannot be reached. MariaDB's packages have links of the names of MySQL's programs:
    these do not count.
    """
    version = greeting(source)
    dialect = dialect_of_version(version)
    tools = _TOOLS[dialect]
    for program in (tools.dump, family_of(dialect).client):
        path, why = run.find(program), "is not installed"
        if path is not None:
            other = _says(path) if tools.has_namesakes else dialect
            if other == dialect:
                continue
            why = f"is {family_of(other).title}'s on this host ({path})"
        title = f"{family_of(dialect).title} {short(version)}".strip()
        raise HostUnfit(f"{source} is {title}, and {program} {why}", hint=tools.package)
    return version


def _says(program: str) -> DialectName:
    """Whose a program is."""
    try:
        return dialect_of_version(run.run([program, "--version"], timeout=_VERSION).stdout)
    except CommandFailed as error:  # what is wrong with it is said when it dumps
        return dialect_of_version(error.stderr)


@dataclass(frozen=True)
class Live:
    """A server that is dumped; ``options`` is the file with the password, which has no name."""

    source: Server
    selection: Selection
    options: IO[bytes]
    env: dict[str, str] = field(repr=False)
    version: str
    """As the server says it."""

    @property
    def dialect(self) -> DialectName:
        """Whose server it is."""
        return dialect_of_version(self.version)

    def pieces(self, dialect: DialectName, version: str) -> Iterator[Piece]:
        """Dumps, in order, then accounts; raises HostUnfit, InvalidSpec with the server's words.

        ``dialect``, ``version``: of the server that is to have them.
        """
        there = self._there()
        databases = self._databases(there)
        chosen = {table(text, "--tables") for text in self.selection.tables}
        conditions = dict(condition(text) for text in self.selection.where)
        bare = {table(text, "--schema-only") for text in self.selection.schema_only}
        for one in sorted(chosen | conditions.keys() | bare):
            self._check(one, there, databases, chosen)
        for limited, text in sorted(conditions.items()):
            database = limited[0]
            others = [one for one in there if one[0] == database and one != limited]
            where = [f"--where={text}", *_ignored(others)]
            label = f"{self.source}: {'.'.join(limited)}"
            yield Piece(label, self._dump(where, [database]))
        left = {one for one in there if one[0] in databases and one[1]}
        if bare:
            without = ["--no-data", *_ignored(sorted(left - bare))]
            of_them = sorted({database for database, _ in bare})
            yield Piece(f"{self.source}: without rows", self._dump(without, of_them))
        wanted = (chosen or left) - conditions.keys() - bare
        if chosen and not wanted:
            return
        more = [] if chosen else ["--routines", "--events"]
        more += _ignored(sorted(left - wanted))
        yield Piece(str(self.source), self._dump(more, databases))
        if not chosen and not self.source.databases:
            yield self._accounts(dialect, version)

    def _accounts(self, dialect: DialectName, version: str) -> Piece:
        """The accounts of a server that is dumped as a whole, if we may see them."""
        name, tools = f"{self.source}: accounts", _TOOLS[self.dialect]
        script, why = Script(b"", ()), ""
        try:
            if not tools.users:
                script = translated(created(self._told()), name, dialect, version)
            elif dialect == self.dialect:
                script = Script(self._read(tools.dump, tools.users), ())
            else:
                why = f"{family_of(dialect).title} does not understand how they are written"
        except CommandFailed as error:
            words = (error.stderr.strip().splitlines() or [error.what])[-1][:_WIDTH]
            why = "".join(sign if sign.isprintable() else "?" for sign in words)
        notes = (f"{self.source}: accounts are not in the dataset: {why}",) if why else ()
        return Piece(name, iter([script.text]), notes=notes + script.notes)

    def _told(self) -> list[str]:
        """What the server says of its accounts; raises CommandFailed, InvalidSpec."""
        tools, statements = _TOOLS[self.dialect], list[str]()
        named = self._names(self._rows(tools.accounts), _ACCOUNT_LIMIT)
        if len(named) > _ACCOUNTS_LIMIT:
            raise InvalidSpec(
                f"{self.source} has more than {_ACCOUNTS_LIMIT} accounts",
                hint="name the databases: then it is dumped without accounts",
            )
        for at in range(0, len(named), _ACCOUNTS_AT_ONCE):
            texts = ("@".join(map(_text, one)) for one in named[at : at + _ACCOUNTS_AT_ONCE])
            ask = " ".join(tools.account.format(account=one) for one in texts)
            statements += (_unescaped(row[0]) for row in self._rows(f"{_AS_HEX} {ask}"))
        return statements

    def _rows(self, question: str) -> list[list[str]]:
        """The rows of an answer; raises CommandFailed, InvalidSpec."""
        asked = ["--batch", "--skip-column-names", f"--execute={question}"]
        output = self._read(family_of(self.dialect).client, asked)
        try:
            return [line.split("\t") for line in output.decode().split("\n") if line]
        except ValueError:
            raise self._invalid from None

    def _read(self, program: str, more: Sequence[str]) -> bytes:
        """All that a program prints; raises CommandFailed, InvalidSpec."""
        output, deadline = bytearray(), Deadline.after(_ASK)
        for chunk in self._output(program, more, _ASK):
            output += chunk
            if len(output) > _LIST_LIMIT or deadline.passed:
                raise InvalidSpec(
                    f"{self.source}: the list of its tables or accounts has more than"
                    f" {_LIST_LIMIT // MIB} MiB, or took longer than {_ASK:g} s",
                    hint=self._by_file,
                )
        return bytes(output)

    def _names(self, rows: Iterable[Sequence[str]], limit: int) -> list[tuple[str, ...]]:
        """Names that a server says in hexadecimal; ``limit``: characters of one."""
        try:
            names = [tuple(bytes.fromhex(text).decode() for text in row) for row in rows]
            if any("\0" in text or len(text) > limit for one in names for text in one):
                raise ValueError("these are no names")
        except ValueError:
            raise self._invalid from None
        return [one for one in names if len(one) == _PAIR]

    @property
    def _invalid(self) -> InvalidSpec:
        return InvalidSpec(f"{self.source}: the server's answer is invalid")

    @property
    def _by_file(self) -> str:
        return f"dump with {_TOOLS[self.dialect].dump}, and create the dataset from the dump"

    def _there(self) -> list[Name]:
        """Databases, with an empty name, and tables of the server."""
        try:
            found = self._names(self._rows(_QUESTION), _NAME_LIMIT)
        except CommandFailed as error:
            raise self._failed(error) from None
        return [(one[0], one[1]) for one in found]

    def _databases(self, there: Sequence[Name]) -> list[str]:
        known = {database for database, _ in there}
        if own := sorted(OWN.intersection(self.source.databases)):
            raise InvalidSpec(f"{own[0]} is the server's own database", hint="it is never loaded")
        for name in self.source.databases:
            if name not in known:
                raise InvalidSpec(
                    f"{self.source}: there is no database {name!r} that {self.source.user} can see",
                    hint="check its name, and the account's privileges",
                )
        found = list(self.source.databases) or sorted(known - OWN)
        if self.selection.tables:
            chosen = {table(text, "--tables")[0] for text in self.selection.tables}
            found = sorted(chosen) if not self.source.databases else found
            found = [name for name in found if name in chosen] or found
        if not found:
            raise InvalidSpec(f"{self.source}: {self.source.user} can see no database")
        if wrong := next((name for name in found if name.startswith("-")), ""):
            raise InvalidSpec(
                f"{self.source}: the database {wrong[:64]!r} has the name of an option",
                hint="name the databases to dump: mysql://user@host/shop,crm",
            )
        return found

    def _check(
        self, name: Name, there: Sequence[Name], databases: Sequence[str], chosen: set[Name]
    ) -> None:
        shown = ".".join(name)
        if name not in there:
            raise InvalidSpec(
                f"{self.source}: there is no table {shown} that {self.source.user} can see",
                hint="check its name, and the account's privileges",
            )
        if name[0] not in databases or (chosen and name not in chosen):
            raise InvalidSpec(f"{shown} is not among what is dumped", hint="name it in --tables")

    def _dump(self, more: Sequence[str], databases: Sequence[str]) -> Iterator[bytes]:
        argv = dumping(self.version, more, databases)
        try:
            yield from self._output(_TOOLS[self.dialect].dump, argv, _STALL)
        except CommandFailed as error:
            raise self._failed(error) from None

    def _output(self, name: str, more: Sequence[str], stall: float) -> Iterator[bytes]:
        program, options = run.require(name), self.options.fileno()
        os.lseek(options, 0, os.SEEK_SET)
        argv = [program, "--defaults-file=/dev/stdin", *more]
        try:
            yield from run.output(
                argv, stall=stall, chunk=MIB, env=self.env, stdin=options, fenced=True
            )
        except OSError as error:
            if error.errno != errno.E2BIG:
                raise
            raise InvalidSpec(
                f"{self.source}: too many tables: those that are not dumped are all named in one"
                " command",
                hint=self._by_file,
            ) from None

    def _failed(self, error: CommandFailed) -> HostUnfit | InvalidSpec:
        """The server's words."""
        lines = error.stderr.strip().splitlines()[-5:] or [error.what]
        found = _numbers(error)
        if found & _ABSENT:
            plain = family_of(self.dialect).plain_option
            hint = f"check address and port; a server without TLS needs `{plain}` in the [client]"
            hint += " group of a --defaults-file"
            return HostUnfit(f"{self.source} cannot be reached", hint=hint, details=lines)
        hints = (_HINTS[one] for one in sorted(found) if one in _HINTS)
        hint = next(hints, "check the account's privileges")
        return InvalidSpec(f"{self.source}: the dump failed", hint=hint, details=lines)


@contextmanager
def opened(
    source: Server, selection: Selection, work: Path, env: Mapping[str, str] = os.environ
) -> Iterator[Live]:
    """A server that can be dumped in the block; ``work``: a private directory.

    Raises InvalidSpec for a defaults file that others can read; HostUnfit as ``check_programs``.
    """
    version = check_programs(source)
    lines = []
    if selection.defaults_file:
        lines.append(_options(check_defaults_file(Path(selection.defaults_file)).absolute()))
    lines += ["[client]", f"user={_value(source.user)}", f"host={_value(source.host)}"]
    lines += [f"port={source.port}", "protocol=tcp"]
    if (password := env.get(PASSWORD_VARIABLE, "")) and not selection.defaults_file:
        lines.append(f"password={_value(password)}")
    rest = {name: value for name, value in env.items() if name != PASSWORD_VARIABLE}
    rest[_LOGIN_FILE] = os.devnull
    with ExitStack() as stack:
        with writing(work):
            options = stack.enter_context(tempfile.TemporaryFile(dir=work))
            options.write(("\n".join(lines) + "\n").encode("utf-8", "surrogateescape"))
            options.flush()
            os.fchmod(options.fileno(), 0o400)
            if (user := run.fence()) is not None:
                os.fchown(options.fileno(), *user)
        yield Live(source, selection, options, rest, version)


def _options(path: Path) -> str:
    """The content of a defaults file; raises InvalidSpec."""
    try:
        with path.open("rb") as file:
            content = file.read(_OPTIONS_LIMIT + 1)
    except OSError as error:
        raise InvalidSpec(f"{path} cannot be read: {error.strerror}") from None
    if len(content) > _OPTIONS_LIMIT:
        raise InvalidSpec(f"{path} has more than {_OPTIONS_LIMIT // MIB} MiB")
    text = without_mark(content).decode("utf-8", "surrogateescape")
    if any(line.lstrip().startswith("!") for line in text.splitlines()):
        raise InvalidSpec(
            f"{path} includes other files, which the programs that dump cannot read",
            hint="write user and password into the file itself",
        )
    return text


def created(statements: Sequence[str]) -> bytes:
    """A script of what SHOW CREATE USER and SHOW GRANTS have said, as MySQL Shell writes it."""
    users, grants, roles = [], [], []
    for one in statements:
        if not one.startswith("CREATE USER "):
            grants.append(one)
            continue
        text = one
        if found := _DEFAULT_ROLES.fullmatch(one):  # they are granted later
            text = found[1] + found[4]
            roles.append(f"SET DEFAULT ROLE {found[3]} TO {found[2]}")
        users.append(text.replace("CREATE USER ", "CREATE USER IF NOT EXISTS ", 1))
    return "".join(f"{one};\n" for one in (*users, *grants, *roles)).encode()


def _numbers(error: CommandFailed) -> set[int]:
    """The numbers of a server's or a client's errors."""
    return {int(one[0] or one[1]) for one in _ERROR.findall(error.stderr)}


def _text(name: str) -> str:
    """A text of SQL."""
    return "'" + name.replace("\\", "\\\\").replace("'", "''") + "'"


def _unescaped(value: str) -> str:
    """A value as a client that runs in a batch prints it."""
    return _ESCAPED.sub(lambda match: _SIGNS.get(match[1], match[1]), value)


def _ignored(names: Sequence[Name]) -> list[str]:
    return [f"--ignore-table={'.'.join(one)}" for one in names if one[1]]


def _value(text: str) -> str:
    """A value of an option file, in quotes."""
    escapes = {"\\": r"\\", '"': r"\"", "\n": r"\n", "\r": r"\r", "\t": r"\t"}
    return '"' + "".join(escapes.get(sign, sign) for sign in text) + '"'

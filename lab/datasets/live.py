"""A live server as a source: its dump, consistent, by ``mariadb-dump`` on this host.

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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO
from urllib.parse import unquote

from lab import run
from lab.datasets.pieces import Piece
from lab.datasets.source import PASSWORD_HINT, PASSWORD_VARIABLE, Server, check_defaults_file
from lab.errors import CommandFailed, HostUnfit, InvalidSpec
from lab.paths import writing
from lab.texts import without_mark
from lab.units import MIB
from lab.wait import Deadline

OWN = frozenset({"mysql", "sys", "information_schema", "performance_schema"})
"""The server's own databases."""
PACKAGE = "mariadb-client"
_STALL = 1800.0
"""Seconds without a byte after which a server is given up: a condition may read long."""
_ASK = 120.0
_LIST_LIMIT = 32 * MIB
"""Bytes of the list of a server's tables, at most: a hundred thousand of the longest names."""
_OPTIONS_LIMIT = MIB
_NAME_LIMIT = 64
"""Characters of a name of either engine."""
_PROGRAM = "mariadb-dump"
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
class Selection:
    """What of a live server is dumped, and how it is logged in to."""

    tables: tuple[str, ...] = ()
    """``DB.TABLE``; empty: all. Routines and events are dumped with all tables only."""
    where: tuple[str, ...] = ()
    """``DB.TABLE:CONDITION``."""
    schema_only: tuple[str, ...] = ()
    """Tables without their rows."""
    defaults_file: str = ""

    def check(self) -> None:
        """Raise InvalidSpec unless all of it can be understood."""
        for option, texts in (("--tables", self.tables), ("--schema-only", self.schema_only)):
            for text in texts:
                table(text, option)
        conditions = [condition(text)[0] for text in self.where]
        bare = [table(text, "--schema-only") for text in self.schema_only]
        if twice := [one for one in conditions if conditions.count(one) > 1 or one in bare]:
            raise InvalidSpec(
                f"--where: {'.'.join(twice[0])} has two conditions, or is in --schema-only",
                hint="join two conditions by AND",
            )
        if self.defaults_file:
            check_defaults_file(Path(self.defaults_file))


def require_server(selection: Selection, source: object) -> None:
    """Raise InvalidSpec if a source that is no server is given with a selection."""
    # First: what is said of a file of the host depends on the file.
    if selection != Selection() and not isinstance(source, Server):
        raise InvalidSpec(
            f"{source} is not a live server, so no tables of it can be selected",
            hint="--tables, --where, --schema-only and --defaults-file are for mysql://... only",
        )
    selection.check()


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


def dumping(more: Sequence[str], databases: Sequence[str]) -> list[str]:
    """Arguments that dump ``databases``, whose names are no options whatever they are."""
    return [*_OPTIONS, *more, "--databases", "--", *databases]


@dataclass(frozen=True)
class Live:
    """A server that is dumped; ``options`` is the file with the password, which has no name."""

    source: Server
    selection: Selection
    options: IO[bytes]
    env: dict[str, str] = field(repr=False)

    def pieces(self) -> Iterator[Piece]:
        """Dumps, in order; raises HostUnfit, InvalidSpec, CommandFailed with the server's words."""
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
        wanted = (chosen or left) - conditions.keys()
        if conditions and not wanted and chosen:
            return
        more = [] if chosen else ["--routines", "--events"]
        more += _ignored(sorted(left - wanted))
        more += [f"--ignore-table-data={'.'.join(one)}" for one in sorted(bare)]
        yield Piece(str(self.source), self._dump(more, databases))

    def _there(self) -> list[Name]:
        """Databases, with an empty name, and tables of the server."""
        asked = ["--batch", "--skip-column-names", f"--execute={_QUESTION}"]
        said, deadline = bytearray(), Deadline.after(_ASK)
        for chunk in self._output("mariadb", asked, _ASK):
            said += chunk
            if len(said) > _LIST_LIMIT or deadline.passed:
                raise InvalidSpec(
                    f"{self.source}: the list of its tables has more than {_LIST_LIMIT // MIB} MiB,"
                    f" or took longer than {_ASK:g} s",
                    hint="dump with mariadb-dump, and create the dataset from the dump",
                )
        try:
            rows = [line.split("\t") for line in said.decode().splitlines()]
            names = [tuple(bytes.fromhex(text).decode() for text in row) for row in rows]
            if any("\0" in text or len(text) > _NAME_LIMIT for one in names for text in one):
                raise ValueError("these are no names")
        except ValueError:
            raise InvalidSpec(f"{self.source}: the server's answer is invalid") from None
        return [(one[0], one[1]) for one in names if len(one) == 2]

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
        yield from self._output(_PROGRAM, dumping(more, databases), _STALL)

    def _output(self, name: str, more: Sequence[str], stall: float) -> Iterator[bytes]:
        program, options = run.require(name, package=PACKAGE), self.options.fileno()
        os.lseek(options, 0, os.SEEK_SET)
        argv = [program, "--defaults-file=/dev/stdin", *more]
        try:
            yield from run.output(
                argv, stall=stall, chunk=MIB, env=self.env, stdin=options, fenced=True
            )
        except CommandFailed as error:
            raise self._failed(error) from None
        except OSError as error:
            if error.errno != errno.E2BIG:
                raise
            raise InvalidSpec(
                f"{self.source}: too many tables: those that are not dumped are all named in one"
                " command",
                hint="dump with mariadb-dump, and create the dataset from the dump",
            ) from None

    def _failed(self, error: CommandFailed) -> HostUnfit | InvalidSpec:
        """The server's words."""
        lines = error.stderr.strip().splitlines()[-5:] or [error.what]
        numbers = [int(one[0] or one[1]) for one in _ERROR.findall(error.stderr)]
        if any(number in _ABSENT for number in numbers):
            hint = "check address and port; a server without TLS needs `skip-ssl` in the [client]"
            hint += " group of a --defaults-file"
            return HostUnfit(f"{self.source} cannot be reached", hint=hint, details=lines)
        hint = PASSWORD_HINT if 1045 in numbers else "check the account's privileges"
        return InvalidSpec(f"{self.source}: the dump failed", hint=hint, details=lines)


@contextmanager
def opened(
    source: Server, selection: Selection, work: Path, env: Mapping[str, str] = os.environ
) -> Iterator[Live]:
    """A server that can be dumped in the block; ``work``: a private directory.

    Raises InvalidSpec for a defaults file that others can read, HostUnfit without the programs.
    """
    for program in (_PROGRAM, "mariadb"):
        run.require(program, package=PACKAGE)
    lines = []
    if selection.defaults_file:
        lines.append(_options(check_defaults_file(Path(selection.defaults_file)).absolute()))
    lines += ["[client]", f"user={_value(source.user)}", f"host={_value(source.host)}"]
    lines += [f"port={source.port}", "protocol=tcp"]
    if (password := env.get(PASSWORD_VARIABLE, "")) and not selection.defaults_file:
        lines.append(f"password={_value(password)}")
    rest = {name: value for name, value in env.items() if name != PASSWORD_VARIABLE}
    with ExitStack() as stack:
        with writing(work):
            options = stack.enter_context(tempfile.TemporaryFile(dir=work))
            options.write(("\n".join(lines) + "\n").encode("utf-8", "surrogateescape"))
            options.flush()
            os.fchmod(options.fileno(), 0o400)
            if (user := run.fence()) is not None:
                os.fchown(options.fileno(), *user)
        yield Live(source, selection, options, rest)


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


def _ignored(names: Sequence[Name]) -> list[str]:
    return [f"--ignore-table={'.'.join(one)}" for one in names if one[1]]


def _value(text: str) -> str:
    """A value of an option file, in quotes."""
    escapes = {"\\": r"\\", '"': r"\"", "\n": r"\n", "\r": r"\r", "\t": r"\t"}
    return '"' + "".join(escapes.get(sign, sign) for sign in text) + '"'

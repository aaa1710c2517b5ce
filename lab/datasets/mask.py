"""Masking in SQL: the statements that apply rules to the tables of a staging server, in place.

Values are replaced by a function of the value and of a secret of the dataset, HMAC-SHA-256
(RFC 2104) of the kind of rule and the value's text in UTF-8: ``email:anna@...``. So equal values
become equal ones in all tables, and joins still hold; without the secret nobody can try values
out. In SQL this is ``SHA2(CONCAT(@outer, UNHEX(SHA2(CONCAT(@inner, kind, value), 256))), 256)``
with the key's two pads as session variables. Realistic values are picked from a table of them in
a scratch schema, by the first 52 bits of the digest.

The secret is in no statement of ``Masking.statements``, only in those of ``secret_statements``,
which the same session runs first. What a server writes down of statements and rows (binlog,
general log, slow log) must be off, and there must be no trigger on UPDATE, which would see old
rows: ``preconditions``.

What masking in place leaves behind, in undo logs, redo logs and free pages, is not its matter:
the staging server's files are not what is captured.
"""

from __future__ import annotations

import hashlib
import hmac
import random
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from lab.datasets.columns import (
    BINARIES,
    INTEGERS,
    UNICODE,
    Column,
    Pairs,
    connected,
    identifier,
    references,
)
from lab.datasets.rules import REALISTIC, Rule, Rules
from lab.distribution import extra
from lab.errors import InvalidSpec
from lab.units import GIB
from lab.values import dataclass

SCRATCH = "lab_mask_scratch"
"""The schema of the tables that masking needs; it is dropped at the end."""
SECRET_BYTES = 16
"""Bytes of a secret, at least."""

_TAG = 16
"""Characters of the digest in a value that must be unique: 64 bits, as hexadecimal digits."""
_TAG_LEAST = 12
"""The same in columns that are short: 48 bits; of 100,000 rows two collide once in 50,000 runs."""
_ROWS = 500
"""Rows in one INSERT."""
_SORTS = 16
"""A sort has this part of the machine's memory; what is larger is merged, in files."""
_HEAD, _TAIL = 120, 20
"""Characters of a made-up value; of an address, the part before and the part from its @ on."""


@dataclass(frozen=True)
class Precondition:
    """What must hold on the staging server: the query returns no row then."""

    question: str
    message: str
    hint: str


_PRECONDITIONS = (
    Precondition(
        "SELECT 'log_bin' FROM DUAL WHERE @@GLOBAL.log_bin"
        " UNION SELECT 'general_log' FROM DUAL WHERE @@GLOBAL.general_log"
        " UNION SELECT 'slow_query_log' FROM DUAL WHERE @@GLOBAL.slow_query_log",
        "the staging server logs statements or rows, which are not masked",
        "start it with --skip-log-bin --general-log=0 --slow-query-log=0",
    ),
    Precondition(
        "SELECT 'secure_file_priv' FROM DUAL WHERE {confined}",
        "the staging server may not write the masked rows where the next reads them",
        "leave the option out of --set and --my-cnf",
    ),
    Precondition(
        "SELECT CONCAT(trigger_schema, '.', trigger_name) FROM information_schema.triggers"
        " WHERE event_manipulation = 'UPDATE' AND trigger_schema <> 'sys'",
        "triggers on UPDATE see the rows that are not masked yet",
        "load triggers after masking",
    ),
)


def preconditions(confined: str) -> Iterator[Precondition]:
    """All of them; ``confined``: the dialect's condition."""
    for one in _PRECONDITIONS:
        yield replace(one, question=one.question.replace("{confined}", confined))


@dataclass(frozen=True)
class Masking:
    """What is to be done; ``plan`` makes it."""

    tables: tuple[tuple[tuple[Column, Rule], ...], ...]
    """The columns of each table whose values change, and their rules; no table is without."""
    keys: Mapping[str, tuple[Column, ...]]
    """``database.table`` -> the columns of its primary key."""
    updated: Mapping[str, tuple[Column, ...]]
    """``database.table`` -> columns that would be set to the time of masking."""
    tagged: frozenset[str]
    """Kinds whose values have a part of the digest in them, so that they are unique."""
    lengths: Mapping[Column, int]
    """Characters or bytes that a column may have: no more than those that refer to it have."""
    related: Pairs
    locale: str
    values: int
    spelt: tuple[tuple[Column, ...], ...] = ()
    """The columns of foreign keys whose values are spelt as those that they refer to, before any is
    masked: a key compares by its collation, a digest is of bytes. What others refer to is first.
    """
    bound: frozenset[tuple[str, str]] = frozenset()
    """``database.table`` and column, of foreign keys whose indexes the server never drops."""

    @property
    def groups(self) -> list[list[int]]:
        """Numbers of ``tables``: those of different groups can be masked at the same time."""
        return connected([table[0][0].table_name for table in self.tables], self.related)

    @property
    def indexed(self) -> tuple[Column, ...]:
        """A column of each table that has an index of a masked column, but the primary key."""
        found = []
        for table in self.tables:
            masked = any(one.key in ("index", "unique") for one, _ in table)
            if masked and not table[0][0].versioned:
                found.append(table[0][0])
        return tuple(found)

    def statements(
        self, secret: bytes, created: Mapping[str, str] = MappingProxyType({}), memory: int = GIB
    ) -> Iterator[str]:
        """All statements, for one session in which ``secret_statements`` have run.

        As ``first``, ``masked`` of all tables, and ``LAST``.
        """
        yield from self.first(secret)
        yield from self.masked(range(len(self.tables)), created, memory)
        yield LAST

    def first(self, secret: bytes) -> Iterator[str]:
        """The statements that come before those of all tables.

        Raises InvalidSpec for a secret that is too short, HostUnfit without mimesis.
        """
        _check_secret(secret)
        yield "SET SESSION autocommit = 1"  # see ``masked``
        yield f"CREATE DATABASE {SCRATCH} CHARACTER SET utf8mb4"
        for kind in sorted({rule.kind for table in self.tables for _, rule in table}):
            if kind in REALISTIC:
                yield from self._lookup(kind, secret)

    def masked(
        self,
        numbers: Iterable[int],
        created: Mapping[str, str] = MappingProxyType({}),
        memory: int = GIB,
    ) -> Iterator[str]:
        """The statements of some of ``tables``, for a session in which the secret's have run.

        Each table's begin with one that selects how many are begun. Several sessions with
        ``groups`` of their own can run at the same time.
        ``created``: what SHOW CREATE TABLE says of tables of ``indexed``, ``database.table`` as
        key. Their indexes are dropped, and made again of the masked rows: a sort, where each
        changed row is a change at random in each index, which costs several times as much as the
        row's own. ``memory``: bytes of the staging server's machine, of which a part sorts. Also
        deletes the history of tables WITH SYSTEM VERSIONING, which cannot be masked.
        """
        # No part of the server may refuse values that were there before, such as zero dates.
        yield "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_AUTO_VALUE_ON_ZERO'"
        # Without autocommit, which users' options may turn off, it would end with the session.
        yield "SET SESSION foreign_key_checks = 0, autocommit = 1"
        yield f"SET SESSION sort_buffer_size = {memory // _SORTS}"
        # Numbers of rows have no gaps, whatever a cluster's servers have.
        yield "SET SESSION auto_increment_increment = 1, auto_increment_offset = 1"
        chosen = list(numbers)
        here = {self.tables[number][0][0].table_name for number in chosen}
        for key in self.spelt:
            if key[0].table_name in here:
                yield self._spelt(key)
        for begun, number in enumerate(chosen, 1):
            yield f"SELECT {begun}"
            table = self.tables[number]
            first = table[0][0]
            keys = [
                key
                for key in indexes_of(created.get(first.table_name, ""))
                if (first.table_name, key.first) not in self.bound
            ]
            target = f"{identifier(first.database)}.{identifier(first.table)}"
            if keys:
                yield f"ALTER TABLE {target} {', '.join(f'DROP KEY {key.name}' for key in keys)}"
            yield from self._table(table, number)
            if keys:
                yield f"ALTER TABLE {target} {', '.join(f'ADD {key.text}' for key in keys)}"

    def _spelt(self, key: Sequence[Column]) -> str:
        ends = [(f"c.{identifier(one.name)}", f"p.{identifier(one.references[2])}")
                for one in key if one.references]  # fmt: skip
        digests = {one for table in self.tables for one, rule in table if _digests(one, rule)}
        texts = [pair for one, pair in zip(key, ends, strict=True) if one in digests]
        tables = [identifier(key[0].database) + "." + identifier(key[0].table)]
        tables += [".".join(map(identifier, one.references[:2])) for one in key if one.references]
        same = " AND ".join(f"{child} = {parent}" for child, parent in ends)
        other = " OR ".join(f"CAST({a} AS BINARY) <> CAST({b} AS BINARY)" for a, b in texts)
        changes = [f"{child} = {parent}" for child, parent in texts]
        changes += [f"c.{name} = c.{name}" for name in self._kept(key[0])]
        # From the child on, whose rows can be changed where they are then (see ``_shuffle``).
        return (
            f"UPDATE {tables[0]} c STRAIGHT_JOIN {tables[1]} p ON {same}"  # noqa: S608  # names
            f" SET {', '.join(changes)} WHERE {other}"
        )

    def _lookup(self, kind: str, secret: bytes) -> Iterator[str]:
        name = f"{SCRATCH}.{kind}"
        yield (
            f"CREATE TABLE {name} (lab_id INT UNSIGNED PRIMARY KEY,"
            f" lab_head VARCHAR({_HEAD}) NOT NULL, lab_plain VARCHAR({_HEAD}) NOT NULL,"
            f" lab_tail VARCHAR({_TAIL}) NOT NULL) ENGINE=InnoDB"
        )
        made = values(kind, self.locale, self.values, secret)
        for start in range(0, len(made), _ROWS):
            rows = ",".join(
                f"({number},{literal(head)},{literal(plain)},{literal(tail)})"
                for number, (head, plain, tail) in enumerate(made[start : start + _ROWS], start)
            )
            yield f"INSERT INTO {name} VALUES {rows}"  # noqa: S608  # literals of ours

    def _table(self, table: Sequence[tuple[Column, Rule]], number: int) -> Iterator[str]:
        first = table[0][0]
        target = f"{identifier(first.database)}.{identifier(first.table)}"
        if shuffled := [column for column, rule in table if rule.kind == "shuffle"]:
            yield from self._shuffle(shuffled, target, number)
        # An expression sees the masked values of other columns: a server evaluates assignments of
        # one table from left to right.
        ordered = sorted(table, key=lambda pair: pair[1].kind == "expression")
        changes = [
            f"{identifier(column.name)} = {self._value(column, rule)}"
            for column, rule in ordered
            if rule.kind != "shuffle"
        ]
        if changes:
            yield f"UPDATE {target} SET {', '.join([*changes, *self._unchanged(first)])}"  # noqa: S608
        if first.versioned:
            yield f"DELETE HISTORY FROM {target}"

    def _kept(self, column: Column) -> list[str]:
        """The columns of a table that would be set to the time of masking."""
        return [identifier(one.name) for one in self.updated.get(column.table_name, ())]

    def _unchanged(self, column: Column) -> list[str]:
        return [f"{name} = {name}" for name in self._kept(column)]

    def _value(self, column: Column, rule: Rule) -> str:
        name = identifier(column.name)
        if rule.kind == "null":
            return "NULL"
        if rule.kind == "expression":
            return f"({rule.value})"
        if rule.kind == "fixed":
            return f"IF({name} IS NULL, NULL, {literal(rule.value)})"
        digest = _digest(rule.kind, _bytes(column, name))
        if rule.kind == "hash" and column.type in INTEGERS:
            # Unsigned columns have the same values as signed ones, so that they join.
            return f"{_number(digest, 1, 15)} % {1 << (INTEGERS[column.type] - 1)}"
        length = self.lengths[column]
        if rule.kind == "hash":
            return f"LEFT({digest}, {min(length, 64)})"
        return self._picked(column, rule.kind, digest, length)

    def _picked(self, column: Column, kind: str, digest: str, length: int) -> str:
        """A scalar subquery: NULL for NULL, as its digest is NULL and no row matches."""
        head = "lab_head" if column.charset in UNICODE else "lab_plain"
        if kind in self.tagged:
            tag = f"SUBSTR({digest}, 33, {_TAG})"
            if kind in ("phone", "postal_code"):
                tag = f"LPAD(CONV({tag}, 16, 10), 20, '0')"
            most = min(length - 1, 20 if kind in ("phone", "postal_code") else _TAG)
            if kind == "email":
                room = f"{length} - {_TAG + 1} - CHAR_LENGTH(lab_tail)"
                text = f"CONCAT(LEFT({head}, GREATEST({room}, 0)), '.', {tag}, lab_tail)"
                if length < _TAG + 1 + _TAIL:
                    text = f"RIGHT({tag}, {min(length, _TAG)})"
            else:
                room = f"{max(length - most - 1, 0)}"
                text = f"CONCAT(LEFT({head}, {room}), ' ', RIGHT({tag}, {most}))"
        elif kind == "email":
            room = f"{length} - CHAR_LENGTH(lab_tail)"
            text = f"LEFT(CONCAT(LEFT({head}, GREATEST({room}, 1)), lab_tail), {length})"
        else:
            text = f"LEFT({head}, {length})"
        index = f"{_number(digest, 1, 13)} % {self.values}"
        return f"(SELECT {text} FROM {SCRATCH}.{kind} WHERE lab_id = {index})"  # noqa: S608

    def _shuffle(self, columns: Sequence[Column], target: str, table: int) -> Iterator[str]:
        """Rows in the order of their keys get the values in the order of a digest of the keys.

        Both orders become numbered tables, so that the update reads all tables from their starts
        to their ends. It reads no column that it sets: so the server changes rows where they are,
        and collects none in a temporary table, which beyond some size is on disk, and slow.
        """
        keys = [identifier(key.name) for key in self.keys[columns[0].table_name]]
        kept, joined, changes = self._kept(columns[0]), [], []
        kept_rows = f"{SCRATCH}.kept_{table}"
        for number, column in enumerate(columns):
            scratch = _shuffle(table, number)
            yield from self._numbered(column, target, scratch)
            (rows, taken), name = scratch, identifier(column.name)
            if column.is_unique:  # rows may have equal values in between, but for NULL
                nothing = ", ".join([f"{name} = NULL", *self._unchanged(column)])
                yield f"UPDATE {target} SET {nothing}"  # noqa: S608
            same = " AND ".join(f"t.{key} = r{number}.{key}" for key in keys)
            joined.append(f"LEFT JOIN {rows} r{number} ON {same}")
            joined.append(f"LEFT JOIN {taken} v{number} ON v{number}.lab_row = r{number}.lab_row")
            changes.append(f"t.{name} = v{number}.lab_value")
        changes += [f"t.{name} = k.{name}" for name in kept]
        if kept:
            listed = ", ".join([*keys, *kept])
            yield (
                f"CREATE TABLE {kept_rows} (PRIMARY KEY ({', '.join(keys)})) ENGINE=InnoDB"  # noqa: S608
                f" AS SELECT {listed} FROM {target}"
            )
            same = " AND ".join(f"t.{key} = k.{key}" for key in keys)
            # It has all rows. By an inner join the server could read it before ``t``.
            joined.append(f"LEFT JOIN {kept_rows} k ON {same}")
        yield f"UPDATE {target} t {' '.join(joined)} SET {', '.join(changes)}"  # noqa: S608
        tables = [name for number in range(len(columns)) for name in _shuffle(table, number)]
        yield f"DROP TABLE {', '.join(tables + [kept_rows] * bool(kept))}"

    def _numbered(self, column: Column, target: str, scratch: tuple[str, str]) -> Iterator[str]:
        """Two numbered tables: rows in the order of their keys, and values in a random one."""
        name, (rows, taken) = identifier(column.name), scratch
        keys = self.keys[column.table_name]
        listed = ", ".join(identifier(key.name) for key in keys)
        row = (
            "CONCAT_WS(0x00, " + ", ".join(_bytes(key, identifier(key.name)) for key in keys) + ")"
        )
        # Bytes: texts would be sorted by a collation, at four times the size.
        order = f"UNHEX(LEFT({_digest(f'{column}:', row)}, 32))"
        some = f"FROM {target} WHERE {name} IS NOT NULL"
        numbered = "lab_row BIGINT UNSIGNED NOT NULL AUTO_INCREMENT"
        yield (
            f"CREATE TABLE {taken} ({numbered} PRIMARY KEY) ENGINE=InnoDB"
            f" AS SELECT {name} AS lab_value {some} ORDER BY {order}"
        )
        yield (
            f"CREATE TABLE {rows} ({numbered} UNIQUE, PRIMARY KEY ({listed})) ENGINE=InnoDB"
            f" AS SELECT {listed} {some} ORDER BY {listed}"
        )


@dataclass(frozen=True)
class Index:
    """An index in SHOW CREATE TABLE: its name in SQL, and its line."""

    name: str
    text: str

    @property
    def first(self) -> str:
        """The name of its first column; empty for an expression."""
        found = _FIRST.match(self.text, self.text.index(self.name) + len(self.name))
        return found[1].replace("``", "`") if found else ""


_INDEX = re.compile(r"  ((?:[A-Z]+ )?KEY (`(?:[^`]|``)+`) \(.*?),?")
_FIRST = re.compile(r" \(`((?:[^`]|``)+)`")
_COUNTED = re.compile(r"  (`(?:[^`]|``)+`) .*\bAUTO_INCREMENT\b.*")


def indexes_of(created: str) -> tuple[Index, ...]:
    """The indexes in what SHOW CREATE TABLE says, in order, but the primary key.

    Without one that has the column with AUTO_INCREMENT, which needs an index at any time.
    """
    lines = created.splitlines()
    counted = [found[1] for line in lines if (found := _COUNTED.fullmatch(line))]
    keys = [Index(found[2], found[1]) for line in lines if (found := _INDEX.fullmatch(line))]
    return tuple(key for key in keys if not any(name in key.text for name in counted))


def plan(columns: Iterable[Column], rules: Rules, *, binds: bool = False) -> Masking:
    """What ``rules`` mean for ``columns``, all that the server has.

    ``binds``: it drops no index that a foreign key needs, of either table.

    Raises InvalidSpec with all rules that cannot be applied: ``details`` has one line for each.
    Columns without a rule stay as they are: ask ``rules.uncovered`` and ``rules.unknown`` first.
    """
    everything = tuple(columns)
    if any(column.database == SCRATCH for column in everything):
        raise InvalidSpec(f"the data has a database {SCRATCH}, which masking needs")
    chosen = {column: rules.of(column) for column in everything}
    keys = _by_table(column for column in everything if column.key == "primary")
    lengths = _lengths(everything)
    problems: list[str] = []
    changed: list[tuple[Column, Rule]] = []
    for column, rule in chosen.items():
        if rule is None or rule.kind == "keep":
            continue
        changed.append((column, rule))
        if problem := _problem(column, rule, lengths.get(column, 0), keys):
            problems.append(f"{column}: {problem}")
    problems += _references(everything, chosen)
    if problems:
        raise InvalidSpec(
            f"{len(problems)} masking rule{'s' * (len(problems) > 1)} cannot be applied",
            hint="change the file of rules",
            details=problems,
        )
    grouped: dict[str, list[tuple[Column, Rule]]] = {}
    for column, rule in changed:
        grouped.setdefault(column.table_name, []).append((column, rule))
    masked = {column for column, _ in changed}
    return Masking(
        tables=tuple(tuple(table) for table in grouped.values()),
        keys=keys,
        updated=_by_table(one for one in everything if one.updated and one not in masked),
        # Unique everywhere if it must be anywhere: equal values stay equal.
        tagged=frozenset({"email"})
        | {rule.kind for column, rule in changed if column.is_unique and rule.kind in REALISTIC},
        lengths=lengths,
        related=references(everything),
        spelt=_spelt(changed, everything),
        locale=rules.locale,
        values=rules.values,
        bound=frozenset(
            end
            for one in everything
            if binds and one.references
            for end in (
                (one.table_name, one.name),
                (".".join(one.references[:2]), one.references[2]),
            )
        ),
    )


def _digests(column: Column, rule: Rule) -> bool:
    """Whether texts become what follows from their digests."""
    return column.is_text and rule.kind in (*REALISTIC, "hash")


def _spelt(
    changed: Iterable[tuple[Column, Rule]], everything: Iterable[Column]
) -> tuple[tuple[Column, ...], ...]:
    """The foreign keys with texts that become digests, those of tables of others first."""
    everything = tuple(everything)
    digests = {one for one, rule in changed if _digests(one, rule)}
    there = {(one.database, one.table, one.name) for one in everything}
    keys: dict[tuple[str, str], list[Column]] = {}
    for one in everything:
        if one.references in there:  # a dump may lack it
            keys.setdefault((one.table_name, one.constraint), []).append(one)
    found = {name: tuple(key) for name, key in keys.items() if digests.intersection(key)}
    parents: dict[str, set[str]] = {}
    for (table, _), key in found.items():
        parents.setdefault(table, set()).update(
            ".".join(one.references[:2]) for one in key if one.references
        )
    done: dict[str, None] = {}

    def visit(table: str, above: tuple[str, ...]) -> None:
        if table in done or table in above:
            return
        for parent in sorted(parents.get(table, ())):
            visit(parent, (*above, table))
        done[table] = None

    for table in parents:
        visit(table, ())
    order = list(done)
    return tuple(found[name] for name in sorted(found, key=lambda name: order.index(name[0])))


def _by_table(columns: Iterable[Column]) -> dict[str, tuple[Column, ...]]:
    found: dict[str, tuple[Column, ...]] = {}
    for column in columns:
        found[column.table_name] = (*found.get(column.table_name, ()), column)
    return found


def _problem(
    column: Column, rule: Rule, length: int, keys: Mapping[str, tuple[Column, ...]]
) -> str:
    """Why a rule cannot be applied to a column; empty if it can."""
    kind, unique = rule.kind, column.is_unique
    key = keys.get(column.table_name, ())
    bits = INTEGERS.get(column.type, 0)
    hashed, realistic, shuffled = kind == "hash", kind in REALISTIC, kind == "shuffle"
    other = f"use {'keep' if kind == 'hash' else 'hash or keep'} instead of {kind}"
    checks = (
        (column.generated, "it is generated from other columns: remove the rule, and mask those"),
        (kind == "null" and not column.nullable, "it is NOT NULL: use fixed instead of null"),
        (kind == "fixed" and unique, f"it is in a unique key: {other}"),
        (shuffled and not key, "shuffle needs a table with a primary key"),
        (shuffled and column.key == "primary", f"it is in the primary key: {other}"),
        (
            shuffled and unique and not column.nullable,
            f"it is in a unique key and NOT NULL: {other}",
        ),
        (
            shuffled and any(one.type.endswith(("text", "blob")) for one in key),
            f"the primary key is {' and '.join(one.type for one in key)}: {other}",
        ),
        (
            realistic and not column.is_text,
            f"{kind} needs a text, and it is {column.type}: use shuffle or an expression",
        ),
        (
            hashed and not bits and not column.is_text and column.type not in BINARIES,
            f"there is no hash for {column.type}: use shuffle, fixed, null or an expression",
        ),
        (
            hashed and unique and 0 < bits < 64,
            f"a hash is not unique in {column.type}: {other}",
        ),
        (
            (hashed or realistic) and not bits and unique and length < _TAG_LEAST,
            f"it is in a unique key, and {length} characters are too few for it: {other}",
        ),
    )
    return next((message for wrong, message in checks if wrong), "")


def _references(columns: Sequence[Column], chosen: Mapping[Column, Rule | None]) -> list[str]:
    """A line for each foreign key whose values would no longer be in the other table."""
    by_name = {(one.database, one.table, one.name): one for one in columns}
    keep = Rule("keep")
    found = []
    for column in columns:
        parent = by_name.get(column.references) if column.references else None
        if parent is None:
            continue
        own, other = chosen[column] or keep, chosen[parent] or keep
        alike = own == other and own.kind not in ("shuffle", "null")
        if own.kind == "null" or alike or (own.kind == "shuffle" and other.kind == "keep"):
            continue
        found.append(
            f"{column}: its rule is {own}, and that of {parent}, which its foreign key refers to,"
            f" is {other}: give both the same"
        )
    return found


def _lengths(columns: Sequence[Column]) -> dict[Column, int]:
    """The length of each text and binary; what foreign keys connect has the least of all."""
    by_name = {(one.database, one.table, one.name): one for one in columns}
    found = {one: one.length for one in columns if one.length is not None}
    pairs = [
        (one, by_name[one.references])
        for one in found
        if one.references and by_name.get(one.references) in found
    ]
    changed = True
    while changed:
        changed = False
        for child, parent in pairs:
            least = min(found[child], found[parent])
            if found[child] != least or found[parent] != least:
                found[child] = found[parent] = least
                changed = True
    return found


def _check_secret(secret: bytes) -> None:
    if len(secret) < SECRET_BYTES:
        raise InvalidSpec(f"the secret of a dataset has {SECRET_BYTES} bytes at least")


def secret_statements(secret: bytes) -> tuple[str, ...]:
    """Give the session the secret: the pads of RFC 2104, which are as secret as it is.

    For the session alone: they must not be logged, by us or by the server. Raises InvalidSpec.
    """
    _check_secret(secret)
    key = hashlib.sha256(secret).digest() if len(secret) > 64 else secret
    key = key.ljust(64, b"\0")
    inner, outer = (bytes(byte ^ pad for byte in key) for pad in (0x36, 0x5C))
    return (f"SET @lab_inner = x'{inner.hex()}', @lab_outer = x'{outer.hex()}'",)


LAST = f"DROP DATABASE {SCRATCH}"
"""The statement that comes after those of all tables."""

FORGET = "SET @lab_inner = NULL, @lab_outer = NULL"
"""Takes the secret from the session."""


def digest(kind: str, value: str | bytes, secret: bytes) -> str:
    """What the server computes for a value, as 64 hexadecimal digits.

    ``kind``: ``hash`` or a kind of ``REALISTIC``.
    """
    content = value.encode() if isinstance(value, str) else value
    return hmac.new(secret, f"{kind}:".encode() + content, hashlib.sha256).hexdigest()


def _digest(purpose: str, content: str) -> str:
    inner = f"SHA2(CONCAT(@lab_inner, {literal(purpose + ':')}, {content}), 256)"
    # The result has the session's character set; in a column it has that of the column.
    return f"SHA2(CONCAT(@lab_outer, UNHEX({inner})), 256)"


def _number(digest: str, first: int, digits: int) -> str:
    """Hexadecimal digits of a digest, at most 16, as a whole number."""
    return f"CAST(CONV(SUBSTR({digest}, {first}, {digits}), 16, 10) AS UNSIGNED)"


def _bytes(column: Column, name: str) -> str:
    """The bytes of a value: texts in UTF-8 whatever their character set, so that all join."""
    if column.type in BINARIES:
        return name
    return f"CAST(CONVERT({name} USING utf8mb4) AS BINARY)"


def _shuffle(table: int, number: int) -> tuple[str, str]:
    """The tables of a shuffle: of its rows, and of its values."""
    return f"{SCRATCH}.shuffle_rows_{table}_{number}", f"{SCRATCH}.shuffle_values_{table}_{number}"


def literal(text: str) -> str:
    """``text`` as a string in SQL, whatever the session's character set and sql_mode are."""
    return f"_utf8mb4 x'{text.encode().hex()}'" if text else "''"


Value = tuple[str, str, str]
"""A made-up value, the same in ASCII, and what is never cut off its end."""


def values(kind: str, locale: str, count: int, secret: bytes) -> list[Value]:
    """``count`` made-up values of a kind; the same for the same arguments and version of mimesis.

    They may repeat. Raises InvalidSpec for an unknown locale, HostUnfit without mimesis.
    """
    seed = int(digest(f"values of {kind}", locale, secret)[:12], 16)
    make = _maker(kind, locale, seed)
    plain = make if locale == "en" else _maker(kind, "en", seed)
    made = []
    for _ in range(count):
        head = make()
        simple = head if plain is make else plain()
        tail = ""
        if kind == "email":
            head, _, domain = simple.partition("@")
            simple, tail = head, f"@{domain}"
        made.append((_cut(head), _cut(_ascii(simple)), tail))
    return made


def _cut(text: str) -> str:
    return " ".join(text.split())[:_HEAD].rstrip()


def _ascii(text: str) -> str:
    return unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()


_DOMAINS = ["example.com", "example.net", "example.org"]  # RFC 2606: nobody's


def _maker(kind: str, locale: str, seed: int) -> Callable[[], str]:
    mimesis = _mimesis()
    try:
        chosen: Any = mimesis.Locale(locale)
    except ValueError:
        known = ", ".join(one.value for one in mimesis.Locale)
        raise InvalidSpec(f"there are no values for the locale {locale!r}", hint=known) from None
    person = mimesis.Person(chosen, seed=seed)
    place = mimesis.Address(chosen, seed=seed)
    finance = mimesis.Finance(chosen, seed=seed)
    digits = random.Random(seed)  # noqa: S311  # not a secret
    makers: Mapping[str, Callable[[], str]] = {
        "email": lambda: str(person.email(domains=_DOMAINS)),
        "name": person.full_name,
        "first_name": person.first_name,
        "last_name": person.last_name,
        "username": person.username,
        # 555-01xx: nobody's, by the North American Numbering Plan.
        "phone": lambda: f"{digits.randint(201, 989)}-555-{digits.randint(100, 199):04d}",
        "address": place.address,
        "city": place.city,
        "postal_code": place.postal_code,
        "company": finance.company,
    }
    return makers[kind]


def _mimesis() -> Any:
    with extra("datasets", "a rule that makes up values"):
        import mimesis
    return mimesis

"""Masking rules: a TOML file that says what becomes of each column.

Example::

    locale = "de"                  # of the values that are made up
    values = 5000                  # how many there are of each kind

    [defaults]                     # columns of these names, in all tables below
    id = "keep"
    updated_at = "keep"

    [tables."shop.customers"]
    email = "email"
    name = "name"
    tax_number = "hash"
    note = {fixed = ""}
    label = {expression = "CONCAT('customer ', id)"}

    [tables."crm_*.calls"]         # of all databases whose names begin so
    number = "phone"

A table is covered if a key of ``tables`` names it: by the database's and the table's name, or
by a pattern with ``*`` in the database's name. The most specific key holds: one without ``*``,
else the longest.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

from lab.config import tomlfile
from lab.datasets.columns import BINARIES, INTEGERS, TEXTS, Column
from lab.errors import InvalidSpec
from lab.keys import Key, WrongType, parse_all, text, within
from lab.suggest import did_you_mean
from lab.texts import read as read_file
from lab.values import dataclass

REALISTIC: Mapping[str, str] = {
    "email": "an address at example.com, example.net or example.org",
    "name": "a person's full name",
    "first_name": "a first name",
    "last_name": "a last name",
    "username": "a login name",
    "phone": "a telephone number",
    "address": "a street and a number",
    "city": "a city",
    "postal_code": "a postal code",
    "company": "a company",
}
"""Kinds that put a made-up value in place of each; equal values become equal."""
PLAIN: Mapping[str, str] = {
    "hash": "the keyed digest of the value",
    "shuffle": "a value of another row",
    "null": "NULL",
    "keep": "the value as it is",
}
KINDS = (*REALISTIC, *PLAIN)
_TABLES = frozenset({"fixed", "expression"})
ACCEPTED = f'{", ".join(KINDS)}, {{fixed = "x"}} or {{expression = "CONCAT(...)"}}'

FILE_LIMIT = 1 << 20
"""Bytes of a file of rules, at most."""
_TEXT_LIMIT = 4096  # characters of a fixed value or an expression
_STARS_LIMIT = 8
_LOCALE = re.compile(r"[a-z]{2}(?:-[a-z]{2})?")


@dataclass(frozen=True)
class Rule:
    """What becomes of a column."""

    kind: str
    """One of ``KINDS``, ``fixed`` or ``expression``."""
    value: str = ""
    """The fixed value, or the expression in SQL."""

    def __str__(self) -> str:
        return f'{{{self.kind} = "{self.value}"}}' if self.kind in _TABLES else self.kind


def _rule(value: object) -> Rule:
    if isinstance(value, str) and value in KINDS:
        return Rule(value)
    if isinstance(value, str):
        near = did_you_mean(value, KINDS)
        raise InvalidSpec(f"there is no rule {value!r}", hint=near or f"expected {ACCEPTED}")
    if not isinstance(value, Mapping) or len(value) != 1 or not set(value) <= _TABLES:
        raise WrongType
    [(kind, inner)] = value.items()
    if kind == "fixed" and isinstance(inner, int | float) and not isinstance(inner, bool):
        inner = str(inner)
    if not isinstance(inner, str) or len(inner) > _TEXT_LIMIT or "\0" in inner:
        raise WrongType
    if kind == "expression":
        _check_expression(inner)
    return Rule(kind, inner)


_TOKEN = re.compile(
    r"(?P<quote>['\"])(?:\\.?|(?!(?P=quote)).)*(?P<end>(?P=quote)?)|`[^`]*(?P<tick>`?)"
    r"|[()]|(?P<wrong>[;#\\]|--|/\*|\*/)",
    re.DOTALL,
)
"""A string that is not closed ends with the text: its group ``end`` or ``tick`` is empty."""


def _check_expression(expression: str) -> None:
    """Raise InvalidSpec unless it can stand within a statement: closed, without a comment."""
    depth = 0
    for token in _TOKEN.finditer(expression):
        if token["wrong"]:
            raise InvalidSpec(f"the expression has {token[0]!r} in it, outside of a string")
        if "" in (token["end"], token["tick"]):
            raise InvalidSpec(f"the expression has a string that is not closed: {token[0][:20]!r}")
        depth += {"(": 1, ")": -1}.get(token[0], 0)
        if depth < 0:
            break
    if depth or not expression.strip():
        raise InvalidSpec("the expression is empty or its parentheses do not match")


class _Any(dict[str, Key]):
    """Keys of a table whose names are those of columns: all are known."""

    def __init__(self, key: Key) -> None:
        super().__init__()
        self._key = key

    def get(self, key: str, default: Any = None) -> Any:  # noqa: ARG002
        return self._key


_COLUMNS = _Any(Key(ACCEPTED, _rule))


def _columns(value: object) -> dict[str, Rule]:
    return parse_all(_COLUMNS, value, "")


def _tables(value: object) -> dict[str, dict[str, Rule]]:
    if not isinstance(value, Mapping):
        raise WrongType
    found = {}
    for name, table in value.items():
        database, dot, rest = str(name).partition(".")
        if not dot or not database or not rest or "*" in rest:
            raise InvalidSpec(
                f"{name!r} is not a table",
                hint='write [tables."database.table"], the database with or without *',
            )
        if database.count("*") > _STARS_LIMIT:
            raise InvalidSpec(f"{name!r} has more than {_STARS_LIMIT} stars")
        try:
            found[str(name)] = parse_all(_COLUMNS, table, name)
        except WrongType:
            raise InvalidSpec(
                f"{name} is not a table of rules", hint="its keys are columns"
            ) from None
    return found


def _locale(value: object) -> str:
    if not _LOCALE.fullmatch(text(value).lower()):
        raise WrongType
    return text(value).lower()


@dataclass(frozen=True)
class Rules:
    """The rules of a file."""

    tables: Mapping[str, Mapping[str, Rule]] = field(default_factory=dict)
    """``database.table``, which may have ``*`` in the database -> column -> rule."""
    defaults: Mapping[str, Rule] = field(default_factory=dict)
    """Column -> rule, in each covered table that has no own rule for it."""
    locale: str = "en"
    values: int = 5000
    """How many values of each kind are made up."""

    def covering(self, database: str, table: str) -> Mapping[str, Rule] | None:
        """The rules of a table's own columns; None if it is not covered."""
        keys = [key for key in self.tables if _names(key, database, table)]
        best = max(keys, key=lambda key: ("*" not in key, len(key)), default=None)
        return None if best is None else self.tables[best]

    def of(self, column: Column) -> Rule | None:
        """The rule of a column; None if it has none."""
        own = self.covering(column.database, column.table)
        if own is None:
            return None
        return own.get(column.name) or self.defaults.get(column.name)


def _names(key: str, database: str, table: str) -> bool:
    pattern, _, name = key.partition(".")
    return name == table and matches(pattern, database)


def matches(pattern: str, name: str) -> bool:
    """Whether ``pattern``, in which ``*`` stands for anything, fits ``name``.

    Each part between two stars is at its first place behind the one before: so nothing is tried
    twice.
    """
    first, *parts = pattern.split("*")
    if not parts:
        return pattern == name
    last = parts.pop()
    if not name.startswith(first) or not name.endswith(last):
        return False
    at, end = len(first), len(name) - len(last)
    for part in parts:
        found = name.find(part, at, max(end, 0))
        if found < 0:
            return False
        at = found + len(part)
    return at <= end


_KEYS = {
    "tables": Key('tables such as [tables."shop.customers"]', _tables),
    "defaults": Key("a table of columns", _columns),
    "locale": Key("a language such as en, de or pt-br", _locale),
    "values": within(10, 100_000),
}


def parse(content: bytes, place: object) -> Rules:
    """The rules in a file's ``content``; ``place``: its name, for messages.

    Raises InvalidSpec that names table and column.
    """
    if len(content) > FILE_LIMIT:
        raise InvalidSpec(f"{place} is too large for a file of rules", hint="1 MiB at most")
    rules = Rules(**parse_all(_KEYS, tomlfile.loads(content, place), place))
    if not rules.tables:
        raise InvalidSpec(
            f"{place} has no rules", hint='write a table [tables."database.table"] for each table'
        )
    return rules


def read_text(path: Path) -> str:
    """The text of a file of rules; raises InvalidSpec, also if it has something else."""
    read(path)
    return read_file(path, FILE_LIMIT)


def read(path: Path) -> Rules:
    """The rules in the file at ``path``; raises InvalidSpec, also if it cannot be read."""
    try:
        with path.open("rb") as file:
            content = file.read(FILE_LIMIT + 1)
    except OSError as error:
        raise InvalidSpec(f"{path} cannot be read: {error.strerror}") from error
    return parse(content, path)


def uncovered(columns: Iterable[Column], rules: Rules) -> tuple[Column, ...]:
    """The columns of covered tables that no rule names; those that are computed need none."""
    return tuple(
        column
        for column in columns
        if not column.generated
        and rules.covering(column.database, column.table) is not None
        and rules.of(column) is None
    )


def unknown(columns: Sequence[Column], rules: Rules) -> tuple[InvalidSpec, ...]:
    """An error for each rule whose table or column does not exist.

    A column of a key with ``*`` must exist in one of its tables, and that of ``[defaults]``
    in one of those that are covered.
    """
    tables: dict[tuple[str, str], set[str]] = {}
    for column in columns:
        tables.setdefault((column.database, column.table), set()).add(column.name)
    everything = [f"{database}.{table}" for database, table in tables]
    found = []
    covered: set[str] = set()
    for key, own in rules.tables.items():
        named = [names for table, names in tables.items() if _names(key, *table)]
        if not named:
            hint = did_you_mean(key, everything, otherwise="`*` stands for any part of a database")
            found.append(InvalidSpec(f"there is no table {key}, which a rule names", hint=hint))
            continue
        there = set().union(*named)
        covered |= there
        found += [_no_column(key, name, there) for name in own if name not in there]
    found += [_no_column("[defaults]", name, covered) for name in rules.defaults
              if covered and name not in covered]  # fmt: skip
    return tuple(found)


def _no_column(key: str, name: str, there: set[str]) -> InvalidSpec:
    known = sorted(there)
    return InvalidSpec(
        f"{key}: there is no column {name!r}, which a rule names",
        hint=did_you_mean(name, known, otherwise=f"columns: {', '.join(known[:20])}"),
    )


@dataclass(frozen=True)
class Suspicion:
    """A column that looks personal, and has no rule."""

    column: Column
    reason: str
    rule: str
    """The kind of rule that fits."""


_DATES = frozenset({"date", "datetime", "timestamp", "year"})
_ANY_TEXT = TEXTS
_TEXT_OR_NUMBER = TEXTS | frozenset(INTEGERS) | {"decimal"}
_SUSPECTS: Sequence[tuple[str, str, str, frozenset[str]]] = (
    # What it may be, the rule that fits, words of its name, types. en, de, fr, es, it, pt, nl.
    ("an e-mail address", "email",
     "email mail emailaddress mailaddress courriel correo epost", _ANY_TEXT),
    ("a first name", "first_name",
     "firstname fname givenname forename vorname prenom nombre nome voornaam", _ANY_TEXT),
    ("a last name", "last_name",
     ("lastname lname surname familyname nachname familienname nomfamille apellido apellidos"
     " cognome sobrenome achternaam maidenname geburtsname"), _ANY_TEXT),
    ("a person's name", "name",
     ("fullname realname displayname personname customername contactname"
     " kundenname nomcomplet nombrecompleto"), _ANY_TEXT),
    ("a login name", "username", ("username login loginname benutzername usuario"
     " utilisateur gebruikersnaam nick nickname"), _ANY_TEXT),
    ("a telephone number", "phone",
     ("phone phonenumber tel telephone mobile mobil cell cellphone fax msisdn telefon telefono"
     " telefone telefoon handy portable celular"), _TEXT_OR_NUMBER),
    ("a postal address", "address",
     ("address addr street streetname adresse anschrift strasse rue calle direccion indirizzo"
     " endereco rua adres straat housenumber hausnummer"), _ANY_TEXT),
    ("a postal code", "postal_code",
     "zip zipcode postcode postalcode plz codepostal codigopostal cep", _TEXT_OR_NUMBER),
    ("a city", "city", "city town ort stadt ville ciudad citta cidade stad", _ANY_TEXT),
    ("a bank account or card", "hash",
     ("iban bic swift account accountnumber kontonummer konto creditcard cardnumber card ccnumber"
     " cvv cvc pan kreditkarte cuenta"), _TEXT_OR_NUMBER),
    ("an official number", "hash",
     ("ssn socialsecurity socialsecuritynumber passport passportnumber idcard nationalid taxid"
     " taxnumber vatnumber driverslicense licensenumber steuernummer steuerid ausweis ausweisnummer"
     " nir dni nif nie cpf cnpj bsn codicefiscale personnummer"), _TEXT_OR_NUMBER),
    ("a date of birth", "shuffle",
     ("birth birthday birthdate dateofbirth dob born geburtsdatum geburtstag naissance nacimiento"
     " nascita nascimento geboortedatum"), _TEXT_OR_NUMBER | _DATES),
    ("a network address", "hash",
     "ip ipaddress ipaddr ipv4 ipv6 remoteaddr mac macaddress", _TEXT_OR_NUMBER
     | {"inet4", "inet6", "varbinary", "binary"}),
    ("a secret", "hash",
     ("password passwd pwd pass passwort kennwort motdepasse contrasena senha wachtwoord secret"
     " token apikey accesstoken refreshtoken sessionid otp pin salt privatekey"),
     _ANY_TEXT | {"binary", "varbinary", "blob", "tinyblob"}),
    ("health or belief", "null",
     "gender sex religion ethnicity nationality diagnosis disease geschlecht konfession",
     _ANY_TEXT | {"enum", "set", "tinyint"}),
    ("a place", "shuffle", "latitude longitude lat lon lng geo gps",
     frozenset({"decimal", "double", "float", "point", "geometry"}) | _ANY_TEXT),
)  # fmt: skip
_PEOPLE = (
    "customer customers client clients user users person persons people employee employees"
    " staff contact contacts member members patient patients student students passenger"
    " passengers author authors owner owners guest guests kunde kunden personen mitarbeiter"
    " cliente clientes usuarios personne personnes utilisateurs clienti utenti pessoas klanten"
)
_WORD = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[^\W\d_A-Z]+|[A-Z]+|\d+")
_PLAIN_LETTERS = str.maketrans({"ß": "ss"})
_WORDS_OF_NAME = 12


def scan(columns: Iterable[Column], rules: Rules | None = None) -> tuple[Suspicion, ...]:
    """The columns that look personal by name and type, and that no rule names.

    A guess, for a person to look at: columns of other names hold personal data too.
    """
    found = []
    for column in columns:
        if column.generated or (rules is not None and rules.of(column) is not None):
            continue
        if suspicion := _suspicion(column):
            found.append(suspicion)
    return tuple(found)


def _suspicion(column: Column) -> Suspicion | None:
    runs = _runs(column.name)
    for what, rule, words, types in _SUSPECTS:
        if column.type in types and (hits := runs.keys() & _words(words)):
            part = runs[max(sorted(hits), key=len)]
            reason = f"{what}: {part!r} in its name, type {column.type}"
            return Suspicion(column, reason, _fitting(column, rule))
    if "name" in runs and column.is_text and (hits := _runs(column.table).keys() & _words(_PEOPLE)):
        return Suspicion(column, f"a person's name: the table is of {min(hits)!r}", "name")
    return None


def _fitting(column: Column, rule: str) -> str:
    """``rule`` if a column of this type can have it, else ``shuffle``."""
    if rule == "null" and not column.nullable:
        return "shuffle"
    if rule in REALISTIC and not column.is_text:
        return "shuffle"
    if rule == "hash" and column.type not in TEXTS | BINARIES | frozenset(INTEGERS):
        return "shuffle"
    return rule


@lru_cache(maxsize=64)
def _words(words: str) -> frozenset[str]:
    return frozenset(words.split())


def _runs(name: str) -> dict[str, str]:
    """The words of a name, and neighbours joined, each with its part of the name.

    ``e_mail`` and ``eMail`` have ``email``.
    """
    found = list(islice(_WORD.finditer(name), _WORDS_OF_NAME))
    words = [_plain(word[0]) for word in found]
    return {
        "".join(words[start:end]): name[found[start].start() : found[end - 1].end()]
        for start in range(len(words))
        for end in range(start + 1, min(start + 3, len(words)) + 1)
    }


def _plain(word: str) -> str:
    """``word`` in small letters without accents."""
    split = unicodedata.normalize("NFKD", word.lower().translate(_PLAIN_LETTERS))
    return "".join(letter for letter in split if not unicodedata.combining(letter))

"""Collations of one family's servers that another server lacks, and the nearest one that it has.

MySQL's ``utf8mb4_LANGUAGE_0900_*`` are of Unicode 9.0 and do not pad, MariaDB's ``uca1400_*`` of
14.0. Sources: what MySQL 9.7 and MariaDB 10.11 and 11.4.5 list and create (SHOW COLLATION), and the
documentation of MariaDB ("Supported Character Sets and Collations").
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from lab.config.enginefile import DialectName

LANGUAGES: Mapping[str, str] = {
    "": "", "cs": "czech", "da": "danish", "de_pb": "german2", "eo": "esperanto", "es": "spanish",
    "es_trad": "spanish2", "et": "estonian", "hr": "croatian", "hu": "hungarian",
    "is": "icelandic", "la": "roman", "lt": "lithuanian", "lv": "latvian", "pl": "polish",
    "ro": "romanian", "sk": "slovak", "sl": "slovenian", "sv": "swedish", "tr": "turkish",
    "vi": "vietnamese",
}  # fmt: skip
"""MySQL's words and MariaDB's, which has the names of these collations as aliases since 11.4.5."""
OTHERS: Mapping[str, str] = {
    "bg": "", "bs": "croatian", "gl": "spanish", "ja": "", "mn_cyrl": "", "nb": "danish",
    "nn": "danish", "ru": "", "sr_latn": "croatian", "zh": "",
}  # fmt: skip
"""MySQL's words for languages that MariaDB has no aliases of, and what is nearest there."""
_OF_MYSQL = {one: word for word, one in LANGUAGES.items()}
UCA1400 = (10, 10)
"""The first series of MariaDB with these."""
_PADDING = {"utf8mb4_nopad_bin": "utf8mb4_0900_bin"}
"""What MySQL has of MariaDB's that do not pad."""
_0900 = re.compile(r"utf8mb4_(?:([a-z_]+)_)?0900_(bin|a[is]_c[is])(?:_ks)?")
_1400 = re.compile(r"([a-z0-9]+)_uca1400_(?:(?!nopad_)([a-z0-9]+)_)?(?:(nopad)_)?(a[is]_c[is])")


_FORMER: Mapping[DialectName, tuple[str, str, str]] = {
    "mysql": ("SET SESSION default_collation_for_utf8mb4=", "utf8mb4_general_ci", ";"),
    "mariadb": ("/*M!110201 SET SESSION character_set_collations=", "''", " */;"),
}
"""What sets the collations that utf8mb4 and others have without a COLLATE, and its former value."""

NAMED: Mapping[DialectName, tuple[int, ...]] = {"mysql": (8,), "mariadb": (1000,)}
"""The first version whose dumps name all collations that a server of the same dialect would choose
otherwise. MariaDB's do since minor versions of its series, so for none of them it is relied on."""


def former(dialect: DialectName, *, off: bool = False) -> str:
    """A statement for a server: a character set has the collation that it had in older ones.

    Those of MySQL before 8.0 and of MariaDB before 11.5 leave it out of what they show. ``off``:
    the statement that has the server's own again.
    """
    head, value, tail = _FORMER[dialect]
    return f"{head}{'DEFAULT' if off else value}{tail}"


def nearest(name: str, dialect: DialectName, version: tuple[int, ...]) -> str:
    """The collation of a server that is nearest to one of another's that it lacks."""
    if found := _0900.fullmatch(name.lower()):
        language, kind = found[1] or "", found[2]
        word = LANGUAGES.get(language, OTHERS.get(language, ""))
        return _of_mariadb("utf8mb4", word, "nopad", kind, version)
    if found := _1400.fullmatch(name.lower()):
        charset, word, pad, kind = found.groups(default="")
        return _NEAREST[dialect](charset, word, pad, kind, version)
    return _PADDING.get(name.lower(), name.lower().replace("nopad_", ""))


def _of_mariadb(charset: str, word: str, pad: str, kind: str, version: tuple[int, ...]) -> str:
    is_new = not version or version >= UCA1400
    if kind == "bin" or (not is_new and kind != "ai_ci"):  # else values that differ become equal
        return "_".join(filter(None, (charset, pad, "bin")))
    if is_new:
        return "_".join(filter(None, (charset, "uca1400", word, pad, kind)))
    if word:
        return f"{charset}_{word}_ci"
    return "_".join(filter(None, (charset, "unicode_520", pad, "ci")))


def _of_mysql(charset: str, word: str, _pad: str, kind: str, _version: tuple[int, ...]) -> str:
    if charset != "utf8mb4":
        return f"{charset}_unicode_520_ci" if kind == "ai_ci" else f"{charset}_bin"
    language = _OF_MYSQL.get(word, "")
    if kind != "ai_ci" and (language or kind == "ai_cs"):
        kind = "as_cs"
    return "_".join(filter(None, (charset, language, "0900", kind)))


_NEAREST: Mapping[DialectName, Callable[[str, str, str, str, tuple[int, ...]], str]] = {
    "mariadb": _of_mariadb,
    "mysql": _of_mysql,
}
"""By the dialect of the server that is to have it."""

"""Takes secrets out of texts: known ones, what looks like one, and the literals of statements.

A bundle is sent to others. Data of users is in statements, which servers show in process lists, in
the status of InnoDB and in their logs: literals become ``?`` there, as in a digest of
``performance_schema``. Too much is taken out rather than too little.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

GONE = "(removed)"
_SHORTEST = 4
"""Characters of a known secret that is looked for: shorter ones are in every text."""

_KEY = re.compile(
    r"-----BEGIN ([A-Z ]*)PRIVATE KEY-----.*?(?:-----END \1PRIVATE KEY-----|\Z)", re.S
)
_TOKEN = re.compile(r"\blab_[0-9a-f]{12}_[A-Za-z0-9_-]{43}")
_BEARER = re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}")
_HASH = re.compile(r"\*[0-9A-F]{40}\b|\$A\$005\$\S{20,}")
_IN_URL = re.compile(r"(://[^\s/:@]{0,64}:)[^\s/@]{1,256}@")
_SECRET = re.compile(r"(?i)passw|secret|token|private_key|credential")
# No repetition is without a limit where what follows it may be missing: who writes a log decides
# what is in it.
_ASSIGNED = re.compile(
    r"""(?ix) ( (?:passw(?:or)?d|passwd|pwd|secret|token|auth_string|authentication_string
        |sst_auth|private_key|credential)[\w-]{0,32} ["']?\s{0,8}[=:\t]\s{0,8} )
        ( "(?:[^"\\\n]|\\.){0,512}" | '(?:[^'\\\n]|\\.){0,512}' | [^\s,;"']+ )"""
)
_OPTION = re.compile(r"(?<=\s)-p[^\s-]\S*")
"""A password as clients of MySQL take it in their arguments."""
_LITERAL = re.compile(
    r"""(?isx) '[^'\\]*(?:(?:\\.|'')[^'\\]*)*(?:'|\\?\Z)
        | "[^"\\]*(?:(?:\\.|"")[^"\\]*)*(?:"|\\?\Z)
        | \b0x[0-9a-f]+\b | \b0b[01]+\b"""
)
"""To its end, or that of the text: what is not closed was cut."""
_NUMBER = re.compile(r"(?<![\w.`$@])-?\d+(?:\.\d+)?(?:e[+-]?\d+)?\b")
_STATEMENT = re.compile(
    r"""(?ix) \b(?: select | insert\s{1,9}(?:(?:ignore|delayed|low_priority)\s{1,9})?into
        | replace\s{1,9}into | delete\s{1,9}from | update\s{1,9}\S{1,200}\s{1,9}set
        | set\s{1,9}[@\w.`]{1,200}\s{0,9}:?= | set\s{1,9}password
        | (?:create|alter|drop)\s{1,9}(?:or\s{1,9}replace\s{1,9})?(?:definer|table|temporary|user
            |role|view|database|schema|trigger|procedure|function|event|index|unique|server)
        | grant\s.{1,300}?\sto | revoke\s.{1,300}?\sfrom | call\s{1,9}[\w.`]{1,200}\s{0,9}\(
        | load\s{1,9}data | values\s{0,9}\( | with\s{1,9}(?:recursive\s{1,9})?[\w`]{1,200}\s{0,9}
            (?:\([^)]{0,300}\)\s{0,9})?as\s{0,9}\( | execute\s{1,9}immediate
        | prepare\s{1,9}\S{1,200}\s{1,9}from | identified\s{1,9}(?:by|with|via) )"""
)
"""Where a statement begins in a line of a log, whose words are English else."""
_LINE = re.compile(r"(\S+ \S+ ([\w.@-]+)\[\d+\]: |)(.*)")
"""A line of the journal: time, host and program, and what that wrote."""
_OWN = re.compile(r"\d{4}-\d\d-\d\d[T ]|\d{6}\s|\d+ \[")
"""With what servers begin each message; further lines of a statement begin in no such way."""


class Redactor:
    """``secrets``: those that are known, such as the password of a lab."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        known = sorted({one for one in secrets if len(one) >= _SHORTEST}, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, known))) if known else None

    def text(self, text: str) -> str:
        """Without secrets."""
        if self._known:
            text = self._known.sub(GONE, text)
        text = _KEY.sub(GONE, text)
        text = _TOKEN.sub(GONE, text)
        text = _BEARER.sub(rf"\1 {GONE}", text)
        text = _HASH.sub(GONE, text)
        text = _IN_URL.sub(rf"\1{GONE}@", text)
        text = _ASSIGNED.sub(rf"\1{GONE}", text)
        return _OPTION.sub(f"-p{GONE}", text)

    def value(self, value: Any, name: str = "") -> Any:
        """A value of JSON, ``name`` its key, with texts that are without secrets."""
        if isinstance(value, str):
            return GONE if value and _SECRET.search(name) else self.text(value)
        if isinstance(value, dict):
            return {key: self.value(one, str(key)) for key, one in value.items()}
        return [self.value(one, name) for one in value] if isinstance(value, list) else value

    def statement(self, text: str) -> str:
        """A text with statements anywhere: without secrets, and without any literals."""
        return self.text(_NUMBER.sub("?", _LITERAL.sub("?", text)))

    def status(self, text: str) -> str:
        """A text with statements and figures of their server: its literals but for numbers."""
        return self.text(_LITERAL.sub("?", text))

    def log(self, text: str) -> str:
        """A log: without secrets, and without the literals of statements in it.

        Of a statement of several lines only the first one stays: who reads the second one does not
        know where a literal begins.
        """
        found, inside = [], dict[str, bool]()
        for line in text.splitlines():
            match = _LINE.fullmatch(line)
            head, program, said = match.groups("") if match else ("", "", line)
            if inside.get(program) and said and not _OWN.match(said):
                found.append(f"{head}{GONE}")
                continue
            begins = _STATEMENT.search(said)
            inside[program] = begins is not None
            if begins:
                rest = _NUMBER.sub("?", _LITERAL.sub("?", said[begins.start() :]))
                said = said[: begins.start()] + rest
            found.append(f"{head}{said}")
        return self.text("\n".join(found) + ("\n" if text.endswith("\n") else ""))

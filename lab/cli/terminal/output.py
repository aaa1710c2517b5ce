"""Output on stdout: a view in one of the formats."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from typing import Literal

from lab.errors import InvalidSpec, LabError
from lab.suggest import did_you_mean
from lab.texts import harmless

Format = Literal["table", "json", "yaml", "name"]
FORMATS: tuple[Format, ...] = ("table", "json", "yaml", "name")


def parse_format(text: str) -> Format:
    """The format of that name; raises InvalidSpec."""
    for known in FORMATS:
        if text == known:
            return known
    hint = did_you_mean(text, FORMATS, otherwise=f"one of {', '.join(FORMATS)}")
    raise InvalidSpec(f"{text!r} is not an output format", hint=hint)


def emit(
    data: object,
    how: Format,
    *,
    table: Callable[[], str],
    names: Callable[[], Iterable[str]],
) -> None:
    """Print ``data``: all of it as JSON or YAML, else the text of ``table`` or ``names``."""
    if how == "json":
        text = as_json(data)
    elif how == "yaml":
        text = as_yaml(data)
    elif how == "name":
        text = "".join(f"{name}\n" for name in names())
    else:
        text = table()
    if sys.stdout.isatty() and how != "json":  # which escapes them
        text = harmless(text)
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise LabError(f"the output cannot be written: {error.strerror}") from None


def as_json(data: object) -> str:
    """Indented JSON with a newline at its end."""
    import msgspec

    plain = msgspec.json.encode(data, enc_hook=str)
    text = msgspec.json.format(plain, indent=2).decode() + "\n"
    # As JSON escapes the other control characters: some command a terminal (ECMA-48, 8-bit C1).
    return re.sub("[\x7f-\x9f]", lambda found: f"\\u{ord(found[0]):04x}", text)


def as_yaml(data: object) -> str:
    """A YAML document, keys in the order of the view."""
    import msgspec
    import yaml

    plain = msgspec.to_builtins(data, enc_hook=str)
    text: str = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)
    return text

"""The OpenAPI document says what JSON Schema knows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lab import options
from lab.request import fields
from lab.requests.labs import CreateLab
from tests.support.documents import as_text
from tests.support.serve_world import site


def _words(part: object) -> set[str]:
    if isinstance(part, list):
        return set().union(*map(_words, part))
    return set(part).union(*map(_words, part.values())) if isinstance(part, dict) else set()


def test_the_document_is_the_recorded_one(short: Path, golden: Callable[[str, str], None]) -> None:
    """Protects clients: no path, field, limit or scope changes because code was rearranged.

    Where the API is to change, ``python -m pytest tests/service/test_document.py --update-golden``
    rewrites the file, and ``git diff`` shows what clients will see.
    """
    with site(short) as here:
        golden("openapi.json", as_text(here.ask("GET", "/openapi.json").json()))


def test_limits_have_the_words_of_json_schema(short: Path) -> None:
    """Protects clients made from the document: unknown words are ignored, and limits with them."""
    with site(short) as here:
        schemas = here.ask("GET", "/openapi.json").json()["components"]["schemas"]
    assert not _words(schemas) & {"ge", "le", "gt", "lt", "multiple_of"}
    timeout = schemas["Command"]["properties"]["timeout"]
    assert any("exclusiveMinimum" in one for one in timeout["anyOf"])


def test_options_are_sent_as_the_document_shows_them() -> None:
    """Protects who writes a client: lab.toml has more forms, such as `delay = "1h"`."""
    field = fields(CreateLab)["options"].__metadata__[-1]
    example: Any = next(iter(field.examples))
    assert {"delay", "on", "set", "node"} <= set(example)
    assert json.loads(json.dumps(options.of(example).said)) == example
    for form in ("`delay` is a number of seconds", "`on`, `set` and `node` are lists"):
        assert form in field.description

"""The OpenAPI document says what JSON Schema knows."""

from __future__ import annotations

from pathlib import Path

from tests.support.serve_world import site


def _words(part: object) -> set[str]:
    if isinstance(part, list):
        return set().union(*map(_words, part))
    return set(part).union(*map(_words, part.values())) if isinstance(part, dict) else set()


def test_limits_have_the_words_of_json_schema(short: Path) -> None:
    """Protects clients made from the document: unknown words are ignored, and limits with them."""
    with site(short) as here:
        schemas = here.ask("GET", "/openapi.json").json()["components"]["schemas"]
    assert not _words(schemas) & {"ge", "le", "gt", "lt", "multiple_of"}
    timeout = schemas["Command"]["properties"]["timeout"]
    assert any("exclusiveMinimum" in one for one in timeout["anyOf"])

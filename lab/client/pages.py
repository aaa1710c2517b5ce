"""Lists, which a service tells in parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lab.client.models import Page, read
from lab.client.transport import Wire


def items(wire: Wire, path: str, query: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """All items of a list, part by part as they are needed."""
    after: str | None = ""
    while after is not None:
        more = {"after": after} if after else {}
        page = read(wire.ask("GET", path, query={**query, **more}).body, Page)
        yield from page.items
        after = page.next

"""The base of all requests."""

from __future__ import annotations

from typing import ClassVar

import msgspec


class Request(msgspec.Struct, frozen=True):
    """The base of all requests. ``LATER``: fields added after rows were written (see above).

    ``LARGE``: fields that only the job reads, and that end with it: texts, which may hold secrets,
    and lists.
    """

    LATER: ClassVar[tuple[str, ...]] = ()
    LARGE: ClassVar[tuple[str, ...]] = ()

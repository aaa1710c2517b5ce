"""What of a live server is loaded: apart from its reader, which `lab up` does not import."""

from __future__ import annotations

from lab.values import dataclass


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

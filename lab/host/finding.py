"""What ``lab doctor`` found: one line each."""

from __future__ import annotations

from typing import Literal

from lab.values import dataclass

Level = Literal["ok", "note", "warn", "fail"]


@dataclass(frozen=True)
class Finding:
    """What was found of a host, and what to do about it."""

    topic: str
    level: Level
    """``note`` could be better, ``warn`` will hurt, ``fail``: labs cannot work so."""
    value: str
    """What was found."""
    advice: str = ""
    """What to do; empty if nothing."""
    why: str = ""
    """The reason, in one line."""

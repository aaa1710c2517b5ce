"""What ``lab doctor`` found: one line each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "note", "warn", "fail"]


@dataclass(frozen=True)
class Finding:
    """``value``: what is there. ``advice``: what to do, empty if nothing. ``why``: in one line.

    ``level``: ``note`` could be better, ``warn`` will hurt, ``fail``: labs cannot work so.
    """

    topic: str
    level: Level
    value: str
    advice: str = ""
    why: str = ""

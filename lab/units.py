"""Sizes, durations and times, as they are written down and as keys of files."""

import re
from datetime import datetime, timezone
from typing import Annotated

from lab.errors import InvalidSpec
from lab.keys import Key, WrongType, text, whole

MIB = 1 << 20
GIB = 1 << 30

_SIZE = re.compile(r"(\d{1,15})\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)
_UNIT = {"": 1, "K": 1 << 10, "M": MIB, "G": GIB, "T": 1 << 40}
_DURATION = re.compile(r"(?:(\d{1,5})d)?(?:(\d{1,6})h)?(?:(\d{1,7})m)?(?:(\d{1,9})s)?")


def parse_size(text: str) -> int:
    """Bytes from ``768M``, ``2G``, ``512MiB``; binary units; raises InvalidSpec."""
    match = _SIZE.fullmatch(text.strip())
    if not match:
        raise InvalidSpec(f"{text!r} is not a size", hint="write sizes like 768M or 2G")
    return int(match[1]) * _UNIT[match[2].upper()]


def format_size(size: int) -> str:
    """``size`` bytes as a person writes it: ``768M``, ``1.5G``."""
    for unit, factor in (("T", 1 << 40), ("G", GIB), ("M", MIB), ("K", 1 << 10)):
        if size >= factor:
            number = f"{size / factor:.1f}"
            return number.removesuffix(".0") + unit
    return f"{size}B"


def counted(number: int, noun: str) -> str:
    """``1 node``, ``3 nodes``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def parse_duration(text: str) -> float:
    """Seconds from ``90s``, ``15m``, ``2h``, ``1d12h``; raises InvalidSpec."""
    match = _DURATION.fullmatch(text.strip())
    if text.strip().isdecimal():
        # 5 is no lease of five seconds: whoever means hours would lose the lab with its data.
        raise InvalidSpec(
            f"{text!r} has no unit", hint="write durations like 90s, 30m, 2h or 1d12h"
        )
    if not match or not match[0]:
        raise InvalidSpec(
            f"{text!r} is not a duration", hint="write durations like 30m, 2h or 1d12h"
        )
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    total = float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
    if total <= 0:
        raise InvalidSpec(
            f"the duration must be greater than zero, not {text!r}", hint="give at least 1s"
        )
    return total


def format_duration(seconds: float) -> str:
    """``seconds`` in the two largest units that matter: ``1h30m``, ``45s``."""
    left = int(seconds)
    parts = []
    for unit, factor in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        if left >= factor:
            parts.append(f"{left // factor}{unit}")
            left %= factor
    return "".join(parts[:2]) or "0s"


def format_time(at: float) -> str:
    """``at`` (epoch seconds) as RFC 3339 has it, in UTC: ``2026-11-22T16:35:59.250000Z``."""
    moment = datetime.fromtimestamp(at, timezone.utc)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def parse_time(text: str) -> float:
    """Epoch seconds from a time of RFC 3339; raises InvalidSpec."""
    try:
        moment = datetime.fromisoformat(text.upper().replace("Z", "+00:00"))
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise InvalidSpec(f"{text!r} is not a time", hint="such as 2026-11-22T16:35:59Z")
    return moment.timestamp()


def _size(value: object) -> int:
    return parse_size(value) if isinstance(value, str) else whole(value)


def _seconds(value: object) -> float:
    if isinstance(value, str):
        if not re.fullmatch(r"\s*\d{1,10}(\.\d{1,9})?\s*", value):
            return parse_duration(value)
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e10:
        raise WrongType
    return float(value)


def _seconds_or_zero(value: object) -> float:
    zero = value == 0 or (isinstance(value, str) and value.strip() == "0")
    return 0.0 if zero and not isinstance(value, bool) else _seconds(value)


def _lease(value: object) -> float | None:
    words = text(value).strip().lower()
    if words in {"", "none"}:
        return None
    return parse_duration(words)


SIZE = Key("bytes, or a size such as 2G", _size)
Size = Annotated[int, SIZE]
"""The type of a field in bytes."""
Seconds = Annotated[float, Key("seconds, or a duration such as 5m", _seconds)]
"""The type of a field in seconds."""
SecondsOrZero = Annotated[float, Key("seconds, a duration such as 5m, or 0", _seconds_or_zero)]
"""The type of a field in seconds that may be 0, which means that there is no limit, or never."""
Lease = Annotated[float | None, Key("a duration such as 2h, or none", _lease)]
"""The type of a lease in seconds; None: none."""

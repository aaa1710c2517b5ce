"""Values that are cached for some time in a small JSON file, such as that a repository answered.

Any process of a home may write it, without a lock: each write replaces the file, and of two at
the same moment one may be lost. So only what can be found out again belongs in it.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from lab.drafts import replaced


def recall(memory: Path) -> dict[str, tuple[float, Any]]:
    """The values in the file ``memory``: when each was written (seconds since the epoch), and it.

    Nothing if the file is missing or damaged.
    """
    try:
        found = json.loads(memory.read_text(encoding="utf-8"))
        return {str(key): (float(at), value) for key, (at, value) in found.items()}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return {}


def remember(memory: Path, key: str, value: object) -> None:
    """Keep ``value`` for ``key``, remembered now; raises HostUnfit."""
    _write(memory, {**recall(memory), key: (time.time(), value)})


def forget(memory: Path, key: str) -> None:
    """Remove the value for ``key``; raises HostUnfit."""
    known = recall(memory)
    if known.pop(key, None) is not None:
        _write(memory, known)


def _write(memory: Path, known: dict[str, tuple[float, Any]]) -> None:
    with replaced(memory, 0o644) as draft:
        draft.write_text(json.dumps(known), encoding="utf-8")

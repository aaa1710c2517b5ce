"""The OpenAPI document as a golden file."""

from __future__ import annotations

import json
from typing import Any


def as_text(document: dict[str, Any]) -> str:
    """``document`` with a field a line; the order of fields, which has no meaning, is sorted."""
    return json.dumps(document, indent=1, sort_keys=True) + "\n"

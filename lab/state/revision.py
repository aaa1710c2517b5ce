"""Which schemas this program works with; they can be compared without SQLAlchemy."""

from __future__ import annotations

REVISION = "0026"
"""The head of ``migrations/versions``."""
OLDEST = "0021"
"""The first of them: homes of before that are not upgraded."""

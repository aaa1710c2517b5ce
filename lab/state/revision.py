"""Which schema this program works with; it can be compared without SQLAlchemy."""

from __future__ import annotations

REVISION = "0021"
"""The head of ``migrations/versions``."""

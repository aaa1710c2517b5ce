"""Which schema this program works with; it can be compared without SQLAlchemy."""

from __future__ import annotations

REVISION = "0020"
"""The head of ``migrations/versions``."""

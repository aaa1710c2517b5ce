"""The tests, by what they protect; ``support``, and files without ``test_``, are their parts."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
"""The checkout."""

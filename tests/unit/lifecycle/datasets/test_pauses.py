"""How often a guest that loads data is asked how far it is."""

from __future__ import annotations

import pytest

from lab.lifecycle.datasets.loader import pause


@pytest.mark.parametrize(
    ("took", "done", "size", "elapsed", "seconds"),
    [
        (0.01, 10, 1000, 1.0, 1.0),  # a fast guest: each second
        (0.3, 10, 1000, 10.0, 6.0),  # a slow one loads most of the time
        (5.0, 10, 1000, 10.0, 10.0),  # somebody waits for it
        (0.3, 900, 1000, 36.0, 2.0),  # 4 s are left
        (0.3, 1000, 1000, 36.0, 1.0),  # the last statement is executed
        (0.3, 2000, 1000, 36.0, 1.0),  # a guest may say anything
        (0.3, 0, 1000, 0.0, 6.0),
        (0.3, 10, 0, 10.0, 6.0),  # a size that is not known
    ],
)
def test_looks_cost_little_and_the_end_is_seen_soon(
    took: float, done: int, size: int, elapsed: float, seconds: float
) -> None:
    assert pause(took, done, size, elapsed) == pytest.approx(seconds)

"""Failures on order, for the ``before`` of the fake storage."""

from __future__ import annotations

from lab.errors import LabError


class FailAt:
    """Raises ``error`` at the ``call``-th time (from 1) that ``step`` is about to happen."""

    def __init__(self, step: str, call: int, error: LabError) -> None:
        self._step, self._left, self._error = step, call, error

    def __call__(self, step: str) -> None:
        """Count ``step``, raise when it is time."""
        if step == self._step:
            self._left -= 1
            if self._left == 0:
                raise self._error

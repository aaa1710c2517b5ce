"""Undo steps, added with each step and dropped on success.

The idea is from Incus's ``revert`` package.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from lab.errors import Interrupted, LabError


class Undo:
    """Runs what was pushed, last first, unless ``keep`` was called.

    Every step runs even when one before it fails. What failed is noted on the exception
    under way, so that the first cause stays the one that is reported.
    """

    def __init__(self) -> None:
        self._steps: list[tuple[str, Callable[[], object]]] = []

    def push(self, what: str, step: Callable[[], object]) -> None:
        """Add a step; ``what`` names it in error details, such as ``guest lab-pxc-n1``."""
        self._steps.append((what, step))

    def keep(self) -> None:
        """Success: drop all steps."""
        self._steps.clear()

    def __enter__(self) -> Undo:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        left: list[str] = []
        while self._steps:
            what, step = self._steps.pop()
            try:
                step()
            except (LabError, OSError) as failed:
                left.append(f"not undone: {what}: {failed}")
        if left and isinstance(error, LabError):
            error.details += (*left, "`lab gc` removes what is left")
        elif left and (error is None or isinstance(error, KeyboardInterrupt)):
            raised = LabError if error is None else Interrupted
            raise raised("not everything could be undone", details=left, hint="run `lab gc`")

"""Commands that were run with labs of their own, as they are shown."""

from __future__ import annotations

from lab.values import dataclass


@dataclass(frozen=True)
class RunReport:
    """How a command ended that was run with a lab of its own."""

    engine: str
    """The engine that was requested; empty: none was."""
    servers: tuple[str, ...] = ()
    """The engines of the lab's servers with their versions; empty without a lab."""
    image: str = ""
    """The key of its image."""
    code: int | None = None
    """The exit code of the command; None if it was not run."""
    ready_seconds: float | None = None
    """Duration of the lab's start."""
    seconds: float | None = None
    """Duration of the command."""
    error: str = ""
    """Why it was not run."""

"""What is read in nodes by way of a service: the output of programs, and logs."""

from __future__ import annotations

from lab.marks import Public
from lab.values import dataclass


@dataclass(frozen=True)
class Output:
    """The output of a program."""

    stdout: Public[str]


@dataclass(frozen=True)
class LogLines:
    """The last lines of a log."""

    lines: Public[tuple[str, ...]]

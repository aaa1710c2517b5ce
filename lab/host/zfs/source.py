"""Where facts come from: files below a root, and what programs print."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from lab.errors import CommandFailed, HostUnfit
from lab.host.zfs.facts import Unknown

TIMEOUT = 10.0
"""Seconds a program may take: a suspended pool makes some of them wait for good."""

Raw = TypeVar("Raw")
Value = TypeVar("Value")
Run = Callable[[Sequence[str]], str]


def run(argv: Sequence[str]) -> str:
    """What ``argv`` prints, in the C locale; raises HostUnfit or CommandFailed."""
    from lab import run as programs

    env = {**os.environ, "LC_ALL": "C"}
    return programs.run(argv, timeout=TIMEOUT, env=env).stdout


def formed(fact: Raw | Unknown, form: Callable[[Raw], Value]) -> Value | Unknown:
    """``form(fact)``; an unknown fact stays as it is."""
    return fact if isinstance(fact, Unknown) else form(fact)


@dataclass(frozen=True)
class Source:
    """Tests pass their own: a directory with files, a function that knows some answers."""

    root: Path = Path("/")
    run: Run = run

    def path(self, path: str) -> Path:
        """Where the file or directory ``path`` is."""
        return self.root / path.lstrip("/")

    def exists(self, path: str) -> bool:
        """True if there is such a file or directory."""
        return self.path(path).exists()

    def text(self, path: str) -> str | Unknown:
        """What a file holds."""
        try:
            return self.path(path).read_text(encoding="utf-8", errors="replace")
        except (FileNotFoundError, NotADirectoryError):
            return Unknown("not in this version", absent=True)
        except OSError as error:
            return Unknown(f"{path}: {error.strerror}")

    def number(self, path: str) -> int | Unknown:
        """The number that a file holds."""
        text = self.text(path)
        if isinstance(text, Unknown):
            return text
        try:
            return int(text)
        except ValueError:
            return Unknown(f"{path} holds {text.strip()[:40]!r}, which is no number")

    def said(self, *argv: str) -> str | Unknown:
        """What a program prints."""
        try:
            return self.run(argv)
        except HostUnfit:
            return Unknown(f"{argv[0]} is not installed", absent=True)
        except CommandFailed as error:
            reason = error.details[0] if error.details else error.what
            return Unknown(f"`{' '.join(argv)}`: {reason}")

"""The sources of facts: files below a root, and the output of programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from lab.errors import CommandFailed, HostUnfit
from lab.host.zfs.facts import Unknown
from lab.values import dataclass

TIMEOUT = 10.0
"""The timeout of a program in seconds: on a suspended pool some hang."""

Raw = TypeVar("Raw")
Value = TypeVar("Value")
Run = Callable[[Sequence[str]], str]


def run(argv: Sequence[str]) -> str:
    """The output of ``argv``, in English; raises HostUnfit or CommandFailed."""
    from lab import run as programs

    return programs.run(argv, timeout=TIMEOUT).stdout


def formed(fact: Raw | Unknown, form: Callable[[Raw], Value]) -> Value | Unknown:
    """``form(fact)``; an unknown fact stays as it is."""
    return fact if isinstance(fact, Unknown) else form(fact)


@dataclass(frozen=True)
class Source:
    """The files and programs of this host; tests pass others."""

    root: Path = Path("/")
    run: Run = run

    def path(self, path: str) -> Path:
        """The path of a file or directory below the root."""
        return self.root / path.lstrip("/")

    def exists(self, path: str) -> bool:
        """True if there is such a file or directory."""
        return self.path(path).exists()

    def text(self, path: str) -> str | Unknown:
        """The content of a file."""
        try:
            return self.path(path).read_text(encoding="utf-8", errors="replace")
        except (FileNotFoundError, NotADirectoryError):
            return Unknown("not in this version", absent=True)
        except OSError as error:
            return Unknown(f"{path}: {error.strerror}")

    def number(self, path: str) -> int | Unknown:
        """The number in a file."""
        text = self.text(path)
        if isinstance(text, Unknown):
            return text
        try:
            return int(text)
        except ValueError:
            return Unknown(f"{path} holds {text.strip()[:40]!r}, which is no number")

    def output(self, *argv: str) -> str | Unknown:
        """The output of a program."""
        try:
            return self.run(argv)
        except HostUnfit:
            return Unknown(f"{argv[0]} is not installed", absent=True)
        except CommandFailed as error:
            reason = error.details[0] if error.details else error.what
            return Unknown(f"`{' '.join(argv)}`: {reason}")

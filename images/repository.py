"""A signed APT repository besides Debian's: its key, its source entry, whether it answers."""

from __future__ import annotations

from pathlib import Path

from images.recipe import Repository


def setup_hooks(repository: Repository, scratch: Path) -> list[str]:
    raise NotImplementedError

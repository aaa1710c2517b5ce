"""The content key of an image: equal inputs, equal key.

The inputs are the recipe's files, the content of an added build, the files all guests share, the
builder's own source, the machine's architecture, the package list and a node's volumes. Versions of
packages are no input: what the mirror offers today is not known without asking it. ``lab image
build --rebuild`` makes a new image from the same key.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from pathlib import Path

from lab.imagebuild.recipe import DIALECTS, GUEST, HERE, Recipe, all_packages, load_guest, shared
from lab.imagebuild.tree import files

FORMAT = 1
"""Raised when an image's layout changes in a way that its inputs do not show."""


def image_key(
    recipe: Recipe,
    *,
    volumes: Mapping[str, int],
    guest: Path = GUEST,
    dialects: Path = DIALECTS,
    source: Path = HERE,
    machine: str = "",
) -> str:
    """16 hexadecimal digits for what ``recipe`` would make here.

    ``volumes``: the names of a node's volumes and the block size in bytes with which storage
    that has such a thing keeps them. ``machine`` is the architecture, this one's if empty.
    """
    parts = {
        "format": FORMAT,
        "machine": machine or platform.machine(),
        "suite": recipe.suite,
        "volumes": dict(volumes),
        "packages": all_packages(recipe, load_guest(guest)),
        "recipe": _tree(recipe.directory),
        "guest": [f for some in shared(recipe, guest, dialects) for f in _tree(some)],
        "builder": [
            (path.name, _digest(path.read_bytes()))
            for path in sorted([*source.glob("*.py"), *source.glob("*.sh")])
        ],
    }
    if recipe.build is not None:
        parts["build"] = recipe.build.content
    return _digest(json.dumps(parts, sort_keys=True).encode())[:16]


def _tree(directory: Path) -> list[tuple[str, int, str]]:
    return [(file.path, file.mode, _digest(file.content)) for file in files(directory)]


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()

"""What the guest's program ``load`` does in a fake guest: the statements of a disk, one by one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from lab.datasets.dump import chunks, statements
from lab.errors import CommandFailed

_PASSED_OVER = re.compile(rb"/\*M?!|(USE|SET|LOCK|UNLOCK|COMMIT)\b", re.IGNORECASE)
"""What SQLite does not have, and what data do not depend on."""


def run(disk: Path, size: int, execute: Callable[[str], object]) -> str:
    """What ``look`` says once the server's client has read a disk's SQL, or had an error."""
    with disk.open("rb") as file:
        for one in statements(_first(size, chunks(file))):
            if _PASSED_OVER.match(one.text):
                continue
            try:
                execute(one.text.decode())
            except CommandFailed as error:
                file.seek(0)
                line = file.read(one.offset).count(b"\n") + 1
                return f"done 1\nERROR 1064 (42000) at line {line}: {error.stderr}\n"
    return "done 0\n"


def _first(size: int, data: Iterable[bytes]) -> Iterator[bytes]:
    for chunk in data:
        yield chunk[:size]
        size -= len(chunk)
        if size <= 0:
            return

"""The authority of a home: it signs the certificates of its labs' servers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from lab.errors import HostUnfit
from lab.locks.named import lock
from lab.paths import Home, writing

if TYPE_CHECKING:
    from lab.guest.authority import Authority


def certificate(home: Home) -> Path:
    """The file with the authority's certificate, for clients to check servers with.

    It is made by its first use, and stays. Raises HostUnfit.
    """
    if not home.ca.exists():
        with lock(home, "state", "ca"):
            if not home.ca.exists():
                _make(home)
    return home.ca


def authority(home: Home) -> Authority:
    """What signs, made by its first use; raises HostUnfit."""
    from lab.guest.authority import read

    path = certificate(home)
    try:
        return read(home.ca_key.read_bytes(), path.read_bytes())
    except (OSError, ValueError) as error:
        raise HostUnfit(
            f"the authority of this home cannot be used: {error}",
            hint=f"remove {path}: then there is a new one, which clients must be given",
        ) from error


def _make(home: Home) -> None:
    """The key first: where the certificate is, all is."""
    from lab.guest.authority import make

    made = make(f"lab {home.id}")
    _write(home.ca_key, made.private, 0o600)
    _write(home.ca, made.certificate, 0o644)


def _write(path: Path, content: bytes, mode: int) -> None:
    draft = path.with_name(f"{path.name}.new")
    with writing(path):
        draft.unlink(missing_ok=True)
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(fd, "wb") as file:
            os.fchmod(fd, mode)
            file.write(content)
            file.flush()
            os.fsync(fd)
        draft.replace(path)

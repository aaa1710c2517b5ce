"""The authority of a home: it signs the certificates of its labs' servers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from lab.drafts import replaced
from lab.errors import HostUnfit
from lab.locks.named import lock
from lab.paths import Home

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
    with replaced(home.ca_key, durable=True) as file:
        file.write_bytes(made.private)
    with replaced(home.ca, 0o644, durable=True) as file:
        file.write_bytes(made.certificate)

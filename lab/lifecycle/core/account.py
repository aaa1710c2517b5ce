"""Accounts. ``sql`` uses them; it is not imported before a server is to be asked."""

from __future__ import annotations

from dataclasses import dataclass, field

from lab.names import LOOPBACK


@dataclass(frozen=True)
class Account:
    """An account, and the address of its server.

    ``ca``: a file with the certificate of the authority that the server's is to be signed by;
    empty: no TLS. ``verify``: check that certificate, and that it is for ``host``.
    """

    user: str
    password: str = field(repr=False)
    host: str = LOOPBACK
    ca: str = ""
    verify: bool = True

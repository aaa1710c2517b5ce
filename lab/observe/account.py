"""Accounts. ``sql`` uses them; it is not imported before a server is to be asked."""

from __future__ import annotations

from dataclasses import field

from lab.names import LOOPBACK
from lab.passwords import NATIVE
from lab.values import dataclass


@dataclass(frozen=True)
class Account:
    """An account, and the address of its server."""

    user: str
    password: str = field(repr=False)
    host: str = LOOPBACK
    ca: str = ""
    """A file with the certificate of the authority that the server's is to be signed by; empty: no
    TLS."""
    verify: bool = True
    """Whether to check that certificate, and that it is for ``host``."""
    plain: bool = False
    """Whether its server also takes it without TLS."""
    peer: int | None = None
    """The user (id) whose program has to be at the other end of a connection on this host. It then
    needs no TLS: only that program reads what is sent, and a login costs a guest a tenth of it."""
    plugin: str = NATIVE
    """How the account authenticates. With ``caching_sha2_password`` a server that was started again
    is sent the password itself, so it takes TLS with ``verify``."""

    @property
    def usable(self) -> bool:
        """Whether a server can be asked: none is sent a password unless it is the one meant."""
        return self.plugin == NATIVE or (bool(self.ca) and self.verify)

    @property
    def tls(self) -> bool:
        """Whether connections are encrypted."""
        return bool(self.ca) and self.peer is None

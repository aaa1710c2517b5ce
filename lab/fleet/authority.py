"""The fleet's certificates: hosts know each other by them.

The authority's key is in the fleet's database, as whoever writes there decides what hosts do.
"""

from __future__ import annotations

from lab.errors import HostUnfit
from lab.fleet.database import FleetDatabase
from lab.guest import authority
from lab.guest.authority import TlsKey
from lab.values import dataclass

_NAME = "lab fleet"


@dataclass(frozen=True)
class Identity:
    """A host's key and certificate, and the authority's, by which it knows the others; PEM."""

    own: TlsKey
    authority: bytes


def identify(database: FleetDatabase, host: str) -> Identity:
    """A fresh key for a host, and its certificate for ``host`` as its name.

    The first host makes the authority. Raises HostUnfit if it is damaged, Unreachable.
    """
    made = authority.make(_NAME)
    database.run(
        "INSERT INTO lab.authority (id, certificate, key) VALUES (1, :certificate, :key)"
        " ON CONFLICT (id) DO NOTHING",
        certificate=made.certificate, key=made.private,
    )  # fmt: skip
    ((certificate, key),) = database.run("SELECT certificate, key FROM lab.authority")
    try:
        found = authority.read(bytes(key), bytes(certificate))
    except ValueError as error:
        raise HostUnfit(f"the authority of the fleet is damaged: {error}") from error
    return Identity(authority.issue(found, host, [host], client=True), bytes(certificate))

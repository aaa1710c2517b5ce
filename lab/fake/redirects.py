"""Ports of the host that the fake hypervisor redirects to guests."""

from __future__ import annotations

from collections.abc import Callable

from lab.fake.guests import Guests
from lab.names import GuestName


class FakeRedirects:
    """See Redirects. ``before`` is called first, and may raise."""

    def __init__(self, guests: Guests, before: Callable[[str], None]) -> None:
        self._guests = guests
        self._before = before

    def ports(self) -> dict[int, GuestName]:
        """See Redirects."""
        self._before("redirects")
        with self._guests.hold():
            return {port: record.name for record in self._guests.all() for port in record.ports}

"""The record: what was intended, by whom, and what was made of it.

It records intent and ownership; what exists is asked of storage and hypervisor. ``records``
are the rows as frozen dataclasses (cheap to import), ``store`` is the way to them (costs
the import of SQLAlchemy, so ``open_store`` imports it).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lab.distribution import extra

if TYPE_CHECKING:
    from lab.paths import Home
    from lab.state.store import Store


def open_store(home: Home) -> Store:
    """The record of ``home``; see ``Store``. Raises HostUnfit if SQLAlchemy is not installed."""
    with extra("host", "the record of the labs of this host"):
        from lab.state.store import Store

    return Store(home)

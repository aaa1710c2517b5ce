"""The record: what was intended, by whom, and what was made of it.

It records intent and ownership; what exists is asked of storage and hypervisor. ``records``
are the rows as frozen dataclasses (cheap to import), ``store`` is the way to them (costs
the import of SQLAlchemy, so ``open_store`` imports it).
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, cast

from lab.distribution import extra

if TYPE_CHECKING:
    from lab.paths import Home
    from lab.state.records import LabWithNodes
    from lab.state.store import Store


def open_store(home: Home) -> Store:
    """The record of ``home``; see ``Store``. Raises HostUnfit if SQLAlchemy is not installed."""
    with extra("host", "the record of the labs of this host"):
        from lab.state.store import Store

    return Store(home)


def open_late(home: Home) -> Store:
    """``open_store`` when something is used of it that takes it: to list labs does not."""
    return cast("Store", _Late(home))


class _Late:
    """A ``Store`` that is opened, and its library imported, when it is needed.

    Without that library labs are listed in half of the time.
    """

    def __init__(self, home: Home) -> None:
        self._home = home
        self._opening = threading.Lock()
        self._store: Store | None = None

    def labs_with_nodes(self) -> list[LabWithNodes]:
        """See ``Store``."""
        from lab.state import reading

        found = reading.labs_with_nodes(self._home.database) if self._store is None else None
        return self._opened().labs_with_nodes() if found is None else found

    def close(self) -> None:
        """See ``Store``."""
        if self._store is not None:
            self._store.close()

    def __enter__(self) -> _Late:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._opened(), name)

    def _opened(self) -> Store:
        with self._opening:
            if self._store is None:
                self._store = open_store(self._home)
            return self._store

"""Opening the record, and SQLAlchemy without what only its asynchronous half needs.

SQLAlchemy imports asyncio and importlib.metadata, and with them ssl, email and zipfile: a
tenth of ``lab ls``, and we are synchronous. While it is imported it is given modules that
stand in for these two and import the real one when something of it is asked for. Nobody else
sees them.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lab.paths import Home
    from lab.state.store import Store

_NAMES = ("asyncio", "importlib.metadata")
_ABSENT = "greenlet"
"""What SQLAlchemy takes to mean that asyncio is used at once; it does without."""


def open_store(home: Home) -> Store:
    """The record of ``home``; see ``Store``."""
    _import_sqlalchemy()
    from lab.state.store import Store

    return Store(home)


def _import_sqlalchemy() -> None:
    """Import SQLAlchemy, in full if the process has loaded asyncio already."""
    if "sqlalchemy" in sys.modules or "asyncio" in sys.modules or _ABSENT in sys.modules:
        return
    stand_ins = {name: _stand_in(name) for name in _NAMES if name not in sys.modules}
    sys.modules.update(stand_ins)
    sys.modules[_ABSENT] = None  # type: ignore[assignment]  # the documented way to hide one
    try:
        import_module("sqlalchemy.dialects.sqlite")
    finally:
        for name in (*stand_ins, _ABSENT):
            del sys.modules[name]


def _stand_in(name: str) -> ModuleType:
    def real(attribute: str) -> Any:
        return getattr(import_module(name), attribute)

    module = ModuleType(name)
    vars(module)["__getattr__"] = real  # PEP 562
    return module

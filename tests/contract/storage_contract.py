"""The contract of ``lab.storage.Storage``, as tests that each driver's test class inherits.

A driver's class gives two fixtures: ``place``, a fresh place with volumes, and ``small_place``,
one with room for about ``SMALL_ROOM`` bytes.
"""

from __future__ import annotations

import pytest

from lab.storage import Storage
from tests.contract.storage_basics import Basics
from tests.contract.storage_crashes import Crashes
from tests.contract.storage_extents import Extents
from tests.contract.storage_imports import Imports
from tests.contract.storage_overwrite import Overwrites
from tests.contract.storage_place import Place
from tests.contract.storage_returns import Histories, Returns
from tests.contract.storage_streams import SMALL_ROOM, FullDisks, Streams

__all__ = [
    "SMALL_ROOM",
    "ContentContract",
    "CrashContract",
    "HistoryContract",
    "Place",
    "StorageContract",
    "StreamsContract",
    "VolumesContract",
]


class _Opened:
    @pytest.fixture
    def storage(self, place: Place) -> Storage:
        return place.open("home")


class VolumesContract(_Opened, Basics, Returns):
    """What labs on one host depend on."""


class HistoryContract(_Opened, Histories):
    """What holds for volumes that went back several times."""


class ContentContract(_Opened, Imports, Overwrites, Extents):
    """What holds for volumes whose content is brought, read and overwritten as a whole."""


class StreamsContract(_Opened, Streams, FullDisks):
    """What holds for volumes that are sent elsewhere, and where there is no space."""


class CrashContract(_Opened, Crashes):
    """What holds when processes race, or are killed."""


class StorageContract(
    VolumesContract, HistoryContract, ContentContract, StreamsContract, CrashContract
):
    """The whole contract."""

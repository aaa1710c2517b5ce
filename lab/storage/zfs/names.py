"""The names of volumes' datasets, and the limits of ZFS for names."""

from __future__ import annotations

import re

from lab.errors import InvalidSpec
from lab.names import Owner, VolumeName
from lab.values import dataclass

NAME_LIMIT = 255
"""The maximum length of a full name in bytes (ZFS_MAX_DATASET_NAME_LEN less one)."""
LABEL_LIMIT = 64
"""The maximum length of a snapshot's label; see ``rules.check_label``."""

_NUMBER_ROOM = len("_9999")
_LEAF = re.compile(r"([a-z0-9.-]+)_([a-z0-9.-]+)(?:_([1-9][0-9]{0,3}))?")
# No part of a volume's name has an underscore, so the leaf is parsed unambiguously.


@dataclass(frozen=True)
class Layout:
    """The datasets below ``root``, the parent dataset."""

    root: str

    @property
    def works(self) -> str:
        """The parent of datasets that are being created, or wait to be destroyed."""
        return f"{self.root}/.work"

    def folder(self, owner: Owner) -> str:
        """The folder of the volumes of ``owner``."""
        return f"{self.root}/{owner.kind}s/{owner.name}"

    def dataset(self, volume: VolumeName, number: int = 0) -> str:
        """The dataset ``number`` of ``volume``; 0 is the base.

        Raises InvalidSpec if its name leaves no room for a snapshot's.
        """
        base = f"{self.folder(volume.owner)}/{volume.node}_{volume.volume}"
        over = len(base) + _NUMBER_ROOM + 1 + LABEL_LIMIT - NAME_LIMIT
        if over > 0:
            raise InvalidSpec(
                f"the name of volume {volume} is too long for ZFS below {self.root},"
                f" by {over} characters",
                hint="choose a shorter name, or a parent dataset with a shorter one",
            )
        return f"{base}_{number}" if number else base

    def parse(self, dataset: str) -> tuple[VolumeName, int] | None:
        """Volume and number of a dataset; None if it belongs to no volume."""
        if not dataset.startswith(f"{self.root}/"):
            return None
        parts = dataset.removeprefix(f"{self.root}/").split("/")
        leaf = _LEAF.fullmatch(parts[-1])
        if len(parts) != 3 or not leaf:
            return None
        try:
            name = VolumeName.parse("/".join([*parts[:2], leaf[1], leaf[2]]))
        except InvalidSpec:
            return None
        return name, int(leaf[3] or 0)

    def is_owner(self, dataset: str) -> bool:
        """True for the name of an owner's folder."""
        parts = dataset.removeprefix(f"{self.root}/").split("/")
        return dataset.startswith(f"{self.root}/") and len(parts) == 2 and parts[0] != ".work"

    def spoken(self, dataset: str) -> str:
        """The volume's name if ``dataset`` is one, else the dataset's: for messages."""
        found = self.parse(dataset)
        return str(found[0]) if found else dataset

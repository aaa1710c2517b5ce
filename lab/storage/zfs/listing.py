"""What ``zfs get -Hp`` prints, as datasets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

COLUMNS = "name,property,value,source"
SOURCES = "local,none"
"""What is set on the dataset itself, and what is no setting: sizes, origin, numbers."""


@dataclass(frozen=True)
class Dataset:
    """A file system, volume or snapshot.

    ``facts``: what ZFS says of it; ``local``: what was set on it, not inherited, not received.
    """

    name: str
    facts: Mapping[str, str]
    local: Mapping[str, str]

    @property
    def kind(self) -> str:
        """``filesystem``, ``volume`` or ``snapshot``."""
        return self.facts.get("type", "")

    @property
    def label(self) -> str:
        """What follows the @ in a snapshot's name."""
        return self.name.partition("@")[2]

    @property
    def origin(self) -> str:
        """The snapshot that it is a clone of; empty if it is none."""
        return self._fact("origin")

    @property
    def clones(self) -> list[str]:
        """The clones of a snapshot, in the whole pool."""
        found = self._fact("clones")
        return found.split(",") if found else []

    def number(self, name: str) -> int:
        """A fact that is a number, such as ``used``; 0 if there is none."""
        found = self.local.get(name) or self.facts.get(name, "")
        return int(found) if found.isdecimal() else 0

    def _fact(self, name: str) -> str:
        found = self.facts.get(name, "")
        return "" if found == "-" else found


def parse(text: str) -> list[Dataset]:
    """The datasets in the order in which they come.

    Lines that are not of four fields are skipped: a property of somebody else may hold tabs
    and newlines. So is the last line if it was cut.
    """
    facts: dict[str, dict[str, str]] = {}
    local: dict[str, dict[str, str]] = {}
    for line in text.split("\n")[:-1]:
        fields = line.split("\t")
        if len(fields) != 4 or not all((fields[0], fields[1], fields[3])):
            continue
        name, key, value, source = fields
        facts.setdefault(name, {})
        local.setdefault(name, {})
        if source == "-":
            facts[name][key] = value
        elif source == "local":
            local[name][key] = value
    return [Dataset(name, facts[name], local[name]) for name in facts]

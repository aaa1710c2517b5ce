"""The output of ``zfs get -Hp`` as datasets."""

from __future__ import annotations

from collections.abc import Mapping

from lab.values import dataclass

COLUMNS = "name,property,value,source"
SOURCES = "local,none"
"""Sources of properties set on the dataset itself, and of read-only ones (sizes, origin)."""


@dataclass(frozen=True)
class Dataset:
    """A file system, volume or snapshot.

    ``facts``: read-only properties; ``local``: set on it, neither inherited nor received.
    """

    name: str
    facts: Mapping[str, str]
    local: Mapping[str, str]

    @property
    def kind(self) -> str:
        """The type of the dataset: ``filesystem``, ``volume`` or ``snapshot``."""
        return self.facts.get("type", "")

    @property
    def label(self) -> str:
        """The part of a snapshot's name after the @."""
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
        """A numeric fact, such as ``used``; 0 if it is absent."""
        found = self.local.get(name) or self.facts.get(name, "")
        return int(found) if found.isdecimal() else 0

    def _fact(self, name: str) -> str:
        found = self.facts.get(name, "")
        return "" if found == "-" else found


def parse(text: str) -> list[Dataset]:
    """The datasets in the order of the output.

    Lines without four fields are skipped: user properties of others may contain tabs and
    newlines. So is an incomplete last line.
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

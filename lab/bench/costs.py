"""What labs would cost a month at the size of a production system, by prices that a user gives.

A file of prices::

    currency = "$"

    [price]          # a month
    disk_gb = 0.08
    vcpu = 12.5
    ram_gb = 2

    [cluster]
    data_gb = 700    # on disk, of a node with the first profile of the experiment
    nodes = 3
    vcpus = 4        # of a node
    ram_gb = 16      # of a node
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from lab import texts
from lab.config import tomlfile
from lab.keys import Key, WrongType, complete, keys, matching, parse_all, within
from lab.units import counted
from lab.values import dataclass

_LIMIT = 64 << 10
"""Bytes of a file of prices."""
_MOST = 1_000_000
"""Of each number."""


def _amount(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise WrongType
    if not 0 <= value <= _MOST:  # nor is NaN, and a whole number may have thousands of digits
        raise WrongType
    return float(value)


def _positive(value: object) -> float:
    if not (found := _amount(value)):
        raise WrongType
    return found


_Amount = Annotated[float, Key(f"a number from 0 to {_MOST}", _amount)]
_Positive = Annotated[float, Key(f"a number above 0, {_MOST} at most", _positive)]
_Count = Annotated[int, within(1, _MOST)]


@dataclass(frozen=True)
class Price:
    """Prices of a month; 0 is no price."""

    disk_gb: _Amount
    vcpu: _Amount = 0.0
    ram_gb: _Amount = 0.0


@dataclass(frozen=True)
class Size:
    """The cluster whose costs are computed; amounts but for ``nodes`` are of a node."""

    data_gb: _Positive
    """On disk, with the first profile of the experiment."""
    nodes: _Count = 1
    vcpus: _Amount = 0.0
    ram_gb: _Amount = 0.0


@dataclass(frozen=True)
class Prices:
    """A file of prices."""

    currency: Annotated[
        str, matching("a code of three letters, or one of $ € £ ¥", "[A-Za-z]{3}|[$€£¥]")
    ]
    price: Price
    cluster: Size

    def scaled(self, used: int | None, reference: int | None) -> float | None:
        """GB on disk of a node that used ``used`` bytes where the first profile used ``reference``.

        None where either was not observed.
        """
        if used is None or not reference:
            return None
        return self.cluster.data_gb * used / reference

    def month(self, disk_gb: float) -> float:
        """The costs of the cluster with so many GB on disk of each node."""
        size, price = self.cluster, self.price
        node = disk_gb * price.disk_gb + size.vcpus * price.vcpu + size.ram_gb * price.ram_gb
        return size.nodes * node

    @property
    def cluster_text(self) -> str:
        """The cluster, for a person."""
        size = self.cluster
        return (
            f"{counted(size.nodes, 'node')}; of each: {size.vcpus:g} vCPU, {size.ram_gb:g} GB of"
            f" RAM, {size.data_gb:g} GB on disk"
        )


def read(path: Path) -> Prices:
    """The prices in a file; raises InvalidSpec that names file and key."""
    table = tomlfile.loads(texts.read(path, _LIMIT).encode(), path)
    return complete(Prices, parse_all(keys(Prices), table, path), path)

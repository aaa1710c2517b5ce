"""Published experiments, repeated in kind: what theirs was, and how ours is shrunk.

Each published figure stands beside ours with the factor by which ours is smaller; the servers,
file systems and machines differ, so only the shape can be compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Literal, get_args

from lab.bench.workloads import Scale, WorkloadName
from lab.units import format_size
from lab.values import dataclass

ExperimentName = Literal["dump-import", "create-tables", "buffer-pool", "tpcc"]
EXPERIMENTS: tuple[ExperimentName, ...] = get_args(ExperimentName)

_ROW = 230
"""Bytes of a row of sysbench's table, with its indexes."""
_SHARES = (10, 25, 45, 70)
"""Percentages of the data that fit into the buffer pool."""
_LEAST_POOL = 6 << 20
"""Bytes: servers refuse one that is much smaller."""
_MIB = 1 << 20


@dataclass(frozen=True)
class Variant:
    """What differs between two labs of an experiment."""

    name: str
    profile: str = ""
    options: tuple[str, ...] = ()
    """As of ``--set``."""


PROFILES = tuple(Variant(f"profile {one}", one) for one in ("durable", "balanced", "disposable"))


@dataclass(frozen=True)
class Published:
    """A figure of the original: seconds, or transactions a second."""

    where: str
    figure: float
    note: str = ""


@dataclass(frozen=True)
class Cost:
    """What the original says that a system costs."""

    where: str
    month: float
    currency: str = "$"


@dataclass(frozen=True)
class Experiment:
    """An experiment, and the original that it repeats."""

    title: str
    source: str
    workload: WorkloadName
    unit: Literal["rows", "tables", "warehouses"]
    """What its size counts."""
    original: int
    """How many of these the original had, about."""
    usual: int
    """How many ours has unless another number is given."""
    published: tuple[Published, ...] = field(repr=False)
    step: str = ""
    """Which step of the workload is compared; empty for its only one."""
    timed: bool = True
    """Whether the time of all is compared; else transactions a second of a time."""
    threads: int = 1
    seconds: float = 60.0
    warm_up: float = 0.0
    costs: tuple[Cost, ...] = field(default=(), repr=False)
    """Of the original; empty: it is not about costs."""

    def factor(self, size: int) -> float:
        """How many times smaller ours is."""
        return self.original / size

    def scale(self, size: int) -> Scale:
        """Its size, as the workload takes it."""
        return Scale(**{self.unit: size})


_ALL: Mapping[ExperimentName, Experiment] = {
    "dump-import": Experiment(
        "a dump of one INSERT a row, each committed",
        "an article on MySQL 5.5 on ZFS under FreeBSD: 6 MB, about 40,000 rows of ours",
        "import",
        "rows",
        40_000,
        2_000,
        (
            Published("ZFS, untuned", 282.0, "each flush goes to the disk"),
            Published("UFS2", 4.0),
        ),
    ),
    "create-tables": Experiment(
        "InnoDB tables created one after the other",
        "a developer's notes on XFS, MySQL 5.1: 100,000 tables",
        "create-tables",
        "tables",
        100_000,
        200,
        (
            Published("ext3", 1271.0),
            Published("XFS", 768.0),
        ),
        step="create",
    ),
    "buffer-pool": Experiment(
        "transactions a second by size of the buffer pool",
        "an article on MySQL 5.0 on ZFS and UFS: 3.2 GB of data, 2 GB of RAM, 6 threads, 85 %"
        " SELECT, 5 % of the rows hot; its figures have no unit",
        "oltp_read_write",
        "rows",
        14_000_000,
        200_000,
        (
            Published("UFS, pool of 3 % of the data", 36.84, "5 minutes of warm-up"),
            Published("UFS, 16 %", 57.32),
            Published("UFS, 31 %", 82.41),
            Published("UFS, 44 %", 101.32),
            Published("ZFS, 3 %", 96.21, "data are cached twice"),
            Published("ZFS, 16 %", 94.99),
            Published("ZFS, 31 %", 98.35),
            Published("ZFS, 44 %", 117.83),
        ),
        timed=False,
        threads=6,
        warm_up=60.0,
    ),
    "tpcc": Experiment(
        "TPC-C-like transactions a second",
        "a talk on MySQL and ZFS: sysbench's TPC-C with 300 warehouses, 2 threads",
        "tpcc-like",
        "warehouses",
        300,
        1,
        (
            Published("local SSD, XFS", 110.0, "284 GB on disk"),
            Published("local SSD, ZFS lz4", 69.0, "102 GB on disk"),
            Published("local SSD, ZFS gzip", 59.0, "85 GB on disk"),
            Published("network disk, XFS", 3.0),
            Published("network disk, ZFS lz4 and L2ARC", 29.0),
        ),
        timed=False,
        threads=2,
        warm_up=30.0,
        costs=(
            Cost("replica for disaster recovery, 700 GB, XFS", 243.0),
            Cost("replica for disaster recovery, 700 GB, ZFS", 118.0),
            Cost("PXC of 3 nodes, 2 TB, XFS on local disks (i3)", 2700.0),
            Cost("PXC of 3 nodes, 2 TB, XFS on network disks (io1)", 4980.0),
            Cost("PXC of 3 nodes, 2 TB, ZFS on local disks (i3)", 1400.0),
        ),
    ),
}


def experiment(name: ExperimentName) -> Experiment:
    """The experiment of that name."""
    return _ALL[name]


def variants(name: ExperimentName, size: int) -> tuple[Variant, ...]:
    """The labs of an experiment of that size: by profile, or by buffer pool."""
    return _pools(size * _ROW) if name == "buffer-pool" else PROFILES


def _pools(data: int) -> tuple[Variant, ...]:
    found: list[Variant] = []
    for share in _SHARES:
        size = max(_LEAST_POOL, data * share // 100 // _MIB * _MIB)
        # MySQL rounds a pool up to whole chunks, of 128 MiB unless they are smaller.
        options = ("innodb_buffer_pool_chunk_size=1M", f"innodb_buffer_pool_size={size // _MIB}M")
        name = f"pool of {size * 100 // data} % of the data ({format_size(size)})"
        if all(one.name != name for one in found):
            found.append(Variant(name, "", options))
    return tuple(found)

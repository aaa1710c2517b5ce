"""Published experiments, repeated in kind: what theirs was, and how ours is shrunk.

Each published figure stands beside ours with the factor by which ours is smaller; the servers,
file systems and machines differ, so only the shape can be compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

from lab.bench.workloads import WorkloadName
from lab.values import dataclass

ExperimentName = Literal["dump-import", "create-tables"]
EXPERIMENTS: tuple[ExperimentName, ...] = get_args(ExperimentName)

PROFILES = ("durable", "balanced", "disposable")
"""What ours varies: the profile of the lab."""


@dataclass(frozen=True)
class Published:
    """A figure of the original."""

    where: str
    seconds: float
    note: str = ""


@dataclass(frozen=True)
class Experiment:
    """An experiment, and the original that it repeats."""

    title: str
    source: str
    workload: WorkloadName
    step: str
    """Which step of the workload is compared; empty for its only one."""
    unit: str
    """What is counted, such as ``rows``."""
    original: int
    """How many of these the original had, about."""
    usual: int
    """How many ours has unless another number is given."""
    published: tuple[Published, ...]

    def factor(self, count: int) -> float:
        """How many times smaller ours is."""
        return self.original / count


_ALL: Mapping[ExperimentName, Experiment] = {
    "dump-import": Experiment(
        "a dump of one INSERT a row, each committed",
        "an article on MySQL 5.5 on ZFS under FreeBSD: 6 MB, about 40,000 rows of ours",
        "import",
        "",
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
        "create",
        "tables",
        100_000,
        200,
        (
            Published("ext3", 1271.0),
            Published("XFS", 768.0),
        ),
    ),
}


def experiment(name: ExperimentName) -> Experiment:
    """The experiment of that name."""
    return _ALL[name]

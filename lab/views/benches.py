"""Results of benchmarks, as they are shown and recorded.

None of it goes through the API: a benchmark is run, and its results are kept, on the host of the
labs. What was not observed is None, or is not in the mapping.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Literal

from lab.bench.stats import Comparison
from lab.bench.sysbench import Measured
from lab.values import dataclass

Loop = Literal["closed", "open"]
"""Whether the next event of a thread begins when the last one has ended, or when it is due."""

CLOSED = (
    "closed loop: while the server stalls, threads wait and begin no events, so the percentiles"
    " have one late event for each thread in place of all that were due (coordinated omission);"
    " the series shows the stall, and --rate counts it"
)
OPEN = "open loop: an event's latency counts from when it was due, its wait for a thread included"


@dataclass(frozen=True)
class NodeUse:
    """What a node needed during a step."""

    node: str
    role: str
    counters: Mapping[str, int] = field(default_factory=dict)
    """By how much counters of its server rose."""
    cpu: float | None = None
    """Seconds of processor time of its guest's process on the host."""
    written: int | None = None
    """Bytes that this process had written to storage."""
    disk: int | None = None
    """Bytes on disk of its volumes, after the step."""


@dataclass(frozen=True)
class BenchStep:
    """What was measured with one number of threads."""

    name: str
    """The part of a workload that has several, such as ``create``; else empty."""
    threads: int
    measured: Measured
    nodes: tuple[NodeUse, ...] = ()


@dataclass(frozen=True)
class Check:
    """A condition that data must meet after a run."""

    what: str
    broken: int | None
    """How often it is broken; None: not known."""


@dataclass(frozen=True)
class BenchView:
    """A benchmark of one lab."""

    id: str
    at: float
    """When it began, in seconds since the epoch."""
    lab: str
    workload: str
    label: str
    blueprint: str
    engine: str
    profile: str
    options: str
    """What differs from the blueprint's defaults."""
    accelerator: str
    """``kvm``, or ``tcg`` for an emulated guest, whose figures are only for comparisons."""
    through: str
    """The node to which the client connected."""
    loop: Loop
    rate: int
    """Events a second, of an open loop; else 0."""
    seconds: float
    """Of a step, as requested."""
    warm_up: float
    tables: int
    rows: int
    warehouses: int
    steps: tuple[BenchStep, ...]
    checks: tuple[Check, ...] = ()

    @property
    def emulated(self) -> bool:
        """Whether guests were emulated."""
        return self.accelerator == "tcg"


@dataclass(frozen=True)
class Round:
    """One round of a comparison: events a second, and the 95th percentile in milliseconds."""

    first: Literal["a", "b"]
    """Which side ran first; of sides that ran at the same time, which had the first processors."""
    a: float
    b: float
    a_p95: float
    b_p95: float
    skew: float | None = None
    """Seconds between the starts of the two runs, where they ran at the same time."""


@dataclass(frozen=True)
class CompareView:
    """A comparison of two labs."""

    id: str
    at: float
    workload: str
    label: str
    a: str
    """What A is."""
    b: str
    accelerator: str
    order: Literal["duet", "turns"]
    why: str
    """Why that order."""
    threads: int
    seconds: float
    rate: int
    tables: int
    rows: int
    warehouses: int
    equal: tuple[Round, ...]
    """Rounds of A and A."""
    rounds: tuple[Round, ...]
    """Rounds of A and B."""
    tps: Comparison
    """Of events a second."""
    p95: Comparison | None
    """Of latency; None where a run had no event."""
    expect: str = ""

    @property
    def emulated(self) -> bool:
        """Whether guests were emulated."""
        return self.accelerator == "tcg"


@dataclass(frozen=True)
class BenchSummary:
    """A line of the list of results."""

    id: str
    at: float
    kind: Literal["run", "compare"]
    workload: str
    label: str
    lab: str
    """Of a comparison: both, with a slash between."""
    result: str

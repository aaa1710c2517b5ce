"""Requests for benchmarks; they are of the host of the labs, no service takes them."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from lab.bench.workloads import Scale, WorkloadName
from lab.names import LAB_NAME, WORD
from lab.request import EMPTY, HOST_ONLY, LAB, Request, Seconds

DAY = 86400.0
THREADS_LIMIT = 256
STEPS_LIMIT = 16
Order = Literal["auto", "duet", "turns"]
"""Whether the two sides run at the same time, or one after the other; auto: as the host permits."""
_Threads = Annotated[int, Meta(ge=1, le=THREADS_LIMIT)]
_LabName = Annotated[str, Meta(pattern=LAB_NAME)]


class LoadRequest(Request, frozen=True, kw_only=True):
    """What is run, and for how long."""

    workload: WorkloadName
    seconds: Annotated[Seconds, Meta(ge=1, le=DAY)] = 60.0
    """Of each step; a workload that has a number of events ends with these."""
    warm_up: Annotated[Seconds, Meta(ge=0, le=DAY)] = 10.0
    """A run before the first step that does not count."""
    tables: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    rows: Annotated[int, Meta(ge=0, le=1_000_000_000)] = 0
    warehouses: Annotated[int, Meta(ge=0, le=10_000)] = 0
    rate: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    """Events a second that begin, whether or not earlier ones have ended; 0: a closed loop."""
    proxied: bool = False
    """Whether the lab's proxy is used, and not the server that takes writes itself."""
    label: Annotated[str, EMPTY, Meta(pattern=WORD)] = ""
    """A name of the result, further to its id."""

    @property
    def scale(self) -> Scale:
        """How much data was requested."""
        return Scale(self.tables, self.rows, self.warehouses)


class RunBench(LoadRequest, frozen=True, kw_only=True):
    """A benchmark of a lab."""

    lab: Annotated[_LabName, LAB]
    threads: Annotated[tuple[_Threads, ...], Meta(min_length=1, max_length=STEPS_LIMIT)] = (1,)


class CompareBench(LoadRequest, frozen=True, kw_only=True):
    """A benchmark of two labs, A and B, round by round from snapshots of them."""

    a: _LabName
    b: _LabName
    threads: _Threads = 1
    rounds: Annotated[int, Meta(ge=2, le=1000)] = 8
    """Of A and B; as many of A and A come first."""
    order: Order = "auto"
    expect: Annotated[str, EMPTY, Meta(pattern=r"^[+-][0-9]{1,4}(\.[0-9]{1,2})?%$")] = ""
    """The effect that somebody expects, which is shown beside the result."""
    said_a: Annotated[str, HOST_ONLY] = ""
    """What A is, for the report."""
    said_b: Annotated[str, HOST_ONLY] = ""

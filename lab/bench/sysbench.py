"""What sysbench is given, and what it prints: parsed and bounded, since a guest says it.

Source: sysbench 1.0.20 (sysbench.c, sb_histogram.c, db_driver.c).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from lab.errors import CommandFailed, InvalidSpec
from lab.values import dataclass

IGNORED = "1213,1205,1020"
"""Errors after which an event is begun again: a deadlock (in Galera also a conflict), a lock wait
timeout, a row that changed since it was read."""
PERCENTILE = 95
"""Of the latency in each second of the series."""
LONGEST_SERIES = 100_000
HISTOGRAM_STEP = 0.018
"""How much wider, as a ratio less 1, each bar of sysbench's histogram begins than the last one."""
_HISTOGRAM = 2000
"""Lines of a histogram; sysbench's has 1024 steps."""
_WIDTH = 300
_DETAILS = 5

_SECOND_LINE = re.compile(
    r"\[ (\d{1,7})s \] thds: \d{1,6} (?:tps|eps): (\d{1,12}\.\d{2})"
    r"(?: qps: (\d{1,12}\.\d{2}) \(r/w/o: [0-9./]{1,60}\))?"
    r" lat \(ms,\d{1,3}%\): (\d{1,12}\.\d{2})(?: err/s: (\d{1,12}\.\d{2}))?.{0,60}"
)
_QUEUE_LINE = re.compile(r"\[ (\d{1,7})s \] queue length: (\d{1,9}), concurrency: \d{1,9}")
_BAR_LINE = re.compile(r" {1,12}(\d{1,12}\.\d{3}) \|\*{0,40} {1,41}(\d{1,15})")
_TOTAL_LINE = re.compile(
    r" {1,12}([a-z][a-z0-9 ]{1,40}): {1,40}(\d{1,15}(?:\.\d{1,4})?)s?(?: .{0,60})?"
)


@dataclass(frozen=True)
class Second:
    """One second of a run."""

    at: int
    """Seconds since its start."""
    tps: float
    qps: float
    p95: float
    """Milliseconds."""
    errors: float
    """Ignored errors a second."""
    queue: int | None = None
    """Events that waited for a thread at its end, of an open loop."""


@dataclass(frozen=True)
class Latency:
    """In milliseconds; percentiles are from sysbench's histogram, whose steps are 1.8 % wide."""

    low: float
    mean: float
    p50: float
    p95: float
    p99: float
    high: float


@dataclass(frozen=True)
class Measured:
    """What a run of sysbench measured."""

    seconds: float
    events: int
    """Transactions, or what is the unit of the workload."""
    queries: int
    ignored: int
    """Errors after which an event was begun again."""
    reconnects: int
    latency: Latency | None
    """None where there was no event."""
    series: tuple[Second, ...]
    tps: float = 0.0
    """Events a second, counted from the fields above, as ``qps`` is."""
    qps: float = 0.0

    def __post_init__(self) -> None:
        """Count the rates, of results as well that were recorded without them."""
        for name, count in (("tps", self.events), ("qps", self.queries)):
            object.__setattr__(self, name, count / self.seconds if self.seconds else 0.0)


def connection(user: str, password: str, hosts: Sequence[str], port: int, database: str) -> bytes:
    """The file with which sysbench connects, which nobody but the guest's root reads."""
    values = {
        "mysql-host": ",".join(hosts),
        "mysql-port": str(port),
        "mysql-user": user,
        "mysql-password": password,
        "mysql-db": database,
        "mysql-ignore-errors": IGNORED,
    }
    for name, value in values.items():
        if not value.isprintable() or value != value.strip():
            raise InvalidSpec(f"{name}: sysbench takes no such value")
    return "".join(f"{name}={value}\n" for name, value in values.items()).encode()


def options(threads: int, *, seconds: int = 0, events: int = 0, rate: int = 0) -> list[str]:
    """The options of a run; without ``events`` it takes ``seconds``."""
    found = [
        f"--threads={threads}", f"--events={events}", f"--time={seconds}", "--report-interval=1",
        f"--percentile={PERCENTILE}", "--histogram=on",
    ]  # fmt: skip
    return [*found, f"--rate={rate}"] if rate else found


def parse(output: bytes, script: str) -> Measured:
    """What a run printed; raises CommandFailed if it ended with an error or is not such output."""
    seconds: dict[int, Second] = {}
    queues: dict[int, int] = {}
    bars: list[tuple[float, int]] = []
    totals: dict[str, float] = {}
    for line in _lines(output):
        if found := _SECOND_LINE.fullmatch(line):
            at = int(found[1])
            if len(seconds) < LONGEST_SERIES:
                seconds[at] = Second(
                    at, float(found[2]), float(found[3] or 0), float(found[4]),
                    float(found[5] or 0),
                )  # fmt: skip
        elif found := _QUEUE_LINE.fullmatch(line):
            queues[int(found[1])] = int(found[2])
        elif found := _BAR_LINE.fullmatch(line):
            if len(bars) < _HISTOGRAM:
                bars.append((float(found[1]), int(found[2])))
        elif (found := _TOTAL_LINE.fullmatch(line)) and len(totals) < 100:
            totals.setdefault(found[1], float(found[2]))
    failed = [line[:_WIDTH] for line in _lines(output) if line.startswith("FATAL")]
    if failed or "total time" not in totals or "total number of events" not in totals:
        raise CommandFailed(
            ["sysbench", script], 1, stderr="\n".join(failed[:_DETAILS]) or _tail(output)
        )
    series = tuple(
        Second(one.at, one.tps, one.qps, one.p95, one.errors, queues.get(one.at))
        for one in (seconds[at] for at in sorted(seconds))
    )
    events = int(totals["total number of events"])
    return Measured(
        totals["total time"],
        events,
        int(totals.get("queries", 0)),
        int(totals.get("ignored errors", 0)),
        int(totals.get("reconnects", 0)),
        _latency(totals, bars) if events else None,
        series,
    )


def percentile(bars: Sequence[tuple[float, int]], percent: float) -> float:
    """The value of a histogram that so many per cent are not above; 0 for an empty one."""
    total, seen = sum(count for _, count in bars), 0
    for value, count in bars:
        seen += count
        if seen >= total * percent / 100:
            return value
    return 0.0


def _latency(totals: dict[str, float], bars: Sequence[tuple[float, int]]) -> Latency:
    """The latency; a step of the histogram may end after the longest event."""
    bars, high = sorted(bars), totals.get("max", 0.0)
    p50, p95, p99 = (min(percentile(bars, percent), high) for percent in (50, 95, 99))
    return Latency(totals.get("min", 0.0), totals.get("avg", 0.0), p50, p95, p99, high)


def _lines(output: bytes) -> Iterator[str]:
    for line in output.splitlines():
        yield line[:_WIDTH].decode(errors="replace").rstrip()


def _tail(output: bytes) -> str:
    lines = [line for line in _lines(output[-4096:]) if line]
    return "\n".join(lines[-_DETAILS:]) or "it printed nothing"

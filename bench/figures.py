"""Numbers: samples, what they ought to be, and whether they are."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Unit = Literal["s", "MB", "x", "1/s", "1/min", "MB/s", "%"]
Verdict = Literal["yes", "no", "-"]


@dataclass(frozen=True)
class Target:
    """What a figure is to reach, and what it would be good to reach; None: no such figure.

    ``at_least``: larger is better. ``no_failure``: all there is to reach is that nothing fails.
    """

    reach: float | None = None
    stretch: float | None = None
    at_least: bool = False
    no_failure: bool = False

    def met(self, value: float, goal: float | None) -> Verdict:
        """Whether ``value`` is as good as ``goal``."""
        if goal is None:
            return "-"
        return "yes" if (value >= goal if self.at_least else value <= goal) else "no"


@dataclass(frozen=True)
class Figure:
    """One line of the table: ``samples`` in ``unit``, in the order they were taken.

    ``note`` says what a reader has to know about how it was measured. ``failed`` counts
    attempts that gave no sample: a figure with one meets nothing.
    """

    name: str
    unit: Unit
    samples: tuple[float, ...]
    target: Target = Target()
    note: str = ""
    failed: int = 0

    @property
    def median(self) -> float | None:
        """The middle of the samples, None without any."""
        return statistics.median(self.samples) if self.samples else None

    @property
    def reached(self) -> Verdict:
        """Whether the median is what it has to be."""
        if self.target.no_failure:
            return "yes" if self.samples and not self.failed else "no"
        return self._verdict(self.target.reach)

    @property
    def stretched(self) -> Verdict:
        """Whether the median is what it would be good to be."""
        return self._verdict(self.target.stretch)

    def _verdict(self, goal: float | None) -> Verdict:
        if self.median is None or self.failed:
            return "-" if goal is None else "no"
        return self.target.met(self.median, goal)


@dataclass(frozen=True)
class Results:
    """All of one run.

    ``machine``: facts by name. ``parts``: where a start's time goes, by the kind of start (warm,
    cold). ``caution``: why the figures may not be what the machine can do.
    """

    machine: Mapping[str, str]
    figures: Sequence[Figure]
    parts: Mapping[str, Mapping[str, Sequence[float]]] = field(default_factory=dict)
    failures: Sequence[str] = ()
    caution: str = ""


def ratio(name: str, over: Figure, under: Figure, target: Target) -> Figure:
    """How many times larger the median of ``over`` is than that of ``under``."""
    known = over.median is not None and under.median
    samples = (over.median / under.median,) if known and over.median and under.median else ()
    return Figure(name, "x", samples, target, "medians of this run")


def start_up(total: float, steps: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The parts of one run: its steps, and what none of them accounts for as ``start-up``.

    ``steps``: as ``lab up -o json`` prints them.
    """
    seconds: dict[str, float] = {step["step"]: step["seconds"] for step in steps}
    return {"start-up": total - sum(seconds.values()), **seconds}

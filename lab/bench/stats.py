"""Whether B is faster than A, from pairs of measurements; pure functions of numbers.

Each round measures both sides, so its ratio B/A is free of what changes between rounds. The order
of the sides alternates, and two rounds of opposite order count as one ratio, their geometric mean:
what the order itself does, cancels. The interval is that of the median ratio by the percentile
bootstrap, on logarithms, with a fixed seed: the same numbers give the same interval.

Whether the interval excludes 1 is not enough, since two equal sides may differ by more than chance,
such as by where their memory lies. So two equal sides are measured first (A/A), and an effect
counts only if it is larger than the farthest end of their interval, a wider one: the noise.

Sources: Efron and Tibshirani, "An Introduction to the Bootstrap", chapter 13 (percentile
interval); Bulej et al., "Duet Benchmarking" (pairs of simultaneous runs).
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from typing import Literal

from lab.values import dataclass

LEVEL, NOISE_LEVEL = 0.95, 0.99
"""Of the intervals of the effect, and of two equal sides: few rounds show little of what chance
does, so more is allowed for it."""
DRAWS = 2000
FEWEST = 4
"""Ratios below which no verdict is given: their interval says nothing."""
_SEED = 20260101

VerdictWord = Literal["faster", "slower", "no difference seen", "too few rounds", "too few runs"]


@dataclass(frozen=True)
class Interval:
    """A ratio and its interval: 1.05 is 5 % more."""

    low: float
    mid: float
    high: float

    @property
    def excludes_one(self) -> bool:
        """Whether a ratio of 1 is outside of it."""
        return self.low > 1 or self.high < 1


@dataclass(frozen=True)
class Comparison:
    """What pairs of measurements say."""

    verdict: VerdictWord
    """Of B, compared with A."""
    effect: Interval
    """The median ratio of B to A."""
    noise: float
    """The largest ratio, less 1, that two equal sides are seen to have: 0.03 is 3 %."""
    equal: Interval
    """The median ratio of the two equal sides."""
    pairs: int
    """How many ratios ``effect`` is of."""


def median_ratio(ratios: Sequence[float], level: float = LEVEL) -> Interval:
    """The median of ratios and its interval; raises ValueError without a ratio."""
    if not ratios:
        raise ValueError("no ratios")
    logs, rng = [math.log(one) for one in ratios], random.Random(_SEED)  # noqa: S311  no secret
    count = len(logs)
    drawn = sorted(statistics.median(rng.choices(logs, k=count)) for _ in range(DRAWS))
    cut = int(DRAWS * (1 - level) / 2)
    mid = statistics.median(logs)
    return Interval(
        min(math.exp(drawn[cut]), math.exp(mid)),
        math.exp(mid),
        max(math.exp(drawn[-1 - cut]), math.exp(mid)),
    )


def balanced(ratios: Sequence[float]) -> list[float]:
    """Ratios of rounds, whose order alternates, as ratios of two rounds of opposite order each.

    A last round without a partner is left out, unless it is the only one.
    """
    if len(ratios) < 2:
        return list(ratios)
    return [math.sqrt(a * b) for a, b in zip(ratios[::2], ratios[1::2], strict=False)]


def compare(
    equal: Sequence[float], different: Sequence[float], *, more: bool, least: float = 0.0
) -> Comparison:
    """What the ratios of B to A say, given those of two equal sides; all are of rounds.

    ``more``: whether a larger number is better, as with transactions per second; else a smaller
    one is, as with latency. ``least``: the noise at least, such as the steps in which a number is
    measured. Raises ValueError if either is empty.
    """
    of_equal = median_ratio(balanced(equal), NOISE_LEVEL)
    of_different = median_ratio(balanced(different))
    noise = max(least, max(of_equal.high, 1 / of_equal.low) - 1)
    mid, pairs = of_different.mid, len(balanced(different))
    verdict: VerdictWord = "no difference seen"
    if min(pairs, len(balanced(equal))) < FEWEST:
        verdict = "too few rounds"
    elif of_different.excludes_one and max(mid, 1 / mid) - 1 > noise:
        verdict = "faster" if (mid > 1) == more else "slower"
    return Comparison(verdict, of_different, noise, of_equal, pairs)


@dataclass(frozen=True)
class Change:
    """What runs say, compared with earlier ones that are not paired with them."""

    verdict: VerdictWord
    ratio: float
    """Of the medians."""
    spread: float
    """How far runs of one side are from their median, as a ratio: half of the difference of the
    quartiles, the larger one of both sides."""
    p: float
    """Of a rank test; 1 where it cannot be done."""


_TIMES = 3
"""How often the spread a difference of unpaired runs must be: machines differ from day to day."""
_P, _P_OF_CHANGE = 0.05, 0.01
"""Below which a difference counts; of a history, in which each new result is looked at again, a
lower one."""
FEWEST_RESULTS = 20
"""Results of a history below which no change point is looked for."""


def changed(before: Sequence[float], now: Sequence[float], *, more: bool) -> Change:
    """Whether later runs differ from earlier ones; ``more`` as of ``compare``.

    Raises ValueError if either is empty.
    """
    if not before or not now:
        raise ValueError("no runs")
    middle = statistics.median(before)
    if not middle:
        return Change("too few runs", 1.0, 0.0, 1.0)
    ratio = statistics.median(now) / middle
    spread, p = max(_spread(before), _spread(now)), rank_test(before, now)
    verdict: VerdictWord = "no difference seen"
    if min(len(before), len(now)) < FEWEST:
        verdict = "too few runs"
    elif p < _P and abs(ratio - 1) > _TIMES * spread:
        verdict = "faster" if (ratio > 1) == more else "slower"
    return Change(verdict, ratio, spread, p)


def _spread(values: Sequence[float]) -> float:
    if len(values) < 2:
        return 0.0
    low, mid, high = statistics.quantiles(values, n=4, method="inclusive")
    return (high - low) / 2 / mid if mid else 0.0


def rank_test(one: Sequence[float], other: Sequence[float]) -> float:
    """The two-sided p of the rank-sum test of Mann and Whitney, by the normal approximation.

    With its correction for continuity, and for ties.
    """
    n, m = len(one), len(other)
    ranks = _ranks([*one, *other])
    u = sum(ranks[:n]) - n * (n + 1) / 2
    total = n + m
    ties = sum(t**3 - t for t in _tied([*one, *other]))
    variance = n * m / 12 * ((total + 1) - ties / (total * (total - 1))) if total > 1 else 0.0
    if variance <= 0:
        return 1.0
    z = max(0.0, abs(u - n * m / 2) - 0.5) / math.sqrt(variance)
    return math.erfc(z / math.sqrt(2))


def change_point(values: Sequence[float]) -> int | None:
    """Where a series of results changes: the index of the first one after it; None if nowhere.

    By Pettitt's rank test; None also for fewer than ``FEWEST_RESULTS``.
    Source: Pettitt, "A Non-Parametric Approach to the Change-Point Problem".
    """
    count = len(values)
    if count < FEWEST_RESULTS:
        return None
    ranks, seen, best, at = _ranks(values), 0.0, 0.0, 0
    for index in range(count - 1):
        seen += ranks[index]
        k = abs(2 * seen - (index + 1) * (count + 1))
        if k > best:
            best, at = k, index + 1
    p = 2 * math.exp(-6 * best**2 / (count**3 + count**2))
    return at if p < _P_OF_CHANGE else None


def _ranks(values: Sequence[float]) -> list[float]:
    """The rank of each, from 1; equal ones share the mean of theirs."""
    order = sorted(range(len(values)), key=lambda at: values[at])
    found, first = [0.0] * len(values), 0
    while first < len(order):
        last = first
        while last + 1 < len(order) and values[order[last + 1]] == values[order[first]]:
            last += 1
        for at in order[first : last + 1]:
            found[at] = (first + last) / 2 + 1
        first = last + 1
    return found


def _tied(values: Sequence[float]) -> list[int]:
    """How many values are equal, for each value."""
    counts: dict[float, int] = {}
    for value in values:
        counts[value] = counts.get(value, 0) + 1
    return list(counts.values())

"""Whether comparisons find what there is, and only that."""

from __future__ import annotations

import random

import pytest

from lab.bench.stats import (
    balanced,
    change_point,
    changed,
    compare,
    median_ratio,
    rank_test,
)

ROUNDS = 8


def ratios(rng: random.Random, effect: float, noise: float, order: float = 1.0) -> list[float]:
    """The ratios of rounds. ``noise`` of each; ``order``: what running first does, by turns."""
    return [
        effect * rng.lognormvariate(0, noise) * (order if number % 2 else 1 / order)
        for number in range(ROUNDS)
    ]


def verdict(rng: random.Random, effect: float, noise: float, order: float = 1.0) -> str:
    equal, different = ratios(rng, 1.0, noise, order), ratios(rng, effect, noise, order)
    return compare(equal, different, more=True).verdict


@pytest.mark.parametrize(("noise", "order"), [(0.01, 1.0), (0.03, 1.0), (0.03, 1.1), (0.1, 1.0)])
def test_equal_sides_are_called_equal(noise: float, order: float) -> None:
    """Protects against false alarms: at most one of 30 comparisons of equal sides has a verdict."""
    rng = random.Random(7)
    found = [verdict(rng, 1.0, noise, order) for _ in range(30)]
    assert sum(one != "no difference seen" for one in found) <= 1


@pytest.mark.parametrize("order", [1.0, 1.1])
def test_a_slowdown_of_a_tenth_is_found(order: float) -> None:
    """Protects the use of it: also where whoever runs first is 10 % faster."""
    rng = random.Random(8)
    found = [verdict(rng, 0.9, 0.03, order) for _ in range(20)]
    assert found.count("slower") >= 18
    assert "faster" not in found


def test_what_is_smaller_than_the_noise_is_called_noise() -> None:
    """Protects against taking chance for an effect: 2 %, where single rounds differ by 8 %."""
    rng = random.Random(9)
    found = [verdict(rng, 0.98, 0.08) for _ in range(30)]
    assert found.count("no difference seen") >= 27


def test_the_direction_is_that_of_the_metric() -> None:
    equal, more = [1.0, 1.001, 0.999, 1.0] * 2, [1.2] * 8
    assert compare(equal, more, more=True).verdict == "faster"
    assert compare(equal, more, more=False).verdict == "slower"


def test_a_systematic_difference_of_equal_sides_counts_as_noise() -> None:
    """Protects against a host that favours one side: A/A shows it, and A/B must exceed it."""
    assert compare([1.1] * 8, [1.08] * 8, more=True).verdict == "no difference seen"
    assert compare([1.1] * 8, [1.2] * 8, more=True).verdict == "faster"


def test_few_rounds_have_no_verdict() -> None:
    assert compare([1.0] * 6, [0.5] * 6, more=True).verdict == "too few rounds"
    with pytest.raises(ValueError, match="no ratios"):
        compare([], [1.0], more=True)


def test_the_same_numbers_have_the_same_interval() -> None:
    found = ratios(random.Random(1), 0.9, 0.05)
    assert median_ratio(found) == median_ratio(found)
    one = median_ratio(found)
    assert one.low <= one.mid <= one.high


def test_rounds_of_opposite_order_are_one_ratio() -> None:
    assert balanced([1.21, 1.0, 1.0, 1.21]) == pytest.approx([1.1, 1.1])
    assert balanced([1.0, 1.0, 9.0]) == [1.0]
    assert balanced([2.0]) == [2.0]


def test_runs_against_a_baseline() -> None:
    """Protects a pull request from the noise of other days: only what is far outside counts."""
    base = [100.0, 101.0, 99.0, 100.5, 99.5, 100.2]
    assert changed(base, [80.0, 81.0, 79.5, 80.2], more=True).verdict == "slower"
    assert changed(base, [120.0, 121.0, 119.5, 120.2], more=True).verdict == "faster"
    assert changed(base, [99.0, 100.0, 98.5, 99.9], more=True).verdict == "no difference seen"
    assert changed(base, [50.0], more=True).verdict == "too few runs"


def test_the_rank_test_has_the_known_p() -> None:
    """By the tables: two samples of five that do not overlap have p = 0.012."""
    assert rank_test([1, 2, 3, 4, 5], [6, 7, 8, 9, 10]) == pytest.approx(0.0122, abs=0.0005)
    assert rank_test([1, 2, 3], [1, 2, 3]) == 1.0
    assert rank_test([5, 5], [5, 5]) == 1.0


def test_a_change_point_is_found_where_it_is() -> None:
    rng = random.Random(3)
    steady = [rng.gauss(100, 2) for _ in range(30)]
    assert change_point(steady) is None
    assert change_point(steady[:15] + [one * 0.9 for one in steady[15:]]) in range(14, 17)
    assert change_point(steady[:19]) is None, "too few results"

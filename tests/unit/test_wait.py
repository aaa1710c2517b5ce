"""Deadlines: exact ones, and those that progress moves."""

from __future__ import annotations

import time

from lab.wait import Deadline, attempts, until


def test_an_exact_deadline_is_not_moved() -> None:
    """Protects `--timeout`: what a user asked for is what they get."""
    deadline = Deadline.after(10.0)
    at = deadline.at
    deadline.saw("anything")
    assert deadline.at == at


def test_progress_moves_a_deadline_up_to_its_latest() -> None:
    """Protects a slow host's labs, and who waits for one that will never be ready."""
    deadline = Deadline.after(0.2, slower=3.0)
    began = time.monotonic()
    for number in attempts(deadline, first=0.02, most=0.02):
        deadline.saw(("still getting on", number))
    assert 0.6 <= time.monotonic() - began < 1.5


def test_the_same_again_is_no_progress() -> None:
    """Protects from a node that fails, starts, fails and starts."""
    deadline = Deadline.after(0.2, slower=100.0)
    began = time.monotonic()
    for number in attempts(deadline, first=0.02, most=0.02):
        deadline.saw(("up", "down")[number % 2])
    assert 0.2 <= time.monotonic() - began < 1.0


def test_progress_early_on_moves_nothing() -> None:
    """Protects the usual limit: what hangs from its first half on ends in time."""
    deadline = Deadline.after(10.0, slower=3.0)
    at = deadline.at
    deadline.saw("booted")
    assert deadline.at == at
    assert until(lambda: None, Deadline.after(0.01)) is None


def test_what_is_not_true_is_asked_again() -> None:
    """Protects who waits for a condition: the first False is no answer, nor is an empty list."""
    looks: list[object] = [False, [], "", None, 0, "there"]
    assert until(lambda: looks.pop(0), Deadline.after(10.0), first=0.001) == "there"
    assert until(lambda: False, Deadline.after(0.01)) is None

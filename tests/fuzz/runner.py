"""Gives a reader damaged inputs until a time is over: hypothesis chooses and shrinks them."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

CORPUS = Path(__file__).parent / "corpus"
BRIEF, LONG = 1.5, 300.0
"""Seconds of a target in ``make test``, and in ``make test-all``."""
durations = pytest.mark.parametrize(
    "seconds", [BRIEF, pytest.param(LONG, marks=pytest.mark.rare)], ids=["brief", "long"]
)
"""Marks the test of a target, whose argument ``seconds`` it sets."""

_BATCH = 500
_BRIEF_BATCH = 200
_NUMBERS = [0, 1, 0x7F, 0x80, 0xFF, 0xFFFF, 1 << 31, (1 << 32) - 1, (1 << 63) - 1, (1 << 64) - 1]
_LONGEST = 1 << 16
"""Bytes that one edit repeats at most."""

Reader = Callable[[bytes], object]
"""Reads an input to its end."""
Edit = tuple[str, float, int, bytes]
"""A way to damage an input, where (a fraction of its length), a length, and bytes for it."""


@dataclass(frozen=True)
class Limits:
    """What reading an input takes at most: seconds of a processor, bytes of memory at one time."""

    seconds: float = 2.0
    memory: int = 64 << 20


def seeds(name: str) -> list[bytes]:
    """The inputs in a folder of the corpus."""
    found = [path.read_bytes() for path in sorted((CORPUS / name).iterdir())]
    assert found, f"no input for {name}"
    return found


def fuzz(
    reader: Reader,
    corpus: list[bytes],
    *,
    errors: tuple[type[Exception], ...],
    seconds: float,
    limits: Limits | None = None,
) -> int:
    """Have ``reader`` read the corpus, then damaged inputs for ``seconds``; their number.

    Fails at the first that raises anything but ``errors``, or takes more than ``limits``;
    hypothesis then shows the smallest that it found. It belongs into the corpus.
    """
    limits, count = limits or Limits(), 0
    brief = seconds <= BRIEF

    def one(data: bytes) -> None:
        # Of this thread: a service that an earlier test had may still be ending in others.
        began = time.thread_time()
        with _measured() as peak, suppress(*errors):
            reader(data)
        taken = time.thread_time() - began
        assert taken < limits.seconds, f"{taken:.1f} s for {len(data)} bytes"
        assert peak[0] < limits.memory, f"{peak[0]} bytes of memory for {len(data)} bytes"

    for data in corpus:
        one(data)
    first = 0.0

    def over() -> bool:
        # Counted from the first input: what hypothesis does before takes seconds on a busy host.
        nonlocal first
        now = time.monotonic()
        first = first or now
        return now - first >= seconds

    # What `make test` finds is found again by the next run; the long one looks elsewhere each time.
    @settings(
        # Those that come too late are not read, but hypothesis makes them.
        max_examples=_BRIEF_BATCH if brief else _BATCH,
        deadline=None,
        database=None,
        derandomize=brief,
        suppress_health_check=list(HealthCheck),
    )
    # The seed by its number: what fails is shown, and inputs may be long.
    @given(seed=st.integers(0, len(corpus) - 1), edits=_edits())
    def batch(seed: int, edits: list[Edit]) -> None:
        nonlocal count
        if not over():
            count += 1
            one(damaged(corpus[seed], edits))

    batch()
    while not (brief or over()):  # the next batch of a brief one would be the same
        batch()
    return count


def damaged(data: bytes, edits: list[Edit]) -> bytes:
    """``data`` after ``edits``, in their order."""
    for how, where, length, value in edits:
        at = int(where * len(data))
        if how == "put":
            data = data[:at] + value + data[at + len(value) :]
        elif how == "insert":
            data = data[:at] + value + data[at:]
        elif how == "remove":
            data = data[:at] + data[at + length :]
        elif how == "repeat":
            part = data[at : at + max(1, length)]
            data = data[:at] + part * (_LONGEST // max(1, len(part))) + data[at:]
        else:
            data = data[:at]
    return data


def _edits() -> st.SearchStrategy[list[Edit]]:
    numbers = st.builds(
        lambda number, size: (number & ((1 << 8 * size) - 1)).to_bytes(size, "big"),
        st.sampled_from(_NUMBERS) | st.integers(0, 1 << 16),
        st.sampled_from([1, 2, 4, 8]),
    )
    edit = st.tuples(
        st.sampled_from(["put", "put", "put", "insert", "remove", "repeat", "cut"]),
        st.floats(0, 1),
        st.integers(0, 64),
        numbers | st.binary(max_size=16),
    )
    return st.lists(edit, min_size=1, max_size=6)


@contextmanager
def _measured() -> Iterator[list[Any]]:
    """The most memory that Python has in the block, in bytes, once it ended."""
    peak = [0]
    tracemalloc.start()
    try:
        yield peak
    finally:
        peak[0] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()

"""Protects: many who ask for a turn all get it, in the order in which they asked."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from lab.locks.named import lock, sweep
from lab.locks.queue import is_first, take_free, ticket, until_first
from lab.paths import Home
from lab.wait import Deadline, until

DRAW = """
import sys
from pathlib import Path
from lab.locks.queue import ticket
from lab.paths import Home
with ticket(Home(Path(sys.argv[1])), "boot") as place:
    print(place, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def home(tmp_path: Path) -> Home:
    found = Home(tmp_path / "home")
    found.create()
    return found


def at_once(home: Home, count: int, into: ExitStack) -> bool:
    with ticket(home, "boot") as place:
        return is_first(home, "boot", place) and take_free(home, "boot", count, into)


def test_nobody_is_overtaken(home: Home) -> None:
    """Those who come while others wait get behind them, however often they look."""
    came: list[int] = []
    drawn = threading.Semaphore(0)

    def work(number: int) -> None:
        with ExitStack() as held:
            with ticket(home, "boot") as place:
                drawn.release()
                until_first(home, "boot", place)
                assert until(lambda: take_free(home, "boot", 1, held), Deadline.after(30))
                came.append(number)
            time.sleep(0.002)

    threads = [threading.Thread(target=work, args=[number]) for number in range(12)]
    with lock(home, "boot", "0"):
        for thread in threads:
            thread.start()
            assert drawn.acquire(timeout=30)
    for thread in threads:
        thread.join(30)
    assert came == list(range(12))
    assert list(home.locks.iterdir()) == []


def test_as_many_as_there_are_turns(home: Home) -> None:
    with ExitStack() as held:
        assert at_once(home, 2, held)
        assert at_once(home, 2, held)
        assert not at_once(home, 2, held)
    with ExitStack() as held:
        assert at_once(home, 2, held)


def test_the_dead_are_not_waited_for(home: Home) -> None:
    argv = [sys.executable, "-c", DRAW, str(home.root)]
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "1\n"
        with ExitStack() as held:
            assert not at_once(home, 1, held)
            process.kill()
            process.wait()
            assert at_once(home, 1, held)
            with ticket(home, "boot") as place:
                assert place == 2
    sweep(home)
    assert until(lambda: not list(home.locks.iterdir()), Deadline.after(5))

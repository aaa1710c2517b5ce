"""How often labs are observed: as often as there is need, whatever reads and whatever is silent."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Hashable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

from lab.observe.observer import _AT_ONCE, IDLE_EVERY, Look, Observer
from lab.observe.round import Observation, Observed
from lab.wait import Deadline, until

SHOP: Mapping[str, Hashable] = {"shop": 1}


@dataclass
class Labs:
    """Labs whose rounds are counted; of those in ``silent`` they end when the test does."""

    there: dict[str, Hashable] = field(default_factory=dict)
    silent: set[str] = field(default_factory=set)
    slow: set[str] = field(default_factory=set)
    rounds: list[str] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)
    errors: list[Exception] = field(default_factory=list)

    def begin(self, names: Collection[str]) -> Mapping[str, Look]:
        return {name: lambda name=name: self.look(name) for name in names}  # type: ignore[misc]

    def look(self, name: str) -> Observation:
        self.rounds.append(name)
        if name in self.silent:
            self.over.wait(60)
        return Observation(name, time.time(), {"n1": Observed("ready", slow=name in self.slow)})

    @contextmanager
    def observed(self) -> Iterator[Observer]:
        observer = Observer(lambda: self.there, self.begin, self.errors.append)
        observer.start()
        try:
            yield observer
        finally:
            self.over.set()
            observer.stop()


def seen_since(observer: Observer, asked: float) -> Observation:
    """The observation that a reader gets, which must be of after ``asked``."""
    assert observer.wait(SHOP, 10.0)
    last = observer.last("shop", 1)
    assert last is not None
    assert last.at >= asked
    return last


def test_many_readers_cost_no_more_than_one() -> None:
    """Protects servers: fifty pages and twenty programs that poll are one question a second."""
    labs = Labs({"shop": 1})
    with labs.observed() as observer:
        end = time.monotonic() + 2.5
        while time.monotonic() < end:
            for _ in range(50):
                observer.wait(SHOP, 5.0)
            time.sleep(0.02)
        assert 2 <= len(labs.rounds) <= 5
        assert observer.last("shop", 1) is not None


def test_a_lab_that_nobody_reads_is_looked_at_rarely() -> None:
    """Protects an idle host."""
    labs = Labs({"shop": 1})
    with labs.observed() as observer:
        assert until(lambda: observer.last("shop", 1), Deadline.after(10))
        time.sleep(2.0)
        assert len(labs.rounds) == 1
        assert IDLE_EVERY >= 10


def test_the_first_reader_after_a_pause_gets_a_new_observation() -> None:
    """Protects from what was true ten seconds ago."""
    labs = Labs({"shop": 1})
    with labs.observed() as observer:
        assert until(lambda: observer.last("shop", 1), Deadline.after(10))
        time.sleep(1.2)
        asked = time.time()
        seen_since(observer, asked)


def test_a_silent_lab_delays_no_other() -> None:
    """Protects tenants from each other: who is root in a node decides whether it answers."""
    there: dict[str, Hashable] = {f"evil{number}": 1 for number in range(30)}
    labs = Labs({**there, "shop": 1})
    labs.silent = set(labs.there) - {"shop"}
    with labs.observed() as observer:
        assert observer.wait(SHOP, 10.0)
        began = time.monotonic()
        assert not observer.wait({"evil1": 1}, 0.2)
        assert time.monotonic() - began < 5.0
        observer.changed("shop")
        assert observer.wait(SHOP, 10.0)
        assert labs.rounds.count("evil1") == 1  # not asked again while it does not answer


def test_a_look_that_hangs_since_a_command_worked_does_not_delay_the_next() -> None:
    """Protects `lab sleep` over the API: it pauses nodes that are being asked."""
    labs = Labs({"shop": 1}, silent={"shop"})
    with labs.observed() as observer:
        assert until(lambda: labs.rounds, Deadline.after(10))
        labs.silent.clear()  # those that begin from now on end
        asked = time.time()
        observer.changed("shop")
        last = seen_since(observer, asked)
        labs.over.set()  # the first one ends at last
        assert until(lambda: observer.rounds >= 2, Deadline.after(10))
        assert observer.last("shop", 1) is last


def test_commands_on_a_lab_that_hangs_cost_few_rounds() -> None:
    """Protects the service from who works on a silent lab again and again."""
    labs = Labs({"shop": 1}, silent={"shop"})
    with labs.observed() as observer:
        for _ in range(20):
            observer.changed("shop")
            observer.wait(SHOP, 0.05)
        assert len(labs.rounds) == _AT_ONCE


def test_a_command_s_lab_is_looked_at_at_once() -> None:
    """Protects the answer after a verb: what was seen before it is void."""
    labs = Labs({"shop": 1})
    with labs.observed() as observer:
        assert observer.wait(SHOP, 10.0)
        before = len(labs.rounds)
        asked = time.time()
        observer.changed("shop")
        seen_since(observer, asked)
        assert len(labs.rounds) == before + 1


def test_a_slow_server_is_not_asked_every_second() -> None:
    """Protects a server that has more to do than it can: each question is more work for it."""
    labs = Labs({"shop": 1})
    labs.slow = {"shop"}
    with labs.observed() as observer:
        end = time.monotonic() + 2.5
        while time.monotonic() < end:
            observer.want(SHOP)
            time.sleep(0.05)
        assert len(labs.rounds) <= 2


def test_a_new_lab_of_an_old_name_is_not_the_old_one() -> None:
    """Protects from the state of a lab that was removed."""
    labs = Labs({"shop": 1})
    with labs.observed() as observer:
        assert observer.wait(SHOP, 10.0)
        labs.silent = {"shop"}
        labs.there = {"shop": 2}
        observer.changed("shop")
        assert until(lambda: len(labs.rounds) > 1, Deadline.after(10))
        assert observer.last("shop", 2) is None
        assert observer.last("shop", 1) is None
        labs.there = {}
        observer.changed("shop")
        assert not observer.want(SHOP)


def test_a_lab_that_changed_is_not_waited_for_as_what_it_was() -> None:
    """Protects readers of a lab's record from waiting for what nobody looks at any more."""
    labs = Labs({"shop": 2, "new": 1})
    with labs.observed() as observer:
        assert observer.wait({"shop": 2, "new": 1}, 10.0)
        began = time.monotonic()
        assert not observer.wait({"shop": 1, "new": 1}, 20.0)
        assert not observer.wait({"gone": 1}, 20.0)
        assert time.monotonic() - began < 10.0


def test_readers_that_wait_do_not_wake_each_other() -> None:
    """Protects the processor: two that waited for one silent lab took a core."""
    labs, looks = Labs({"shop": 1}, silent={"shop"}), list[float]()

    def known() -> Mapping[str, Hashable]:
        looks.append(time.monotonic())
        return labs.there

    observer = Observer(known, labs.begin, labs.errors.append)
    observer.start()
    try:
        with ThreadPoolExecutor(10) as pool:
            assert not any(pool.map(lambda _: observer.wait(SHOP, 1.5), range(10)))
        assert len(looks) < 20
    finally:
        labs.over.set()
        observer.stop()


def test_what_fails_is_reported_and_tried_again() -> None:
    """Protects all labs from an error that one round shows, or a hypervisor that is gone."""
    labs = Labs({"shop": 1, "other": 1})

    def begin(names: Collection[str]) -> Mapping[str, Look]:
        if not labs.errors:
            raise OSError("libvirt is gone")
        return labs.begin(names)

    observer = Observer(lambda: labs.there, begin, labs.errors.append)
    observer.start()
    try:
        assert observer.wait({"shop": 1, "other": 1}, 30.0)
        assert [str(error) for error in labs.errors] == ["libvirt is gone"]
    finally:
        observer.stop()


def test_many_labs_take_turns_when_a_service_starts() -> None:
    """Protects the host: hundreds of labs are not asked at the same moment."""
    there: dict[str, Hashable] = {f"lab{number}": 1 for number in range(200)}
    labs, began = Labs(there), time.monotonic()
    with labs.observed() as observer:
        assert until(lambda: labs.rounds, Deadline.after(10))
        found = len(labs.rounds)
        assert found <= 40 + 20 * (time.monotonic() - began) + 1
        assert observer.wait({"lab199": 1}, 60.0)

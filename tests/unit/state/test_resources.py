"""Protects: one owner per thing, one lab per port, between processes too."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from lab.errors import Conflict, HostUnfit
from lab.names import Owner
from lab.paths import Home
from lab.state.store import Store

PXC, OTHER = Owner("lab", "pxc"), Owner("template", "abc")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.fixture
def store(home: Home) -> Iterator[Store]:
    with Store(home) as opened:
        yield opened


def anything(_: int) -> bool:
    return True


def test_the_life_of_an_intent(store: Store) -> None:
    number = store.resources.intend(PXC, "volume", "labs/pxc/n1/os")
    [intent] = store.resources.of(PXC)
    assert (intent.id, intent.state, intent.pid) == (number, "intended", os.getpid())
    assert intent.owner == PXC
    store.resources.made(number)
    assert store.resources.of(PXC)[0].state == "made"
    store.resources.gone(OTHER, "volume", "labs/pxc/n1/os")
    assert store.resources.of(PXC)  # not theirs to say
    store.resources.gone(PXC, "volume", "labs/pxc/n1/os")
    store.resources.gone(PXC, "volume", "labs/pxc/n1/os")
    assert store.resources.all() == []


def test_a_thing_has_one_owner(store: Store) -> None:
    first = store.resources.intend(PXC, "guest", "g")
    assert store.resources.intend(PXC, "guest", "g") == first
    assert store.resources.intend(OTHER, "file", "g") != first  # another kind of thing
    with pytest.raises(Conflict, match="guest g belongs to lab:pxc"):
        store.resources.intend_all(OTHER, [("guest", "new"), ("guest", "g")])
    assert [thing.ref for thing in store.resources.of(OTHER)] == ["g"]


def test_many_at_once_keep_their_order(store: Store) -> None:
    ids = store.resources.intend_all(PXC, [("guest", "b"), ("volume", "a"), ("guest", "b")])
    store.resources.made(*ids)
    assert ids[0] == ids[2] != ids[1]
    assert [thing.ref for thing in store.resources.of(PXC)] == ["b", "a"]
    assert store.resources.intend_all(PXC, []) == []
    store.resources.made()
    assert store.resources.owners() == [PXC]
    store.resources.all_gone(PXC)
    assert store.resources.owners() == []


def test_an_id_is_never_given_twice(store: Store) -> None:
    first = store.resources.intend(PXC, "guest", "a")
    store.resources.gone(PXC, "guest", "a")
    assert store.resources.intend(OTHER, "guest", "b") != first


def test_ports_are_the_lowest_free(store: Store) -> None:
    assert store.resources.reserve_ports(PXC, 2, 100, 110, lambda port: port % 2 == 0) == [100, 102]
    assert store.resources.reserve_ports(OTHER, 2, 100, 110, anything) == [101, 103]
    assert store.resources.reserve_ports(PXC, 1, 100, 110, anything, kind="segment") == [100]
    store.resources.all_gone(PXC)
    assert store.resources.reserve_ports(OTHER, 1, 100, 110, anything) == [100]


def test_a_port_that_another_took_while_the_host_was_asked(store: Store, home: Home) -> None:
    """Protects both: the host is asked outside of a transaction, so others write meanwhile."""

    def is_free(port: int) -> bool:
        if not store.resources.of(OTHER):
            with ThreadPoolExecutor(1) as pool, Store(home) as theirs:
                take = partial(theirs.resources.reserve_ports, OTHER, 1, 100, 110, anything)
                assert pool.submit(take).result() == [port]
        return True

    assert store.resources.reserve_ports(PXC, 2, 100, 110, is_free) == [101, 102]


def test_an_exhausted_range_reserves_nothing(store: Store) -> None:
    store.resources.reserve_ports(PXC, 2, 100, 103, anything)
    with pytest.raises(HostUnfit, match=r"3 ports are needed .* 2 are free: of 4, labs hold 2"):
        store.resources.reserve_ports(OTHER, 3, 100, 103, anything)
    assert store.resources.of(OTHER) == []


def reserve(root: str, number: int) -> list[int]:
    with Store(Home(Path(root))) as store:
        return [
            port
            for turn in range(10)
            for port in store.resources.reserve_ports(
                Owner("lab", f"l{number}-{turn}"), 3, 20000, 20999, anything
            )
        ]


def claim(root: str) -> str:
    """Take the name pxc, in a race; on a state that nobody has made yet."""
    from tests.unit.state.test_store import lab

    with Store(Home(Path(root))) as store:
        try:
            store.labs.add(lab("pxc"))
        except Conflict:
            with store.transaction():
                name = store.free_name("pxc")
                store.labs.add(lab(name))
            return name
        return "pxc"


def processes() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(3, mp_context=multiprocessing.get_context("spawn"))


def test_processes_that_race_for_ports_on_a_new_state(home: Home) -> None:
    """They also race for making the file and its tables."""
    with processes() as pool:
        got = list(pool.map(reserve, [str(home.root)] * 3, range(3)))
    ports = [port for each in got for port in each]
    assert sorted(ports) == list(range(20000, 20090))


def test_processes_that_race_for_a_name(home: Home) -> None:
    with processes() as pool:
        names = list(pool.map(claim, [str(home.root)] * 6))
    assert sorted(names) == ["pxc", *(f"pxc-{number}" for number in range(2, 7))]


def test_threads_share_a_store(store: Store) -> None:
    def work(number: int) -> list[int]:
        return store.resources.reserve_ports(Owner("lab", f"l{number}"), 2, 1, 999, anything)

    with ThreadPoolExecutor(8) as pool:
        ports = [port for each in pool.map(work, range(40)) for port in each]
    assert sorted(ports) == list(range(1, 81))

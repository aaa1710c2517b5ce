"""Protects the reading of `zfs get -Hp`: foreign and broken properties make nothing ours."""

from __future__ import annotations

import pytest

from lab.names import Owner, VolumeName
from lab.storage.zfs.listing import Dataset, parse
from lab.storage.zfs.names import Layout
from lab.storage.zfs.stack import Stack, stacks, strays

LAYOUT = Layout("t/lab")
VOLUME = VolumeName(Owner("lab", "a"), "n1", "os")
BASE = "t/lab/labs/a/n1_os"

# As OpenZFS 2.3.9 prints it, shortened.
REAL = (
    f"{BASE}@s1\ttype\tsnapshot\t-\n"
    f"{BASE}@s1\tvolsize\t8388608\tlocal\n"
    f"{BASE}@s1\tcreatetxg\t11\t-\n"
    f"{BASE}@s1\tguid\t8095413322337216987\t-\n"
    f"{BASE}@s1\tuserrefs\t1\t-\n"
    f"{BASE}@s1\tclones\tt/lab/c,t/x y\t-\n"
    f"{BASE}@s1\tlab:home\tabc\tlocal\n"
    f"{BASE}\ttype\tvolume\t-\n"
    f"{BASE}\torigin\t-\t-\n"
    f"{BASE}\tvolsize\t33554432\tlocal\n"
    f"{BASE}\tused\t12288\t-\n"
    f"{BASE}\tlab:home\tabc\tlocal\n"
    f"{BASE}\tlab.tag:note\ta b%0A\tlocal\n"
)


def volume(name: str, home: str = "abc", **facts: str) -> Dataset:
    local = {"lab:home": home, "volsize": "8388608"} if home else {}
    return Dataset(name, {"type": "volume", **facts}, local)


def snapshot(name: str, txg: int, home: str = "abc") -> Dataset:
    facts = {"type": "snapshot", "createtxg": str(txg), "volsize": "8388608"}
    return Dataset(name, facts, {"lab:home": home} if home else {})


def only(datasets: list[Dataset]) -> Stack:
    (stack,) = stacks(datasets, LAYOUT, "abc").values()
    return stack


def test_what_zfs_prints() -> None:
    frozen, base = parse(REAL)
    assert (base.name, base.kind, base.origin, base.number("volsize")) == (
        BASE, "volume", "", 33554432,
    )  # fmt: skip
    assert (frozen.kind, frozen.label, frozen.clones) == ("snapshot", "s1", ["t/lab/c", "t/x y"])
    assert (frozen.number("userrefs"), frozen.number("absent")) == (1, 0)
    stack = only([base, frozen])
    assert dict(stack.as_volume().tags) == {"note": "a b\n"}
    assert stack.as_snapshots()[0].size == 8388608


@pytest.mark.parametrize("cut", range(0, len(REAL), 7))
def test_cut_output_is_read_without_a_fall(cut: int) -> None:
    """Protects against a listing that ends early: half a line says nothing."""
    for dataset in parse(REAL[:cut]):
        assert dataset.name in (BASE, f"{BASE}@s1")
        assert dataset.local.get("lab:home", "abc") == "abc"
        assert dataset.facts.get("type", "volume") in ("volume", "snapshot")
    stacks(parse(REAL[:cut]), LAYOUT, "abc")


@pytest.mark.parametrize(
    "line",
    [
        "", "\t\t\t", "x", "a\tb", f"{BASE}\tlab:home\tabc", f"{BASE}\tlab:home\tabc\tlocal\tx",
        f"{BASE}\tlab:home\tabc\tinherited from t", f"{BASE}\tlab:home\tabc\treceived",
        f"{BASE}\tlab:home\tabc\tdefault", f"{BASE}\tlab:home\tabc\t-",
        f"{BASE}\tlab:home\tabcd\tlocal", f"{BASE}\tLAB:HOME\tabc\tlocal",
        f"{BASE}\tlab:home\t\tlocal",
    ],
)  # fmt: skip
def test_what_makes_nothing_ours(line: str) -> None:
    """Protects foreign datasets: inherited, received and malformed tags do not count."""
    text = f"{BASE}\ttype\tvolume\t-\n{line}\n"
    assert stacks(parse(text), LAYOUT, "abc") == {}


def test_a_file_system_is_no_volume() -> None:
    dataset = Dataset(BASE, {"type": "filesystem"}, {"lab:home": "abc"})
    assert stacks([dataset], LAYOUT, "abc") == {}


def test_foreign_snapshots_are_kept_apart() -> None:
    stack = only([volume(BASE), snapshot(f"{BASE}@a", 2), snapshot(f"{BASE}@b", 1, "")])
    assert [one.label for one in stack.snapshots] == ["a"]
    assert [one.label for one in stack.foreign] == ["b"]
    assert stack.snapshot("b") is None


def test_the_highest_clone_in_the_chain_is_opened() -> None:
    parts = [
        volume(BASE, origin="t/lab/images/m/base_os@base"),
        volume(f"{BASE}_1", origin=f"{BASE}@a"),
        volume(f"{BASE}_4", origin=f"{BASE}_1@c"),
    ]
    frozen = [snapshot(f"{BASE}@a", 5), snapshot(f"{BASE}_1@c", 9), snapshot(f"{BASE}@b", 7)]
    stack = only([*frozen, *reversed(parts)])
    assert [part.name for part in stack.parts] == [BASE, f"{BASE}_1", f"{BASE}_4"]
    assert [one.label for one in stack.snapshots] == ["a", "b", "c"]
    assert (stack.current.name, stack.unused) == (f"{BASE}_4", 5)
    assert stack.superseded == []
    frozen.pop(1)
    assert [part.name for part in only([*frozen, *parts]).superseded] == [f"{BASE}_1"]


def test_what_was_left_of_an_earlier_volume_is_no_part() -> None:
    """Protects a new volume from the data of one of the same name that was destroyed."""
    base, left = volume(BASE), volume(f"{BASE}_1", origin="t/lab/.work/0123.0@a")
    foreign = volume(f"{BASE}_2", home="", origin=f"{BASE}@a")
    found = [base, left, foreign, snapshot(f"{BASE}@a", 1)]
    stack = only(found)
    assert (stack.current.name, stack.unused) == (BASE, 3)
    assert [one.name for _, one in strays(found, LAYOUT, "abc")] == [f"{BASE}_1"]
    assert stacks([left], LAYOUT, "abc") == {}
    assert strays([left], LAYOUT, "abc") == [(VOLUME, left)]

"""Which host fits: what users see is that labs land where they start warm, or why nowhere."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lab.errors import HostUnfit, InvalidSpec
from lab.fleet.choose import Needs, choose
from lab.fleet.hosts import Facts, Host, Version
from lab.units import GIB

NEEDS = Needs(2 * GIB)
SHOP = (Version("shop", 2, "", "mariadb"),)


def host(name: str, free: int = 8 * GIB, **more: Any) -> Host:
    facts = Facts(memory=16 * GIB, memory_free=free, **more.pop("facts", {}))
    given: dict[str, Any] = {
        "epoch": 1,
        "state": "up",
        "url": "",
        "labels": (),
        "version": "1",
        "age": 1.0,
    }
    return Host(name=name, facts=facts, **given | more)


def chosen(*hosts: Host, needs: Needs = NEEDS) -> str:
    found = choose(hosts, needs)
    return found.name if found else ""


def test_the_host_with_most_room_is_chosen() -> None:
    """Protects labs from a host that is full while another is empty."""
    assert chosen(host("h1", 4 * GIB), host("h2", 9 * GIB), host("h3", 3 * GIB)) == "h2"
    assert chosen(host("h1", 4 * GIB), host("h2", 9 * GIB, promised=8 * GIB)) == "h1"


def test_a_host_that_has_the_template_is_chosen() -> None:
    """Protects warm starts: a host that would have to form the cluster first takes a minute."""
    warm = host("h1", 3 * GIB, facts={"templates": ("pxc/mariadb/3",)})
    needs = replace(NEEDS, template="pxc/mariadb/3")
    assert chosen(warm, host("h2"), needs=needs) == "h1"
    assert chosen(replace(warm, promised=2 * GIB), host("h2"), needs=needs) == "h2", "it is full"


def test_a_host_is_asked_for_by_name_and_label() -> None:
    """Protects who has a reason to want a certain host."""
    hosts = [host("h1"), host("h2", 3 * GIB, labels=("nvme",))]
    assert chosen(*hosts, needs=replace(NEEDS, on="h2")) == "h2"
    assert chosen(*hosts, needs=replace(NEEDS, on="@nvme")) == "h2"
    for missing in ("h9", "@gpu"):
        with pytest.raises(InvalidSpec, match=missing):
            choose(hosts, replace(NEEDS, on=missing))


def test_no_host_has_room_now() -> None:
    """Protects a request that is to wait from being refused."""
    assert chosen(host("h1", GIB), host("h2", 8 * GIB, promised=7 * GIB)) == ""


def test_a_host_that_has_the_dataset_is_chosen() -> None:
    """Protects the line between hosts; and who needs a host that would have to fetch it."""
    has = host("h1", 3 * GIB, facts={"versions": SHOP})
    for dataset in ("shop@2", "shop"):
        needs = replace(NEEDS, dataset=dataset)
        assert chosen(has, host("h2"), needs=needs) == "h1"
        assert chosen(replace(has, promised=2 * GIB), host("h2"), needs=needs) == "h2"
        assert chosen(has, host("h2"), needs=replace(needs, on="h2")) == "h2"
    with pytest.raises(HostUnfit):
        choose([has, host("h2")], replace(NEEDS, dataset="shop@3"))
    theirs = host("h2", facts={"versions": (Version("shop", 1, "q", "mariadb"),)})
    needs = replace(NEEDS, dataset="shop", project="p")
    assert chosen(has, theirs, needs=needs) == "h1"
    with pytest.raises(HostUnfit, match="no host"):
        choose([has, theirs], replace(needs, on="h2"))


def test_a_refusal_says_what_each_host_lacks() -> None:
    """Protects whoever would have to look at each host otherwise."""
    hosts = [
        host("h1", state="lost", facts={"versions": SHOP}),
        host("h2", age=20.0),
        host("h3", facts={"versions": (Version("a", 1, "", "mariadb"),)}),
    ]  # fmt: skip
    with pytest.raises(HostUnfit) as caught:
        choose(hosts, replace(NEEDS, dataset="shop@2"))
    assert caught.value.details == (
        "h1: is lost",
        "h2: has no dataset shop@2, nor has another host",
        "h3: has no dataset shop@2, nor has another host",
    )
    with pytest.raises(HostUnfit) as caught:
        choose([host("h1")], Needs(64 * GIB))
    assert caught.value.details == ("h1: has 16G of memory for labs, 64G is required",)

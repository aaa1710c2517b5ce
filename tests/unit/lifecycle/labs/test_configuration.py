"""Whether a lab matches a request: one rule, and a message with the fields that differ."""

from __future__ import annotations

import dataclasses

import pytest
from msgspec.structs import replace

from lab.errors import Conflict
from lab.lifecycle.labs.configuration import check, differs, of_record, of_view, requested
from lab.spec import LabSpec
from lab.state.records import LabRecord
from lab.views.labs import LabView, NodeView

IMAGE = "percona-xtradb-cluster-0123456789abcdef"
RECORD = LabRecord(
    "shop", "percona", "8.4", IMAGE, "ready", "secret", "lab", "me", 1.0,
    blueprint="pxc", node_count=3, memory=768 << 20, cpus=1, disk=0,
)  # fmt: skip
NODES = tuple(NodeView(f"n{i}", "member", "ready", "127.0.0.1", 1, 2, "g") for i in (1, 2, 3))
VIEW = LabView(
    "shop", "percona", "8.4", "ready", NODES, "lab", "secret", image=IMAGE, blueprint="pxc",
    memory=768 << 20, profile="balanced", requested_nodes=3,
)  # fmt: skip
SPEC = LabSpec("pxc")


@pytest.mark.parametrize(
    ("spec", "found"),
    [
        (SPEC, []),
        (replace(SPEC, engine="percona", image=IMAGE, profile="balanced"), []),
        (replace(SPEC, nodes=5), ["nodes 3, requested 5"]),
        (replace(SPEC, engine="mariadb"), ["recipe percona-xtradb-cluster, requested mariadb"]),
        (replace(SPEC, profile="durable"), ["profile balanced, requested durable"]),
        (
            replace(SPEC, memory=1 << 30, cpus=2, disk=8 << 30),
            ["memory 768M, requested 1G", "cpus 1, requested 2", "disk the image's, requested 8G"],
        ),
    ],
)
def test_here_and_remotely_alike(spec: LabSpec, found: list[str]) -> None:
    """The record of a lab and what a service says of it are judged by the same rule."""
    wanted = requested(spec, profile=spec.profile or "balanced", image=spec.image)
    assert differs(of_record(RECORD), wanted) == differs(of_view(VIEW), wanted) == found


def test_a_member_of_a_pool_is_not_taken() -> None:
    wanted = requested(SPEC, profile="balanced")
    member = of_record(dataclasses.replace(RECORD, pool="small"))
    assert differs(member, wanted) == ["pool small, requested none"]


def test_exact_leaves_nothing_open() -> None:
    """Pools: a lab of any engine is not one whose engine may be any."""
    some, any_ = (requested(SPEC, profile="balanced", recipe=recipe) for recipe in ("mariadb", ""))
    assert differs(some, any_) == []
    assert differs(some, any_, exact=True) == ["recipe mariadb, requested any"]


def test_the_message_names_what_differs() -> None:
    with pytest.raises(Conflict) as refused:
        check("shop", of_record(RECORD), requested(replace(SPEC, nodes=5), profile="balanced"))
    assert refused.value.what == (
        "lab shop exists with a different configuration: nodes 3, requested 5"
    )

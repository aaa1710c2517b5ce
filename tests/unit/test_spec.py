"""What a user asks for: refused where there can be no such lab, and equal where it is the same."""

from __future__ import annotations

from typing import Any

import pytest

from lab.config.labfile import spec_of
from lab.errors import InvalidSpec
from lab.requests.labs import CreateLab
from lab.spec import LabSpec


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"name": "My Shop"}, "My Shop"),
        ({"nodes": 10}, "a lab has 1 to 9 nodes, not 10"),
        ({"memory": 1}, "too little for a node"),
        ({"cpus": 0}, "a node has 1 to 64 CPUs, not 0"),
        ({"disk": 1}, "a node's disk must be whole MiB"),
        ({"snapshots": "sometimes"}, "'sometimes' is not a schedule"),
        ({"dataset": "shop", "image": "x"}, "has an image of its own"),
        ({"options": {"shards": 2}}, "unknown option 'shards'"),
    ],
)
def test_what_no_lab_can_be_is_refused_at_once(said: dict[str, Any], message: str) -> None:
    """Protects users of the client from an error that comes with the first use."""
    with pytest.raises(InvalidSpec, match=message):
        LabSpec("pxc", **said)


def test_a_number_that_is_left_out_is_the_blueprints() -> None:
    """Protects pools: a request that names the usual number is the same as one that does not."""
    assert (LabSpec("pxc").node_count, LabSpec("single").node_count) == (3, 1)
    assert LabSpec.of(CreateLab("pxc")) == LabSpec.of(CreateLab("pxc", nodes=3))
    assert CreateLab.of(LabSpec("pxc")).nodes == 3


def test_what_servers_keep_of_passwords_is_in_no_repr() -> None:
    """Protects logs, and the tracebacks of tests that fail."""
    user = {
        "name": "app",
        "scope": "*",
        "native": "*" + "A" * 40,
        "caching_sha2": f"$A$005${'b' * 63}",
    }
    for kind in (LabSpec, CreateLab):
        shown = repr(kind("pxc", options={"user": [user]}))
        assert "AAAA" not in shown
        assert "bbbb" not in shown
        assert shown.startswith(f"{kind.__name__}(blueprint='pxc', name='', nodes=0")
        assert "options=['user']" in shown


def test_a_number_that_is_none_is_left_out() -> None:
    """Protects programs that pass on an option which was not given."""
    assert spec_of({"blueprint": "pxc", "nodes": None}).node_count == 3

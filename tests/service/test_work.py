"""What jobs are about, as the record keeps it."""

from __future__ import annotations

from lab.api.jobs.work import asked_of, spec_of
from lab.schedule import parse
from lab.spec import MIB, LabSpec, NodeSize


def test_a_request_says_all_of_a_lab() -> None:
    """Nothing is lost between a request and the job that a later process of the service does."""
    spec = LabSpec(
        "pxc", "shop", 5, "mariadb", NodeSize(512 * MIB, 2, 8 << 30), 60.0, "durable",
        parse("hourly:2"), "mariadb-0123456789abcdef",
    )  # fmt: skip
    assert spec_of(asked_of(spec)) == spec


def test_a_request_of_an_older_version() -> None:
    """Protects jobs that were queued before an upgrade: what is not said is the default."""
    assert spec_of({"blueprint": "pxc"}) == LabSpec("pxc")

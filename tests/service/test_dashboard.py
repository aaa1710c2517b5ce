"""The dashboard for Grafana reads what a service exposes, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Any

import pytest

from tests.support.dashboard import (
    OF_PROMETHEUS,
    dashboard,
    exposed,
    expressions,
    labels,
    names,
    panels,
)
from tests.support.serve_world import Site, site


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site(tmp_path_factory.mktemp("serve"), metrics=True) as found:
        yield found


def test_each_series_of_the_dashboard_is_exposed(here: Site) -> None:
    """Protects who looks at it: a panel of a series that was renamed is empty, without an error."""
    here.make("shop")
    there = exposed(here.client.get("/metrics").text)
    read: set[str] = set()
    for expression, legend in expressions():
        assert names(expression), expression
        assert names(expression) <= there.keys(), expression
        read |= names(expression)
        shown = set().union(*(there[name] for name in names(expression)))
        if shown:  # a series without labels, or that has none yet, says nothing
            unknown = labels(expression, legend) - shown - OF_PROMETHEUS
            assert not unknown, (expression, legend)
    assert {"lab_fleet_hosts", "lab_fleet_claim_seconds_bucket", "lab_labs"} <= read


def test_what_is_not_exposed_is_found() -> None:
    """Protects the check itself."""
    text = '# TYPE lab_labs gauge\nlab_labs{state="ready"} 1\n# TYPE lab_step_seconds histogram\n'
    there = exposed(text)
    assert there["lab_labs"] == {"state"}
    assert "lab_step_seconds_bucket" in there
    assert names("sum(lab_lab)") - there.keys() == {"lab_lab"}
    assert labels('sum by (a, b) (lab_labs{c=~"x", d!="y"})', "{{e}}: {{ f }}") == set("abcdef")


def test_grafana_can_load_it() -> None:
    """Protects who imports it: what Grafana requires, and panels beside each other."""
    found = dashboard()
    assert found["uid"]
    assert found["schemaVersion"] >= 36
    variables = [one["name"] for one in found["templating"]["list"]]
    assert variables == ["source", "instance"]
    assert len({one["id"] for one in found["panels"]}) == len(found["panels"])
    for panel in panels():
        assert panel["targets"]
        for one in [panel, *panel["targets"]]:
            assert one["datasource"] == {"type": "prometheus", "uid": "${source}"}
        assert len({one["refId"] for one in panel["targets"]}) == len(panel["targets"])
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
    for one, other in combinations(found["panels"], 2):
        assert not _overlap(one["gridPos"], other["gridPos"]), (one["title"], other["title"])


def _overlap(one: dict[str, Any], other: dict[str, Any]) -> bool:
    beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
    below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
    return not (beside or below)

"""A lab of the blueprint ``single`` through the service: API, page and pool."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import structs

from lab.config.poolfile import WarmPool
from tests.support.page_visit import visit
from tests.support.pool_world import until_full
from tests.support.serve_world import MEMORY, Site, site

BODY = {"blueprint": "single", "memory": MEMORY}
POOL = WarmPool("alone", BODY)


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site(tmp_path_factory.mktemp("single"), pool=(POOL,)) as found:
        yield found


def test_a_request_without_a_number_gets_one_node(here: Site) -> None:
    lab = here.ask("POST", "/v1/labs?wait=30", {**BODY, "name": "solo"}).json()
    (node,) = lab["nodes"]
    assert (lab["state"], node["role"], node["services"]) == (
        "ready", "server", {"sql": 3306, "ssh": 22},
    )  # fmt: skip
    assert (node["memory"], node["image"]) == (MEMORY, lab["image"])
    assert lab["endpoints"] == {"rw": ["n1"]}
    for verb in ("stop", "start"):
        assert here.ask("POST", f"/v1/labs/solo/{verb}?wait=30").status_code == 200
    assert here.ask("DELETE", "/v1/labs/solo?wait=30").status_code == 204


@pytest.mark.parametrize("path", ["/v1/labs", "/v1/preview", "/v1/templates"])
def test_more_nodes_are_refused_at_once(here: Site, path: str) -> None:
    """Protects queues: what cannot be made is no job."""
    refused = here.ask("POST", path, {**BODY, "nodes": 2})
    assert refused.status_code == 422
    assert "exactly one node" in refused.text


def test_a_pool_of_them_is_kept(here: Site) -> None:
    until_full(here, 1, "alone")
    (member,) = (lab for lab in here.service.core.store.labs.all() if lab.pool)
    assert (member.blueprint, member.node_count) == ("single", 1)
    claimed = here.ask("POST", "/v1/labs?wait=30", BODY).json()
    assert claimed["name"] == member.name
    assert here.ask("DELETE", f"/v1/labs/{member.name}?wait=30").status_code == 204


def test_it_is_made_with_the_page(here: Site) -> None:
    """The field for the number of nodes may be empty."""
    form = {"blueprint": "single", "nodes": "", "memory": "384M", "ttl": "30m", "name": "paged",
            "engine": "", "profile": "balanced", "cpus": "1", "disk": "", "idle": ""}  # fmt: skip
    with visit(here) as client:
        made = client.post("/labs", data={**form, "key": "k1"})
        assert made.status_code == 303, made.text
        job = made.headers["location"]
        assert here.ask("GET", f"/v1{job}?wait=30").json()["state"] == "succeeded"
        assert "server" in client.get("/labs/paged").text
        refused = client.post("/labs", data={**form, "name": "two", "nodes": "2", "key": "k2"})
        assert "exactly one node" in refused.text
    here.ask("DELETE", "/v1/labs/paged?wait=30")


def test_a_pool_of_more_nodes_is_refused(tmp_path: Path) -> None:
    """Protects the service's start: a pool that can never be filled is an error there."""
    from lab.config.settings import Settings
    from lab.errors import InvalidSpec
    from lab.lifecycle.service.pool import check
    from lab.paths import Home

    with pytest.raises(InvalidSpec, match="exactly one node"):
        check(Settings(Home(tmp_path), "x"), structs.replace(POOL.spec, nodes=2))

"""Another source, over HTTP: a job, and what it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.client import Client
from lab.errors import InvalidSpec, NotFound
from tests.support.serve_world import MEMORY, Site, site

BODY = {"blueprint": "replication", "memory": MEMORY, "name": "shop"}


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Site]:
    with site(tmp_path) as running:
        yield running


def test_another_source(here: Site) -> None:
    lab = here.ask("POST", "/v1/labs?wait=60", BODY).json()
    assert lab["endpoints"]["rw"] == ["n1"]
    for body, status in (({}, 422), ({"node": "2"}, 422), ({"node": "n9"}, 404)):
        assert here.ask("POST", "/v1/labs/shop/promote", body).status_code == status
    done = here.ask("POST", "/v1/labs/shop/promote?wait=60", {"node": "n2"})
    assert (done.status_code, done.json()["kind"]) == (200, "promote")
    assert here.ask("GET", "/v1/labs/shop").json()["endpoints"]["rw"] == ["n2"]
    steps = here.ask("GET", f"/v1/jobs/{done.json()['id']}/events").json()["items"]
    assert "promote" in {event["step"] for event in steps}
    with Client(str(here.client.base_url), here.admin) as client:
        found = client.promote("shop", "n3")
        assert [node.role for node in found.nodes] == ["replica", "replica", "source"]
        with pytest.raises(NotFound):
            client.promote("shop", "n9")
        client.power("kill", "shop", "n3")
        assert client.promote("shop", "n1", force=True).endpoints["rw"] == ("n1",)


def test_what_it_refuses(here: Site) -> None:
    body = {**BODY, "blueprint": "galera"}
    here.ask("POST", "/v1/labs?wait=60", body)
    with (
        Client(str(here.client.base_url), here.admin) as client,
        pytest.raises(InvalidSpec, match="every node of this topology takes writes"),
    ):
        client.promote("shop", "n2")

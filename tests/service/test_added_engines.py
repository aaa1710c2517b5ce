"""Engines that were added on the service's host, over the API."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.builds import added_build
from tests.support.page_visit import visit
from tests.support.serve_world import MEMORY, Site, site


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site(tmp_path_factory.mktemp("added")) as found:
        added_build(found.service.core.settings.home.engines, "mine")
        yield found


def test_it_is_listed_and_requested_like_any_other(here: Site) -> None:
    """Its source, a path of the host, is for administrators."""
    ci = here.token("ci")
    for token, source in (("", "/builds/mine"), (ci, "")):
        listed = here.ask("GET", "/v1/engines", token=token).json()
        [mine] = [one for one in listed if one["name"] == "mine"]
        assert (mine["server"], mine["content"]) == ("MariaDB 11.4.5", "0" * 64)
        assert mine["source"] == source
    for path in ("/v1/preview", "/v1/labs?wait=30"):
        body = {"blueprint": "single", "memory": MEMORY, "engine": "mine"}
        made = here.ask("POST", path, body, token=ci)
        assert made.status_code in (200, 201), made.text
        assert made.json()["image"].startswith("mine-")
    name = made.json()["name"]
    assert here.ask("DELETE", f"/v1/labs/{name}?wait=30", token=ci).status_code == 204
    image = here.ask("POST", "/v1/images?wait=30", {"recipe": "mine"})
    assert image.status_code == 201
    assert image.json()["recipe"] == "mine"


def test_a_blueprint_that_it_cannot_have_is_said(here: Site) -> None:
    body = {"blueprint": "galera", "memory": MEMORY, "engine": "mine"}
    refused = here.ask("POST", "/v1/preview", body)
    assert refused.status_code == 422
    assert "no galera" in refused.text


def test_the_page_offers_it(here: Site) -> None:
    with visit(here) as client:
        assert "<option>mine</option>" in client.get("/").text

"""The pages of what is being made: they say since when, and nothing that is not known yet."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from html import unescape
from pathlib import Path

from lab.config.settings import Settings
from lab.lifecycle.core.context import Context
from tests.support.lifecycle_world import World
from tests.support.page_visit import place_of, visit
from tests.support.serve_world import BODY, Site, site


@contextmanager
def held(root: Path, *steps: str) -> Iterator[tuple[Site, threading.Event]]:
    """A service that is held at the first of these steps, and whether it is there."""
    reached, go_on = threading.Event(), threading.Event()

    def hook(step: str) -> None:
        if step in steps and not go_on.is_set():
            reached.set()
            assert go_on.wait(30)

    @contextmanager
    def opener(settings: Settings) -> Iterator[Context]:
        with World(root).open(hook) as ctx:
            yield replace(ctx, settings=settings)

    with site(root, opener, sweep=3600.0) as here:
        try:
            yield here, reached
        finally:
            go_on.set()
            here.settled()


def test_an_image_that_is_being_built(tmp_path: Path) -> None:
    """Protects the reader of the page: it has no size, and was not built yet."""
    with held(tmp_path, "storage.import_raw") as (here, reached), visit(here) as client:
        here.ask("POST", "/v1/images", {"recipe": "mariadb"})
        assert reached.wait(20)
        page = unescape(client.get("/images").text)
        card = page.partition("<article")[2]
        assert ">building</span>" in card
        assert "building since 20" in card
        assert "built" not in card
        assert "0B" not in card


def test_a_template_that_is_being_formed(tmp_path: Path) -> None:
    """Protects the reader of the page: it is not formed, and whether it has RAM is not known."""
    with held(tmp_path, "hypervisor.start") as (here, reached), visit(here) as client:
        here.ask("POST", "/v1/templates", {**BODY, "nodes": 1})
        assert reached.wait(20)
        assert "built 20" in client.get("/images").text
        card = unescape(client.get("/templates").text).partition("<article")[2]
        assert ">building</span>" in card
        assert "building since 20" in card
        for early in ("formed", "disks only", "0B"):
            assert early not in card, early


def test_a_dataset_that_is_being_loaded(tmp_path: Path) -> None:
    """Protects who waits for it: the job that loads it is a click away, for who may see it."""
    with held(tmp_path, "hypervisor.start") as (here, reached):
        asked = {"name": "crm", "source": "generate:sysbench?tables=1&rows=10", "shared": True}
        job = here.ask("POST", "/v1/datasets", asked).json()["id"]
        assert reached.wait(20)
        with visit(here) as client:
            card = unescape(client.get("/datasets").text).partition("<article")[2]
            assert "loading since 20" in card
            assert f'href="{place_of(client)}/jobs/{job}"' in card
            assert client.get(f"/jobs/{job}").status_code == 200
        with visit(here, here.token()) as client:  # of another project
            card = unescape(client.get("/datasets").text).partition("<article")[2]
            assert "loading since 20" in card
            assert "/jobs/" not in card

"""Clearing up the host of a service, from elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.cli import main
from lab.client import Client
from lab.errors import Forbidden, LimitReached
from lab.names import Owner
from tests.support.serve_world import Site, site


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Site]:
    with site(tmp_path) as found:
        yield found


def test_what_is_left_over_is_told_and_removed(
    here: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Protects hosts that nobody logs in at: lost labs go if that is asked for, others stay."""
    here.make("stays")
    here.make("lost")
    store = here.service.core.store
    store.labs.remove("lost")
    store.resources.all_gone(Owner("lab", "lost"))
    monkeypatch.setenv("LAB_URL", str(here.client.base_url))
    monkeypatch.setenv("LAB_TOKEN", here.admin)

    def gc(*flags: str) -> dict[str, list[str]]:
        capsys.readouterr()
        assert main(("gc", "-o", "json", *flags)) == 0
        found: dict[str, list[str]] = json.loads(capsys.readouterr().out)
        return found

    assert any("lab:lost: not recorded" in line for line in gc()["left"])
    assert any("lost" in line for line in gc("--orphans", "--dry-run")["removed"])
    assert any("lost" in line for line in gc("--orphans")["removed"])
    with here.service.core.contexts.use() as ctx:
        owners = {guest.tags["owner"] for guest in ctx.hypervisor.guests().values()}
    assert owners == {"lab:stays"}
    assert gc("--orphans", "--unused") == {"removed": [], "left": [], "snapshots": []}
    with Client(str(here.client.base_url), here.token()) as client, pytest.raises(Forbidden):
        client.gc()
    monkeypatch.setattr(here.service.core.limits.collections, "per_token", 0)
    with Client() as client, pytest.raises(LimitReached):
        client.gc()

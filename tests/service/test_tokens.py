"""Tokens show what their projects have of their quotas, and when they were used."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.api.core.known import KnownTokens
from lab.lifecycle.core.context import open_recorded
from lab.lifecycle.service import token as tokens
from lab.lifecycle.service import usage
from lab.paths import Home
from lab.requests.tokens import CreateToken
from lab.state import open_store
from lab.units import format_size
from tests.support.serve_world import BODY, MEMORY, Site, site


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site(tmp_path_factory.mktemp("serve")) as found:
        yield found


def shown(here: Site, name: str) -> dict[str, Any]:
    found = here.ask("GET", "/v1/tokens?limit=500").json()["items"]
    (one,) = [token for token in found if token["name"] == name]
    return dict(one)


def test_what_is_used_is_what_quotas_count(here: Site) -> None:
    """The figures are those of the refusal."""
    token = here.token("counted", project="counted", labs=4, snapshots=2, memory=3 * MEMORY)
    nothing = dict.fromkeys(
        ("labs", "nodes", "memory", "cpus", "disk", "snapshots", "templates"), 0
    )
    assert shown(here, "counted")["used"] == nothing
    here.make("counted-1", token=token)
    path = "/v1/labs/counted-1/snapshots?wait=60"
    taken = here.ask("POST", path, {"name": "x"}, token=token)
    assert taken.status_code == 201, taken.text
    found = shown(here, "counted")
    used = found["used"]
    assert (used["labs"], used["nodes"], used["memory"]) == (1, 2, 2 * MEMORY)
    assert (used["snapshots"], used["templates"]) == (1, 1)
    assert used["disk"] > 0
    assert found["max_labs"] == 4
    refused = here.ask("POST", "/v1/labs", {**BODY, "name": "counted-2"}, token=token)
    assert refused.status_code == 429
    assert f"would have {format_size(4 * MEMORY)}" in refused.json()["detail"]
    assert shown(here, "counted")["used"] == used, "what was refused does not count"
    with open_recorded(here.service.core.settings) as ctx:  # as `lab token ls` on the host
        assert vars(usage.used(ctx)["counted"]) == used


def test_a_project_sees_its_own_token_only(here: Site) -> None:
    """Protects the other tokens: their names, ids and limits are the administrators'."""
    one = here.token("one", project="twins", scope="read", labs=3)
    here.token("other", project="twins")
    (found,) = here.ask("GET", "/v1/tokens", token=one).json()["items"]
    assert (found["name"], found["max_labs"], found["used"]["labs"]) == ("one", 3, 0)
    assert here.ask("GET", f"/v1/tokens/{found['id']}", token=one).json()["name"] == "one"
    other = shown(here, "other")["id"]
    answers = [
        here.ask("GET", f"/v1/tokens/{identity}", token=one) for identity in (other, "0" * 12)
    ]
    assert [answer.status_code for answer in answers] == [404, 404]
    assert other not in answers[0].text.replace(f"/v1/tokens/{other}", "").replace(f"'{other}'", "")
    assert here.ask("DELETE", f"/v1/tokens/{found['id']}", token=one).status_code == 403


def test_requests_that_read_do_not_write(here: Site) -> None:
    """Protects the record from a write for each request; the list has the last use all the same."""
    token = here.token("reading", project="reading", scope="read")
    assert shown(here, "reading")["last_used_at"] is None
    here.settled()
    began = time.time()
    assert here.ask("GET", "/v1/labs", token=token).status_code == 200
    store = here.service.core.store
    assert shown(here, "reading")["last_used_at"] is not None
    (record,) = [one for one in tokens.tokens(store) if one.name == "reading"]
    assert record.last_used_at is None, "a request wrote it"
    here.service.core.known.record_uses(store)
    written = store.tokens.get(record.id).last_used_at
    assert written is not None
    assert began - 1 < written < time.time() + 1


def test_known_tokens_stay_known_when_their_use_is_written(tmp_path: Path) -> None:
    """Protects fast answers: a write of our own sends nobody to the record again."""
    home = Home(tmp_path / "home")
    home.create()
    with open_store(home) as store, open_store(home) as other:
        made = tokens.create(store, CreateToken(name="ci", scope="use", project="shop"))
        revoked = tokens.create(store, CreateToken(name="gone", scope="use", project="shop"))
        known = KnownTokens()
        for text in (made.text, revoked.text):
            known.check(store, text)
        assert known.find(store, made.text) is not None
        tokens.revoke(other, "gone")
        known.record_uses(store)
        found = known.find(store, made.text)
        assert found is not None
        assert found.last_used_at is not None
        assert known.find(store, revoked.text) is None, "it was revoked meanwhile"
        before = store.version()
        known.find(store, made.text)
        assert store.version() == before
        other.events.add("lab:shop", "ready", "done")
        assert known.find(store, made.text) is not None, "that is no token"
        tokens.create(other, CreateToken(name="more", scope="use", project="shop"))
        assert known.find(store, made.text) is None, "others changed the tokens"

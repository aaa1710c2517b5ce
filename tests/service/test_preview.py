"""What a lab would be made of, asked of a service: nothing is made, and it is as `up` then does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.api.core.admission import Need
from lab.cli import main
from lab.client import Client
from lab.errors import HostUnfit
from tests.support.serve_world import BODY, MEMORY, Site, site


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site(tmp_path_factory.mktemp("preview"), memory=8 * MEMORY, max_ttl=7200.0) as found:
        yield found


def test_a_dry_run_makes_nothing_and_tells_what_up_makes(
    here: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Protects who looks before: nothing is made, and the lab is then as was said."""
    for name, value in (("LAB_URL", str(here.client.base_url)), ("LAB_TOKEN", here.token()),
                        ("LAB_HOME", str(tmp_path / "none"))):  # fmt: skip
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    words = ("up", "galera", "--nodes", "2", "--memory", "384M", "-o", "json")
    assert main((*words, "--dry-run")) == 0
    first = json.loads(capsys.readouterr().out)
    assert (first["image_exists"], first["template"], first["start"]) == (False, "", "warm")
    assert here.ask("GET", "/v1/labs").json()["items"] == []
    assert here.ask("GET", "/v1/images").json() == []
    assert here.ask("GET", "/v1/jobs").json()["items"] == []
    assert main(words) == 0
    made = json.loads(capsys.readouterr().out)
    assert (first["name"], first["image"], first["start"]) == (
        made["name"], made["image"], made["started"])  # fmt: skip
    assert main((*words, "--dry-run", "--cold")) == 0
    cold = json.loads(capsys.readouterr().out)
    assert (cold["image_exists"], cold["template"], cold["why_cold"]) == (True, None, "requested")
    assert main((*words, "--dry-run", "--name", made["name"])) == 4
    assert "exists already" in capsys.readouterr().err
    assert main(("up", "galera", "--dry-run", "--nodes", "2", "--memory", "384M")) == 0
    assert made["template"] in capsys.readouterr().out
    assert main(("down", made["name"])) == 0


def test_it_is_refused_as_the_lab_would_be(here: Site) -> None:
    """Protects quotas and caps from a preview that promises what is then refused."""
    small = here.token("small", project="small", nodes=1)
    for body, token, status in (
        ({**BODY, "ttl": 7201}, "", 429),
        ({**BODY, "blueprint": "teapot"}, "", 422),
        ({**BODY, "profile": "teapot"}, "", 422),
        ({**BODY, "nodes": 9}, "", 429),
        (BODY, small, 429),
        ({**BODY, "nodes": 1}, small, 200),
    ):
        asked = [here.ask("POST", "/v1/preview", body, token=token)]
        if status != 200:
            asked.append(here.ask("POST", "/v1/labs", body, token=token))
        assert [one.status_code for one in asked] == [status] * len(asked), body
        assert len({one.json().get("detail") for one in asked}) == 1


def test_who_would_have_to_wait_is_told(here: Site) -> None:
    """Protects from a promise of a lab at once where others have the room."""
    here.make("full", nodes=4)
    everything = Need(memory=4 * MEMORY)
    with (
        Client(str(here.client.base_url), here.token("later")) as client,
        here.service.core.admission.enter("test", 0.0, everything, stop=lambda: None),
        pytest.raises(HostUnfit, match="no room on the host now") as caught,
    ):
        client.preview("galera", nodes=2, memory=MEMORY)
    assert "would wait" in caught.value.hint
    assert caught.value.retry_after == 30.0
    here.ask("DELETE", "/v1/labs/full?wait=30")

"""Labs that failed and are kept for a look: whose they are, how they end, and when not to."""

from __future__ import annotations

import io
import json
import os
import signal
import sqlite3
import tarfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, cast

import pytest
import zstandard

from lab.api.service import Service
from lab.cli import main
from lab.client import Client
from lab.errors import NotFound, NotReady
from lab.state.service import JobRecord
from lab.units import parse_time
from tests.support.killed_service import (
    CREATE,
    hooked,
    in_child,
    serving,
    submit_create,
    token,
    until_ended,
)
from tests.support.lifecycle_world import World
from tests.support.serve_world import BODY, Site, site

KEPT = {**BODY, "name": "shop", "ttl": 3600, "keep_failed": True}
UP = ("up", "galera", "--nodes", "2", "--memory", "384M")


@dataclass
class Trouble:
    """A hook: while ``on``, no clone is personalised. ``failed``: one was not."""

    on: bool = True
    failed: threading.Event = field(default_factory=threading.Event)

    def __call__(self, step: str) -> None:
        if self.on and step == "hypervisor.personalise":
            self.failed.set()
            raise NotReady("the node does not answer", hint="look at its log")


@pytest.fixture
def trouble() -> Trouble:
    return Trouble()


@pytest.fixture
def here(tmp_path: Path, trouble: Trouble) -> Iterator[Site]:
    root = tmp_path / "home"
    trouble.on = False
    with site(root, hooked(root, trouble)) as found:
        found.make("first")  # and the template
        assert found.ask("DELETE", "/v1/labs/first?wait=30").status_code == 204
        trouble.on = True
        yield found


def test_it_can_be_looked_at_and_removed(
    here: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Protects who has to find out why: the guests are there, and the failure is reported."""
    for name, value in (("LAB_URL", str(here.client.base_url)), ("LAB_TOKEN", here.token()),
                        ("LAB_HOME", str(tmp_path / "none"))):  # fmt: skip
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    assert main((*UP, "--name", "usual")) == NotReady.exit_code
    assert "kept" not in capsys.readouterr().err
    assert main((*UP, "--keep-failed", "--ttl", "1h")) == NotReady.exit_code
    reported = capsys.readouterr().err
    assert (
        "the node does not answer\n  lab galera is kept for inspection until its lease ends\n"
        in reported
    )
    assert main(("ls", "-o", "name")) == 0
    assert capsys.readouterr().out == "galera\n"
    found = here.ask("GET", "/v1/labs/galera").json()
    assert (found["state"], found["project"]) == ("failed", "shop")
    assert [node["state"] for node in found["nodes"]] == ["running", "running"]
    assert parse_time(found["expires_at"]) == pytest.approx(time.time() + 3600, abs=30)
    [job, *_] = here.ask("GET", "/v1/jobs").json()["items"]
    assert (job["state"], job["lab"], job["id"]) == ("failed", "galera", found["job"])
    assert main(("logs", "galera", "--source", "console")) == 0
    assert "lab-galera-n1" in capsys.readouterr().out
    other = here.token("other", project="other")
    assert here.ask("GET", "/v1/labs/galera", token=other).status_code == 404
    assert main(("down", "galera")) == 0
    assert here.ask("GET", "/v1/labs").json()["items"] == []


def test_one_that_is_not_kept_leaves_its_evidence(here: Site) -> None:
    """Protects who has to find out why: the lab is gone, its bundle is there, for its project."""
    owner, other = here.token(), here.token("other", project="other")
    refused = here.ask("POST", "/v1/labs?wait=60", {**BODY, "name": "shop"}, token=owner).json()
    (path,) = [one for one in refused["details"] if one.startswith("bundle: ")]
    path = path.removeprefix("bundle: GET ")
    assert path == f"/v1/jobs/{refused['job']}/bundle"
    found = here.ask("GET", path, token=owner)
    plain = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(found.content)).read()
    with tarfile.open(fileobj=io.BytesIO(plain)) as tar:
        (manifest,) = [one for one in tar.getnames() if one.endswith("/manifest.json")]
        said = json.loads(cast("IO[bytes]", tar.extractfile(manifest)).read())
    assert (said["lab"]["name"], said["why"]) == ("shop", "the node does not answer")
    assert here.ask("GET", path, token=other).status_code == 404
    assert here.ask("GET", "/v1/labs/shop", token=owner).status_code == 404
    url = str(here.client.base_url)
    with Client(url, owner) as client:
        assert client.job_bundle(refused["job"]) == found.content
    first = here.ask("GET", "/v1/jobs?kind=create").json()["items"][-1]["id"]
    with pytest.raises(NotFound, match="has no bundle"), Client(url, here.admin) as client:
        client.job_bundle(first)


def test_it_ends_by_its_lease(here: Site) -> None:
    """Protects the host from failures that nobody looks at."""
    assert here.ask("POST", "/v1/labs?wait=60", KEPT).status_code == 504
    assert here.ask("PATCH", "/v1/labs/shop", {"ttl": 7200}).status_code == 200
    here.service.core.store.labs.update("shop", expires_at=time.time() - 1)
    here.until_gone("shop")


def test_it_counts(here: Site) -> None:
    """Protects quotas from labs that failed: they take room still."""
    one = here.token("one", labs=1)
    assert here.ask("POST", "/v1/labs?wait=60", KEPT, token=one).status_code == 504
    assert here.ask("POST", "/v1/labs", BODY, token=one).status_code == 429
    assert here.ask("DELETE", "/v1/labs/shop?wait=30", token=one).status_code == 204


def test_what_is_cancelled_is_not_kept(tmp_path: Path) -> None:
    """Protects the host: who calls a lab off does not want to look at it."""
    there, go_on = threading.Event(), threading.Event()

    def hook(step: str) -> None:
        if step == "hypervisor.restore":
            there.set()
            assert go_on.wait(20)

    with site(tmp_path, hooked(tmp_path, hook)) as here:
        job = here.ask("POST", "/v1/labs", KEPT).json()["id"]
        assert there.wait(20)
        assert here.ask("POST", f"/v1/jobs/{job}/cancel").status_code < 300
        go_on.set()
        assert here.ask("GET", f"/v1/jobs/{job}?wait=30").json()["state"] == "cancelled"
        assert here.ask("GET", "/v1/labs").json()["items"] == []


def keep(service: Service) -> JobRecord:
    return submit_create(service, {**CREATE, "keep_failed": True})


def test_a_service_killed_then_makes_no_other_and_takes_it_for_no_success(tmp_path: Path) -> None:
    """Protects users of a failed lab: the next service reports the failure and keeps the lab."""
    trouble = Trouble()

    def hook(step: str) -> None:
        trouble(step)
        if step == "state.commit" and trouble.failed.is_set():
            with sqlite3.connect(World(tmp_path).home.database) as record:
                if record.execute("SELECT state FROM labs").fetchall() == [("failed",)]:
                    os.kill(os.getpid(), signal.SIGKILL)

    def act() -> None:
        with serving(tmp_path, hook) as service:
            token(service)
            until_ended(service, keep(service).id)

    def recover() -> None:
        with serving(tmp_path) as service:
            [job] = service.core.store.jobs.latest()
            done = until_ended(service, job.id)
            assert (done.state, done.lab) == ("failed", "shop")
            assert "is kept" in str(done.error)
            [lab] = service.core.store.labs.all()
            assert (lab.state, lab.job, lab.project) == ("failed", done.id, "shop")
            assert keep(service).id == done.id
            service.sweeper.sweep()
            assert service.core.store.labs.get("shop").expires_at is not None

    assert in_child(act) == -signal.SIGKILL
    assert in_child(recover) == 0

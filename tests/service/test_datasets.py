"""Datasets over HTTP: who may load, see and use data, and what a service does by itself."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.api.jobs.stored import read_facts
from lab.api.jobs.submit import new_job, submit
from lab.api.jobs.work import Task, create_dataset
from lab.api.service import Service
from lab.client import Client
from lab.config.datasetfile import ScheduledDataset
from lab.errors import Forbidden, InvalidSpec, LimitReached
from lab.lifecycle.core.context import Origin
from lab.progress import Event
from lab.requests.datasets import CreateDataset
from lab.state.service import JobRecord
from lab.wait import Deadline, until
from tests.support.killed_service import ALL, Ask, sweep, token, until_ended
from tests.support.serve_world import BODY, Site, site

SMALL = "generate:sysbench?tables=2&rows=10"
DUMP = (
    b"CREATE TABLE people (id INT PRIMARY KEY, name TEXT);\nINSERT INTO people VALUES (1, 'Ada');"
)
WHOLE = b"-- MariaDB dump 10.19  Distrib 11.8\n" + DUMP + b"\n-- Dump completed on 2026-11-20\n"


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Site]:
    with site(tmp_path) as found:
        yield found


def upload(here: Site, token: str = "", name: str = "mine.sql", content: bytes = WHOLE) -> str:
    """Send a dump; the source that names it. The fakes do not understand what is generated."""
    with Client(str(here.client.base_url), token or here.admin) as client:
        return f"upload:{client.datasets.upload(io.BytesIO(content), name).id}"


def load(here: Site, name: str, source: str = "", *, token: str = "", **more: Any) -> Any:
    body = {"name": name, "source": source or upload(here, token), **more}
    answer = here.ask("POST", "/v1/datasets?wait=60", body, token=token)
    assert answer.status_code == 201, answer.text
    return answer.json()


def versions(here: Site, name: str, *, token: str = "") -> list[tuple[int, str]]:
    found = here.ask("GET", f"/v1/datasets/{name}", token=token).json()
    return [(one["version"], one["state"]) for one in found["versions"]]


def test_a_dataset_from_its_source_to_its_removal(here: Site) -> None:
    """Protects those who work with data on a host that they cannot log in at."""
    ci = here.token()
    here.make("origin", token=ci)
    made = load(here, "bench", "lab:origin", token=ci, keep=2)
    [first] = made["versions"]
    assert (made["project"], first["source"], first["keep"]) == ("shop", "lab:origin", 2)
    assert here.ask("GET", "/v1/datasets", token=ci).json()[0]["name"] == "bench"
    lab = here.make("a", token=ci, dataset="bench")
    assert lab["image"] == first["image"], "the lab begins with the data"
    body = {"name": "bench", "source": "lab:origin"}
    again = here.ask("POST", "/v1/datasets", body, token=ci)
    assert again.status_code == 409
    refreshed = here.ask("POST", "/v1/datasets/bench/refresh?wait=60", token=ci)
    assert refreshed.status_code == 201, refreshed.text
    assert refreshed.json()["last_refresh"]["state"] == "succeeded"
    assert versions(here, "bench", token=ci) == [(1, "ready"), (2, "ready")]
    used = here.ask("DELETE", "/v1/datasets/bench@1?wait=60", token=ci)
    assert (used.status_code, "used by a" in used.json()["detail"]) == (409, True)
    assert here.ask("GET", "/v1/datasets/bench@1", token=ci).json()["versions"][0]["used_by"] == [
        "a"
    ]
    later = here.ask("DELETE", "/v1/datasets/bench@1?wait=60&defer=true", token=ci)
    assert later.status_code == 204
    assert versions(here, "bench", token=ci) == [(1, "removing"), (2, "ready")]
    assert here.ask("POST", "/v1/labs", {**BODY, "dataset": "bench@1"}, token=ci).status_code == 404
    assert here.ask("DELETE", "/v1/labs/a?wait=60", token=ci).status_code == 204
    assert versions(here, "bench", token=ci) == [(2, "ready")]
    assert here.ask("DELETE", "/v1/datasets/bench?wait=60", token=ci).status_code == 204
    assert here.ask("GET", "/v1/datasets/bench", token=ci).status_code == 404
    assert here.ask("GET", "/v1/datasets", token=ci).json() == []


def test_data_of_other_projects(here: Site) -> None:
    """Protects data: no list, no lab, no image and no message shows another project's."""
    ours, theirs = here.token(), here.token("other", project="other")
    image = load(here, "secret-one", token=ours)["versions"][0]["image"]
    here.make("a", token=ours, dataset="secret-one")
    load(here, "common", shared=True)
    assert [one["name"] for one in here.ask("GET", "/v1/datasets", token=theirs).json()] == [
        "common"
    ]
    for path in ("datasets/secret-one", "datasets/secret-one/scan", f"images/{image}"):
        assert here.ask("GET", f"/v1/{path}", token=theirs).status_code == 404, path
    for method, path in (("POST", "secret-one/refresh"), ("DELETE", "secret-one")):
        assert here.ask(method, f"/v1/datasets/{path}", token=theirs).status_code == 404
    for asked in ({"dataset": "secret-one"}, {"dataset": "secret-one@1"}, {"image": image}):
        for path in ("labs", "preview"):
            answer = here.ask("POST", f"/v1/{path}", {**BODY, **asked}, token=theirs)
            assert answer.status_code == 404, answer.text
    near = here.ask("POST", "/v1/labs?wait=30", {**BODY, "dataset": "secret-on"}, token=theirs)
    assert "secret-one" not in near.text
    taken = here.ask("POST", "/v1/datasets", {"name": "secret-one", "source": SMALL}, token=theirs)
    assert (taken.status_code, "version" in taken.text) == (409, False)
    promoted = here.ask("POST", "/v1/datasets", {"name": "x", "source": "lab:a"}, token=theirs)
    assert promoted.status_code == 404
    for kind in ("images", "templates"):
        assert image not in here.ask("GET", f"/v1/{kind}", token=theirs).text
        assert image in here.ask("GET", f"/v1/{kind}", token=ours).text
    assert here.make("b", token=theirs, dataset="common")["state"] == "ready"
    seen = here.ask("GET", "/v1/datasets/common", token=ours).json()["versions"][0]["used_by"]
    assert seen == [], "labs of others are not named"
    for method, path in (("POST", "common/refresh"), ("DELETE", "common?defer=true")):
        assert here.ask(method, f"/v1/datasets/{path}", token=ours).status_code == 403


def test_what_reaches_the_host_is_for_administrators(here: Site, tmp_path: Path) -> None:
    """Protects the host's files and its network from tokens of projects."""
    dump = tmp_path / "shop.sql"
    dump.write_bytes(WHOLE)
    ci = here.token()
    for source in (str(dump), "/etc/no.sql", "mysql://u@127.0.0.1/shop", "-", "./a.sql"):
        answer = here.ask("POST", "/v1/datasets", {"name": "x", "source": source}, token=ci)
        assert answer.status_code == 403, source
    body = {"name": "x", "source": SMALL, "shared": True}
    assert here.ask("POST", "/v1/datasets", body, token=ci).status_code == 403
    assert load(here, "x", str(dump), sql="INSERT INTO people VALUES (2, 'Grace');")
    for source, status in (("./a.sql", 422), ("-", 422), ("mysql://u:geheim@h/shop", 422)):
        answer = here.ask("POST", "/v1/datasets", {"name": "y", "source": source})
        assert (answer.status_code, "geheim" in answer.text) == (status, False), source
    for path in (here.service.core.settings.home.database,
                 here.service.core.settings.home.jobs_database):  # fmt: skip
        assert b"geheim" not in path.read_bytes()


def test_uploads(here: Site, tmp_path: Path) -> None:
    """Protects clients with a dump: it is loaded once, and nothing of it stays."""
    home = here.service.core.settings.home
    dump = tmp_path / "mine.sql"
    dump.write_bytes(WHOLE)
    ci, other = here.token(), here.token("other", project="other")
    with Client(str(here.client.base_url), ci) as client:
        with dump.open("rb") as file:
            sent = client.datasets.upload(file, "mine.sql")
        assert sent.size == len(WHOLE)
        body = {"name": "x", "source": f"upload:{sent.id}"}
        assert here.ask("POST", "/v1/datasets", body, token=other).status_code == 404
        made = client.datasets.create("crm", f"upload:{sent.id}")
        assert (made.at, made.source) == ("crm@1", "upload:mine.sql")
        assert list(home.uploads.glob("*/*")) == []
        with pytest.raises(InvalidSpec, match="cannot be read again"):
            client.datasets.refresh("crm")
        with dump.open("rb") as file, pytest.raises(InvalidSpec, match="not the name of a dump"):
            client.datasets.upload(file, "../evil.sql")
        dump.write_bytes(WHOLE.replace(b"INTO people", b"INTO persons"))
        with dump.open("rb") as file:
            sent = client.datasets.upload(file, "bad.sql")
        with pytest.raises(InvalidSpec, match=r"bad\.sql: statement"):
            client.datasets.create("bad", f"upload:{sent.id}")
        assert list(home.uploads.glob("*/*")) == []
        with dump.open("rb") as file:
            left = client.datasets.upload(file, "left.sql")
    directory = next(home.uploads.glob(f"*/{left.id}"))
    for path in (directory / "left.sql", directory):
        os.utime(path, (1.0, 1.0))
    assert until(lambda: not directory.exists(), Deadline.after(10))


def test_rules_of_masking_come_along(here: Site) -> None:
    """Protects people: data sent with rules is not loaded without them."""
    for rules, said in (
        ('[tables."shop.persons"]\nname = "name"', "shop.persons"),
        ('[tables."shop.people"]\nname = "nickname"', "nickname"),
    ):
        body = {"name": "crm", "source": upload(here), "mask": rules}
        answer = here.ask("POST", "/v1/datasets?wait=60", body)
        assert (answer.status_code, said in answer.text) == (422, True), answer.text
    assert here.ask("GET", "/v1/datasets").json() == []


def test_limits(tmp_path: Path) -> None:
    """Protects the host's disk from one project, and projects from each other."""
    with site(tmp_path, dataset_size=1 << 20) as here:
        ci = here.token(disk=16 << 30)
        big = {"name": "big", "source": "generate:sysbench?tables=1&rows=100000"}
        refused = here.ask("POST", "/v1/datasets", big, token=ci)
        assert (refused.status_code, "is the limit" in refused.text) == (429, True)
        with Client(str(here.client.base_url), ci) as client:
            path = tmp_path / "large.sql"
            path.write_bytes(b"-- nothing\n" * 200_000)
            with path.open("rb") as file, pytest.raises(LimitReached):
                client.datasets.upload(file, "large.sql")
        load(here, "small", token=ci)
        [image] = [one for one in here.service.core.store.images.all() if one.dataset]
        here.service.core.store.images.update(image.key, size=16 << 30)
        full = here.ask("POST", "/v1/labs", BODY, token=ci)
        assert (full.status_code, "disk" in full.json()["detail"]) == (429, True)
        full = here.ask("POST", "/v1/datasets", {"name": "more", "source": SMALL}, token=ci)
        assert full.status_code == 429


def test_a_lab_becomes_a_dataset(here: Site) -> None:
    """Protects who prepared data in a lab; an administrator's goes to the lab's project."""
    ci = here.token()
    here.make("a", token=ci)
    assert load(here, "crm", "lab:a")["project"] == "shop"
    assert versions(here, "crm", token=ci) == [(1, "ready")]
    masked = {"name": "x", "source": "lab:a", "sql": "DROP TABLE a"}
    assert here.ask("POST", "/v1/datasets", masked, token=ci).status_code == 422


@pytest.mark.rare
def test_refreshed_by_a_schedule(tmp_path: Path) -> None:
    """Protects those who rely on fresh data; a source that fails is not asked all the time."""
    dump = tmp_path / "shop.sql"
    dump.write_bytes(WHOLE)
    schedule = (ScheduledDataset("shop", 1.0, 2), ScheduledDataset("absent", 1.0))
    with site(tmp_path / "home", datasets=schedule) as here:
        load(here, "shop", str(dump))
        here.make("a", dataset="shop@1")

        def after(number: int) -> Any:
            found = versions(here, "shop")
            return found if max(one for one, _ in found) >= number else None

        assert until(lambda: after(4), Deadline.after(30))
        dump.unlink()
        here.settled()
        assert until(lambda: _failed(here), Deadline.after(30))
        found = here.ask("GET", "/v1/datasets/shop").json()
        states = [(one["version"], one["state"]) for one in found["versions"]]
        assert states[0] == (1, "removing"), "a lab uses it"
        assert [state for _, state in states[1:]] == ["ready"] * 2
        # Whether it was gone before a refresh began, or while one was about to read it.
        assert str(dump) in found["last_refresh"]["error"]
        assert found["refresh"] == 1.0
        assert found["next_refresh_at"] > found["last_refresh"]["at"]
        jobs = here.ask("GET", "/v1/jobs?kind=refresh-dataset&state=failed").json()["items"]
        time.sleep(0.5)  # more than one sweep
        again = here.ask("GET", "/v1/jobs?kind=refresh-dataset&state=failed").json()["items"]
        assert len(again) <= len(jobs) + 1
        assert here.ask("DELETE", "/v1/labs/a?wait=60").status_code == 204
        assert until(lambda: versions(here, "shop")[0][0] > 1, Deadline.after(10))


def _failed(here: Site) -> bool:
    last = here.ask("GET", "/v1/datasets/shop").json()["last_refresh"]
    return last is not None and last["state"] == "failed"


def test_versions_on_several_engines(here: Site, tmp_path: Path) -> None:
    """Protects comparisons: the same data on each engine."""
    dump = tmp_path / "drawn.sql"
    dump.write_bytes(WHOLE)
    with Client(str(here.client.base_url), here.admin) as client:
        assert client.datasets.create("drawn", str(dump)).image == "mariadb-drawn.1"
        second = client.datasets.refresh("drawn", engine="mariadb:10.11")
        assert (second.at, second.image) == ("drawn@2", "mariadb-10.11-drawn.2")
        with pytest.raises(InvalidSpec, match="there is no engine 'oracle'"):
            client.datasets.refresh("drawn", engine="oracle")
        assert client.datasets.remove("drawn")


def test_the_client(here: Site) -> None:
    """Protects programs against a service: the same values as on the host."""
    heard: list[Event] = []
    with Client(str(here.client.base_url), here.token()) as client:
        client.create("galera", name="origin", nodes=2, memory=384 << 20)
        made = client.datasets.create("bench", "lab:origin", keep=3, listener=heard.append)
        assert (made.at, made.keep, made.project) == ("bench@1", 3, "shop")
        assert "copy" in [event.step for event in heard]
        assert client.datasets.refresh("bench").at == "bench@2"
        assert [view.at for view in client.datasets.all()] == ["bench@1", "bench@2"]
        assert client.datasets.get("bench").at == "bench@2"
        assert client.datasets.get("bench@1").at == "bench@1"
        assert client.datasets.scan("bench") == []
        with pytest.raises(Forbidden):
            client.datasets.create("x", "/srv/shop.sql")
        with pytest.raises(InvalidSpec, match="is made of a lab, and has its engine"):
            client.datasets.refresh("bench", engine="mysql")
        assert client.datasets.remove("bench@1")
        assert client.datasets.remove("bench", defer=True)
        assert client.datasets.all() == []


def ask_create(service: Service) -> JobRecord:
    by = service.core.store.tokens.all()[0]
    root = service.core.settings.home.uploads / by.id / "1"
    if not root.exists() and not service.core.store.jobs.latest():
        root.mkdir(parents=True)
        (root / "mine.sql").write_bytes(WHOLE)
    request = CreateDataset(name="bench", source="upload:mine.sql", upload=f"{by.id}/1/mine.sql")
    return submit(service.jobs, new_job(by, request, key="the-key"))


def after_create(service: Service, ask: Ask) -> None:
    """One version, by one job, and nothing of an interrupted attempt."""
    done = until_ended(service, ask(service).id)
    assert (done.state, done.about) == ("succeeded", "dataset:bench@1"), done.error
    [made] = [one for one in service.core.store.images.all() if one.dataset]
    assert (made.version, made.state, made.job) == (1, "ready", done.id)
    assert list(service.core.settings.home.builds.iterdir()) == []
    assert list(service.core.settings.home.uploads.glob("*/*")) == []


@pytest.mark.rare
def test_each_phase_of_a_creation(tmp_path: Path) -> None:
    """Protects the promise of 202: undone, and made once, whatever step is the last."""
    sweep(tmp_path, ask_create, token, most=ALL, after=after_create)


def test_a_creation_is_not_done_twice(here: Site) -> None:
    """The service is killed when the version is there, but the job's end is not recorded."""
    here.make("origin")
    image = load(here, "bench", "lab:origin")["versions"][0]["image"]
    [record] = here.service.core.store.jobs.latest(kinds=["create-dataset"])
    task = Task(record, read_facts(record, CreateDataset), again=True)
    with here.service.core.contexts.use(origin=Origin("admin", record.id)) as ctx:
        assert create_dataset(ctx, task) == "dataset:bench@1"
        assert versions(here, "bench") == [(1, "ready")]
        ctx.store.images.update(image, state="building")  # killed before
        assert create_dataset(ctx, task) == "dataset:bench@1"
    assert versions(here, "bench") == [(1, "ready")]

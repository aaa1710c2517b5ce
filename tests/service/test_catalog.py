"""Images and templates over HTTP: made as jobs, refused where they are in use, never left half."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lab.api.jobs.stored import read_facts
from lab.api.jobs.submit import new_job, submit
from lab.api.service import Service
from lab.cli import main
from lab.client import Client
from lab.errors import Conflict, NotFound
from lab.progress import Event
from lab.requests.images import BuildImage, BuildTemplate, DeleteTemplate
from lab.spec import LabSpec
from lab.state.service import JobRecord
from lab.units import parse_time
from tests.support.killed_service import Ask, freed, sweep, token, until_ended
from tests.support.serve_world import BODY, MEMORY, Site, site

SHAPE = {"blueprint": "galera", "nodes": 2, "memory": MEMORY}
SPEC = LabSpec("galera", nodes=2, memory=MEMORY)


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Site]:
    with site(tmp_path) as found:
        yield found


def test_an_image_from_recipe_to_removal(here: Site) -> None:
    """Protects admins of hosts that they cannot log in at."""
    accepted = here.ask("POST", "/v1/images", {"recipe": "mariadb"}, Idempotency_Key="a")
    assert accepted.status_code in (201, 202)
    again = here.ask("POST", "/v1/images?wait=60", {"recipe": "mariadb"}, Idempotency_Key="a")
    assert again.status_code == 201
    made = again.json()
    assert again.headers["location"] == f"/v1/images/{made['key']}"
    [job] = here.ask("GET", "/v1/jobs").json()["items"]
    assert (job["kind"], job["lab"], job["about"]) == ("build-image", "", f"image:{made['key']}")
    steps = [event["step"] for event in here.stream(f"/v1/jobs/{job['id']}/events")]
    assert "image" in steps
    assert steps[-1] == "job"
    other = here.ask("POST", "/v1/images", {"recipe": "mariadb", "rebuild": True},
                     Idempotency_Key="a")  # fmt: skip
    assert other.status_code == 422

    found = here.ask("GET", "/v1/images/mariadb")
    assert found.json() == made
    tag = found.headers["etag"]
    rebuilt = here.ask("POST", "/v1/images?wait=60", {"recipe": "mariadb", "rebuild": True})
    assert rebuilt.status_code == 201
    assert rebuilt.headers["etag"] != tag
    stale = here.ask("DELETE", f"/v1/images/{made['key']}?wait=60", If_Match=tag)
    assert stale.status_code == 412
    gone = here.ask("DELETE", "/v1/images/mariadb?wait=60", If_Match=rebuilt.headers["etag"])
    assert gone.status_code == 204
    assert here.ask("GET", "/v1/images").json() == []
    assert here.ask("DELETE", "/v1/images/mariadb").status_code == 404


def test_a_template_and_who_uses_it(here: Site) -> None:
    """Protects labs from having removed what they are clones of; and warm starts: it is used."""
    answer = here.ask("POST", "/v1/templates?wait=60", SHAPE)
    assert answer.status_code == 201, answer.text
    made = answer.json()
    where = answer.headers["location"]
    assert where == f"/v1/templates/{made['key']}"
    assert here.ask("GET", where).headers["etag"] == answer.headers["etag"]
    assert here.ask("GET", where[:-6]).json()["key"] == made["key"]  # the start of it will do
    lab = here.make("shop")
    assert lab["template"] == made["key"]
    used = here.ask("DELETE", f"{where}?wait=60")
    assert used.status_code == 409
    assert "shop" in used.json()["detail"]
    image = f"/v1/images/{made['image']}"
    assert here.ask("DELETE", f"{image}?wait=60").status_code == 409
    assert here.ask("DELETE", "/v1/labs/shop?wait=60").status_code == 204
    assert here.ask("DELETE", f"{where}?wait=60").status_code == 204
    assert here.ask("DELETE", f"{image}?wait=60").status_code == 204
    assert here.ask("GET", where).status_code == 404


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("images", {"recipe": "teapot"}, 404),
        ("images", {"recipe": "../mariadb"}, 422),
        ("images", {"recipe": "mariadb", "layout": "split"}, 422),
        ("templates", {"blueprint": "teapot"}, 422),
        ("templates", {**SHAPE, "profile": "teapot"}, 422),
        ("templates", {**SHAPE, "name": "shop"}, 422),
        ("templates", {**SHAPE, "memory": 1 << 40}, 429),
    ],
)
def test_what_makes_no_sense_is_told_at_once(
    here: Site, path: str, body: dict[str, Any], status: int
) -> None:
    assert here.ask("POST", f"/v1/{path}", body).status_code == status
    assert here.ask("GET", "/v1/jobs").json()["items"] == []


def test_making_is_for_admins_looking_for_all(here: Site) -> None:
    """Protects a host that several projects share."""
    here.make("shop")
    ci, reader = here.token(), here.token("reader", scope="read")
    for path, body in (("images", {"recipe": "mariadb"}), ("templates", SHAPE)):
        [known] = here.ask("GET", f"/v1/{path}", token=reader).json()
        assert here.ask("POST", f"/v1/{path}", body, token=ci).status_code == 403
        assert here.ask("DELETE", f"/v1/{path}/{known['key']}", token=ci).status_code == 403


@pytest.mark.rare
def test_the_client_and_the_command_line(
    here: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Protects those who prepare a host from elsewhere, and what they see meanwhile."""
    heard: list[Event] = []
    with Client(str(here.client.base_url), here.admin) as client:
        image = client.build_image("mariadb", listener=heard.append)
        assert "image" in [event.step for event in heard]
        assert client.build_image("mariadb", timeout=60) == image
        made = client.build_template(SPEC, listener=heard.append)
        assert "capture" in [event.step for event in heard]
        assert client.build_template("galera", nodes=2, memory=MEMORY).key == made.key
        with pytest.raises(Conflict, match="is used by"):
            client.remove_image("mariadb")
        with pytest.raises(NotFound, match="teapot"):
            client.build_image("teapot")
        client.remove_template(made.key[:6])
        client.remove_image(image.key)
        with pytest.raises(NotFound):
            client.remove_image(image.key)
    monkeypatch.setenv("LAB_URL", str(here.client.base_url))
    monkeypatch.setenv("LAB_TOKEN", here.admin)
    shape = ("galera", "--nodes", "2", "--memory", "384M")
    for words in (
        ("image", "build", "mariadb", "-o", "name"),
        ("template", "build", *shape, "-o", "name"),
    ):
        assert main(words) == 0
        assert capsys.readouterr().out.strip() in (image.key, made.key)
    assert main(("image", "rm", "mariadb")) == 4
    assert main(("template", "rm", made.key)) == 0
    assert main(("image", "rm", "mariadb")) == 0
    assert "removed image mariadb" in capsys.readouterr().err


BUILD = msgspec.convert({k: v for k, v in BODY.items() if k in SHAPE}, BuildTemplate)


def build(service: Service) -> JobRecord:
    token = service.core.store.tokens.all()[0]
    return submit(service.jobs, new_job(token, BUILD, key="the-key"))


def remove(service: Service) -> JobRecord:
    token = service.core.store.tokens.all()[0]
    request = DeleteTemplate(key=service.core.store.templates.all()[0].key)
    return submit(service.jobs, new_job(token, request))


def token_and_template(service: Service) -> None:
    token(service)
    assert until_ended(service, freed(build(service), service)).state == "succeeded"


def built(service: Service, ask: Ask) -> None:
    """The same request again is the same job, and made one image and one template."""
    done = until_ended(service, ask(service).id)
    [made] = service.core.store.templates.all()
    assert (done.state, done.about, made.state) == ("succeeded", f"template:{made.key}", "ready")
    assert len(service.core.store.images.all()) == len(service.core.store.jobs.latest()) == 1


def removed(service: Service, ask: Ask) -> None:
    jobs = service.core.store.jobs.latest(kinds=["delete-template"])
    if not jobs:
        jobs = [until_ended(service, ask(service).id)]  # it was not accepted yet
    assert [job.state for job in jobs] == ["succeeded"]
    assert service.core.store.templates.all() == []


@pytest.mark.rare  # test_killed does it to a create
def test_a_build_that_was_killed_is_done_by_the_next_service(tmp_path: Path) -> None:
    """Protects the promise of 202, for an image and a template."""
    sweep(tmp_path, build, token, most=5, after=built)


@pytest.mark.rare
def test_a_removal_that_was_killed_is_done_by_the_next_service(tmp_path: Path) -> None:
    """Protects the host's disk from templates that are half removed."""
    sweep(tmp_path, remove, token_and_template, most=4, after=removed)


def test_a_rebuild_is_not_done_twice(tmp_path: Path) -> None:
    """The service is killed when the image is there, but the job's end is not recorded."""
    from lab.api.jobs.work import Task, build_image

    with site(tmp_path) as here:
        body = {"recipe": "mariadb", "rebuild": True}
        first = here.ask("POST", "/v1/images?wait=60", body).json()
        [record] = here.service.core.store.jobs.latest()
        with here.service.core.contexts.use() as ctx:
            assert (
                build_image(ctx, Task(record, read_facts(record, BuildImage), again=True))
                == f"image:{first['key']}"
            )
            assert ctx.store.images.get(first["key"]).created_at == pytest.approx(
                parse_time(first["created_at"]), abs=1e-6
            )

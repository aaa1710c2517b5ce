"""Who may do what, route by route, from the document itself: a new route cannot be forgotten."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import pytest

from lab.api.http.auth import FailedLogins
from lab.errors import LimitReached
from lab.lifecycle.service import token as tokens
from tests.support.serve_world import BODY, Site, site

OPEN = {"health", "readiness", "metrics"}
"""What answers without a token."""
BODIES = {
    "createLab": BODY,
    "previewLab": BODY,
    "collectGarbage": {},
    "changeLab": {},
    "execute": {"argv": ["x"]},
    "createToken": {"name": "x", "project": "x"},
    "takeSnapshot": {},
    "changeSnapshot": {"protected": True},
    "rollBack": {},
    "resetLab": {},
    "makeStandby": {},
    "branchLab": {},
    "promoteNode": {"node": "n2"},
    "upgradeLab": {"to": "mariadb:11.8"},
    "buildImage": {"recipe": "mariadb"},
    "buildTemplate": {"blueprint": "galera"},
}


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site(tmp_path_factory.mktemp("serve"), metrics=True) as found:
        yield found


@pytest.fixture(scope="module")
def theirs(here: Site) -> dict[str, str]:
    """What another project has, as it stands in paths."""
    lab = here.make("theirs", token=here.token("theirs", project="theirs"))
    image = here.ask("GET", "/v1/images").json()[0]["key"]
    token = here.service.core.store.tokens.all()[0].id
    return {"name": "theirs", "node": "n1", "action": "stop", "job": lab["job"], "key": image,
            "token": token, "label": "origin"}  # fmt: skip


def operations(here: Site) -> list[tuple[str, str, dict[str, Any]]]:
    document = here.ask("GET", "/openapi.json").json()
    return [(method.upper(), path, found) for path, methods in document["paths"].items()
            for method, found in methods.items()]  # fmt: skip


def test_no_route_but_health_answers_without_a_valid_token(
    here: Site, theirs: dict[str, str]
) -> None:
    """Protects everything: no, wrong, expired and revoked tokens open nothing."""
    expired = here.token("expired", scope="admin", lasts=0.001)
    revoked = here.token("revoked", scope="admin")
    tokens.revoke(here.service.core.store, "revoked")
    time.sleep(0.01)
    wrong = here.admin[:-1] + ("A" if here.admin[-1] != "A" else "B")
    known = [operation["operationId"] for _, _, operation in operations(here)]
    assert len(known) == len(set(known)) > 25
    for method, path, operation in operations(here):
        where = path.format(**theirs)
        if operation["operationId"] in OPEN:
            assert here.client.request(method, where).status_code == 200
            continue
        assert operation["x-scope"] in ("read", "use", "admin")
        body = BODIES.get(operation["operationId"])
        for sent in (
            {},
            *({"Authorization": f"Bearer {one}"} for one in (wrong, expired, revoked, "x")),
        ):
            answer = here.client.request(method, where, json=body, headers=sent)
            assert answer.status_code == 401, (path, sent)
            assert answer.headers["www-authenticate"].startswith("Bearer")


def test_a_smaller_scope_is_refused(here: Site, theirs: dict[str, str]) -> None:
    """Protects from tokens that were given for looking only."""
    below = {"use": "read", "admin": "use"}
    for method, path, operation in operations(here):
        scope = below.get(operation.get("x-scope", ""))
        if scope:
            token = here.token(f"only-{scope}", scope=scope, project="theirs")  # type: ignore[arg-type]
            body = BODIES.get(operation["operationId"])
            answer = here.ask(method, path.format(**theirs), body, token=token)
            assert answer.status_code == 403, path


def test_projects_do_not_see_each_other(here: Site, theirs: dict[str, str]) -> None:
    """Protects projects: what another has is not there, in lists and by name."""
    token = here.token("curious", project="mine")
    checked = 0
    for method, path, operation in operations(here):
        if operation.get("x-scope") == "admin" or not {"{name}", "{job}"} & set(path.split("/")):
            continue
        body = BODIES.get(operation["operationId"])
        answer = here.ask(method, path.format(**theirs), body, token=token)
        assert answer.status_code == 404, path
        checked += 1
    assert checked > 10
    for path in ("/v1/labs", "/v1/jobs", "/v1/events"):
        assert here.ask("GET", path, token=token).json()["items"] == [], path
        assert here.ask("GET", path).json()["items"], path
    assert here.ask("GET", "/v1/labs/theirs").json()["state"] == "ready"
    assert here.ask("GET", f"/v1/jobs?after={theirs['job']}", token=token).status_code == 404


def test_passwords_are_for_those_who_may_use_a_lab(here: Site, theirs: dict[str, str]) -> None:
    """Protects databases from those who may only look."""
    path = f"/v1/labs/{theirs['name']}"
    reader = here.token("reader", scope="read", project="theirs")
    assert here.ask("GET", path, token=reader).json()["connection"] is None
    assert here.ask("GET", path).json()["connection"]["password"]


def test_tokens_are_made_listed_and_revoked(here: Site) -> None:
    """Protects the life of a token, and its secret: it is shown once, and kept as a hash."""
    made = here.ask("POST", "/v1/tokens", {"name": "new", "project": "p", "max_labs": 1}).json()
    assert here.ask("GET", "/v1/labs", token=made["text"]).status_code == 200
    secret = made["text"].split("_", 2)[2]
    assert secret not in here.ask("GET", "/v1/tokens").text
    home = here.service.core.settings.home
    kept = b"".join(path.read_bytes() for path in home.root.glob("*.db*"))
    assert secret.encode() not in kept
    path = f"/v1/tokens/{made['token']['id']}"
    known = here.ask("GET", path).json()
    assert known.pop("last_used_at")
    assert known | {"last_used_at": None} == made["token"]
    here.token(made["token"]["id"])  # another that is called like its id
    assert here.ask("DELETE", path).json()["id"] == made["token"]["id"]
    assert here.ask("GET", path).json()["revoked_at"]
    assert here.ask("GET", "/v1/labs", token=made["text"]).status_code == 401


def test_guessing_is_slowed_down() -> None:
    """Protects from those who try tokens: an address that fails too often has to wait."""
    now = [0.0]
    logins = FailedLogins(3, clock=lambda: now[0])
    assert [logins.failed("a") for _ in range(3)] == [True] * 3
    with pytest.raises(LimitReached) as caught:
        logins.failed("a")
    assert caught.value.retry_after == 60.0
    logins.failed("b")
    now[0] = 60.0
    logins.failed("a")


def test_wrong_tokens_are_noted_and_not_without_end() -> None:
    """Protects the audit trail: many addresses do not fill it."""
    now = [0.0]
    logins = FailedLogins(3, clock=lambda: now[0])
    assert sum(logins.failed(str(number)) for number in range(1000)) == 60
    now[0] = 60.0
    assert logins.failed("late")


def test_metrics_count_what_happened(here: Site, theirs: dict[str, str]) -> None:
    """Protects dashboards: labs by state, jobs and their steps, without names or secrets."""
    text = here.client.get("/metrics").text
    assert 'lab_labs{state="ready"} 1.0' in text
    assert 'lab_job_seconds_count{kind="create",state="succeeded"} 1.0' in text
    assert 'step="clone"' in text
    assert theirs["name"] not in text
    assert 'lab_template_lookups_total{result="miss"} 1.0' in text
    assert "lab_restore_seconds_count 1.0" in text
    for figure in ("free_bytes", "used_bytes", 'bytes{kind="template"}'):
        line = next(one for one in text.splitlines() if one.startswith(f"lab_storage_{figure} "))
        assert float(line.split()[-1]) > 0, line
    assert 'lab_storage_bytes{kind="image"} ' in text
    here.make("second", token=here.token("second", project="theirs"))
    text = here.client.get("/metrics").text
    assert 'lab_template_lookups_total{result="hit"} 1.0' in text
    assert "lab_restore_seconds_count 2.0" in text


def test_metrics_are_named_by_the_rules_of_prometheus(here: Site) -> None:
    """Protects dashboards from units that one has to guess."""
    text = here.client.get("/metrics").text
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.M))
    for name, kind in kinds.items():
        assert name.startswith("lab_"), name
        if name.endswith("_created"):
            continue  # the library's
        assert (kind == "counter") == name.endswith("_total"), name
        assert kind != "histogram" or name.endswith("_seconds"), name


def test_a_scrape_does_not_ask_the_storage_each_time(here: Site) -> None:
    """Protects the host: ZFS runs a program to tell its space."""
    assert here.service.core.space.get() is here.service.core.space.get()

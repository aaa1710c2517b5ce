"""Three hosts and one PostgreSQL, as processes on the fakes: any of them answers for all."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from functools import partial
from http.client import HTTPConnection
from pathlib import Path

import httpx
import pytest

from lab.api.core import fleet as core_fleet
from lab.config.servefile import Serve
from lab.config.settings import Settings
from lab.fleet import placements
from lab.fleet.choose import Needs
from lab.fleet.database import FleetDatabase, migrate
from lab.fleet.hosts import LATE, LOST_AFTER, Host, drain
from lab.fleet.placements import Placement
from lab.paths import Home
from lab.wait import Deadline, until
from tests.support.dashboard import OF_PROMETHEUS, exposed, expressions, labels, names
from tests.support.fleet_process import HOSTS, Fleet, listed, up
from tests.support.page_visit import OURS, place_of, visit_at
from tests.support.postgres_server import NEEDED, Postgres, postgres, programs, standby_of
from tests.support.serve_process import Serving
from tests.support.serve_world import BODY


@pytest.fixture(scope="module")
def database() -> Iterator[Postgres]:
    """A server of PostgreSQL with the tables of a fleet."""
    if programs() is None:
        pytest.skip(NEEDED)
    with postgres() as found:
        migrate(found.url)
        yield found


@pytest.fixture(scope="module")
def url(database: Postgres) -> str:
    return database.url


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, url: str) -> Iterator[Fleet]:
    """Three hosts that have joined."""
    found = Fleet(tmp_path_factory.mktemp("fleet"), url)
    try:
        for name in HOSTS:
            found.start(name)
        yield found
    finally:
        found.close()


def _lists(host: Serving, wanted: dict[str, tuple[str, str]]) -> bool:
    return listed(host) == wanted


def test_any_host_answers_for_all(fleet: Fleet) -> None:
    """Protects users from having to know which host has their lab."""
    h1, h2, h3 = (fleet.hosts[name] for name in HOSTS)
    names = [one["name"] for one in h1.ask("GET", "/v1/hosts").json()["items"]]
    assert names == list(HOSTS)
    authorities = h1.ask("GET", "/v1/host/ca").text
    assert authorities.count("BEGIN CERTIFICATE") == 3, "labs of all hosts can be verified"
    made = up(h1, "there", on="h2")
    assert (made["name"], made["host_name"], made["state"]) == ("there", "h2", "ready")
    assert made["connection"]["password"], "the owner's own answer"
    labelled = up(h3, "labelled", on="@l0")
    assert labelled["host_name"] == "h1"
    wanted = {"there": ("h2", "ready"), "labelled": ("h1", "ready")}
    for host in (h1, h2, h3):
        assert until(partial(_lists, host, wanted), Deadline.after(10)), listed(host)
    again = h3.ask("GET", "/v1/labs/there", X_Request_Id="mine-1")
    assert again.headers.get_list("x-request-id") == ["mine-1"]
    assert (again.status_code, again.json()["host_name"]) == (200, "h2")
    job = h3.ask("GET", f"/v1/jobs/{made['job']}").json()
    assert (job["state"], job["lab"]) == ("succeeded", "there")
    taken = h3.ask("POST", "/v1/labs", {**BODY, "name": "there"})
    assert taken.status_code == 409
    assert "on the host h2" in taken.json()["detail"]
    snapshot = h1.ask("POST", "/v1/labs/there/snapshots?wait=60", {"name": "mine"})
    assert snapshot.status_code == 201, snapshot.text
    started = h1.ask("POST", "/v1/labs/there/snapshots", {"name": "more"}).json()
    ended = h3.ask("GET", f"/v1/jobs/{started['id']}?wait=30").json()
    assert ended["state"] == "succeeded", "found through any host"
    branch = h3.ask("POST", "/v1/labs/there/branches?wait=60", {"name": "limb"})
    assert branch.status_code in (200, 201), branch.text
    assert until(lambda: listed(h1).get("limb") == ("h2", "ready"), Deadline.after(10))
    assert h1.ask("DELETE", "/v1/labs/labelled?wait=60").status_code == 204
    for name in ("limb", "there"):
        assert h3.ask("DELETE", f"/v1/labs/{name}?wait=60").status_code == 204
    assert until(lambda: listed(h2) == {}, Deadline.after(10)), listed(h2)
    assert h2.ask("GET", "/v1/labs/there").status_code == 404


def test_a_token_of_one_host_is_valid_at_all(fleet: Fleet) -> None:
    """Protects clients: a token is the fleet's, and a revoked one is nobody's."""
    h1, h2, _ = (fleet.hosts[name] for name in HOSTS)
    body = {"name": "ci", "scope": "use", "project": "ci"}
    made = h1.ask("POST", "/v1/tokens", body).json()
    ci = Serving(h2.process, h2.url, made["text"], h2.talk)

    def valid(status: int) -> bool:
        return ci.ask("GET", "/v1/labs").status_code == status

    assert until(lambda: valid(200), Deadline.after(10))
    assert up(ci, "mine", on="h1")["project"] == "ci"
    identity = made["token"]["id"]
    assert h1.ask("DELETE", "/v1/labs/mine?wait=60").status_code == 204
    assert h1.ask("DELETE", f"/v1/tokens/{identity}").status_code == 200
    assert until(lambda: valid(401), Deadline.after(10))
    ci.client.close()


def test_a_host_is_killed(fleet: Fleet) -> None:
    """Protects jobs: those of a killed host are its own, and it resumes them."""
    h1, h3 = fleet.hosts["h1"], fleet.hosts["h3"]
    up(h1, "stays", on="h2")
    fleet.kill("h2")
    job = h1.ask("POST", "/v1/labs", {**BODY, "name": "later", "host": "h2"}).json()
    assert (job["state"], job["lab"]) == ("queued", "later")
    answer = h1.ask("GET", "/v1/labs/stays")
    assert answer.status_code == 503
    assert answer.headers["retry-after"]
    with visit_at(h1.url, h1.token) as client:
        page = client.get("/labs/stays")
    assert (page.status_code, page.headers["retry-after"] != "") == (503, True)
    assert "the host h2 does not answer" in page.text
    assert page.headers["content-type"].startswith("text/html")
    began = time.monotonic()
    fleet.start("h2")

    def ready() -> bool:
        return h3.ask("GET", "/v1/labs/later").status_code == 200

    assert until(ready, Deadline.after(30))
    assert time.monotonic() - began < 20
    done = h3.ask("GET", f"/v1/jobs/{job['id']}?wait=30").json()
    assert done["state"] == "succeeded"
    for name in ("stays", "later"):
        assert h3.ask("GET", f"/v1/labs/{name}").json()["host_name"] == "h2"
        assert h1.ask("DELETE", f"/v1/labs/{name}?wait=60").status_code == 204


def test_what_is_of_hosts_alone(fleet: Fleet) -> None:
    """Protects what hosts ask of each other from everybody else, however the path is written."""
    h1, h2 = fleet.hosts["h1"], fleet.hosts["h2"]
    made = up(h1, "there", on="h2")
    assert h1.ask("POST", f"/v1/fleet/jobs/{made['job']}").status_code == 404
    for path in (f"/v1/labs/there/../../fleet/jobs/{made['job']}", "/v1/labs/there/../../hosts"):
        for host in (h1, h2):
            assert _raw(host, path) == 404, path
    assert _raw(h1, "/v1/labs/there/nodes/%3Fn1") in (404, 422)
    assert _raw(h1, "/v1/labs/there/nodes/%C3%A9") in (404, 422)
    assert _raw(h1, "/v1/labs/a%00b") in (404, 422)
    url = h1.ask("GET", "/v1/hosts/h2").json()["url"]
    with pytest.raises(httpx.HTTPError):  # no certificate of the fleet
        httpx.get(f"{url}/v1/labs/there", verify=False, timeout=10)  # noqa: S501
    assert h2.ask("DELETE", "/v1/labs/there?wait=60").status_code == 204


def test_lists_of_any_host_are_had_through_any(fleet: Fleet) -> None:
    """Protects from lists that are another host's than they seem: each item says whose it is."""
    h1, h2, h3 = (fleet.hosts[name] for name in HOSTS)
    job = up(h1, "listed", on="h2")["job"]
    own = h3.ask("GET", "/v1/jobs").json()["items"]
    assert job not in [one["id"] for one in own]
    assert {one["host_name"] for one in own} <= {"h3"}
    found = h3.ask("GET", "/v1/jobs?host=h2&limit=1").json()
    assert [(one["id"], one["host_name"]) for one in found["items"]] == [(job, "h2")]
    h3.ask("POST", "/v1/labs/listed/stop?wait=30")
    pages = [h3.ask("GET", "/v1/jobs?host=h2&limit=1&lab=listed").json()]
    while pages[-1]["next"]:
        path = f"/v1/jobs?host=h2&limit=1&lab=listed&after={pages[-1]['next']}"
        pages.append(h3.ask("GET", path).json())
    assert [one["items"][0]["kind"] for one in pages] == ["stop", "create"], "cursors are of h2"
    events = h1.ask("GET", "/v1/events?host=h2&limit=500").json()["items"]
    assert job in {one["job"] for one in events}
    assert {one["host_name"] for one in events} == {"h2"}
    after = f"/v1/events?host=h2&after={events[-1]['id']}"
    with h1.client.stream(
        "GET", h1.url + after,
        headers={"Authorization": f"Bearer {h1.token}", "Accept": "text/event-stream"},
    ) as stream:  # fmt: skip
        h2.ask("POST", "/v1/labs/listed/start?wait=30")
        line = next(one for one in stream.iter_lines() if one.startswith("data: "))
    assert '"host_name": "h2"' in line
    for path in ("/v1/jobs", "/v1/events", "/v1/audit"):
        assert h1.ask("GET", f"{path}?host=h1").status_code == 200
        assert h1.ask("GET", f"{path}?host=h9").status_code == 404
        assert h1.ask("GET", f"{path}?host=H1/").status_code == 422
    assert h3.ask("DELETE", "/v1/labs/listed?wait=60").status_code == 204


def test_what_is_passed_on_keeps_its_client(fleet: Fleet) -> None:
    """Protects the audit trail: a client cannot choose its address, nor hide behind a host."""
    h1, h2 = fleet.hosts["h1"], fleet.hosts["h2"]
    up(h1, "watched", on="h2")
    forged = {"X-Lab-Address": "192.0.2.1", "X-Lab-Host": "h3", "X-Lab-Token": "abc"}
    with httpx.Client(transport=httpx.HTTPTransport(local_address="127.0.0.9")) as client:
        for host in (h1, h2):
            sent = {"Authorization": f"Bearer {host.token}", **forged}
            body = {"protected": host is h1}
            answer = client.patch(host.url + "/v1/labs/watched", json=body, headers=sent)
            assert answer.status_code == 200, answer.text
    trail = h1.ask("GET", "/v1/audit?host=h2").json()["items"]
    found = [one for one in trail if one["action"] == "changeLab"]
    assert [(one["address"], one["via"], one["host_name"]) for one in found[:2]] == [
        ("127.0.0.9", "", "h2"), ("127.0.0.9", "h1", "h2")
    ]  # fmt: skip
    assert h1.ask("DELETE", "/v1/labs/watched?wait=60").status_code == 204


def test_the_queue_is_seen_through_any_host(fleet: Fleet, url: str) -> None:
    """Protects who waits: what no host has begun is in no host's list of jobs."""
    h3 = fleet.hosts["h3"]
    assert h3.ask("GET", "/v1/queue").json() == []
    database = FleetDatabase(url)
    try:
        placed, _ = _place(database, fleet, "waits", "h2")
        drain(database, "h2", draining=True)
        # As of one that found no room.
        database.run("UPDATE lab.placements SET state = 'queued', host = NULL, epoch = NULL"
                     " WHERE job = :job AND state = 'placed'", job=placed.job)  # fmt: skip
        database.run("UPDATE lab.labs SET host = '' WHERE job = :job", job=placed.job)
    finally:
        database.close()
    found = h3.ask("GET", "/v1/queue").json()
    assert [(one["id"], one["lab"], one["host_name"]) for one in found] == [
        (placed.job, "waits", "")
    ]
    body = {"name": "else", "scope": "use", "project": "else"}
    other = h3.ask("POST", "/v1/tokens", body).json()["text"]
    assert h3.ask("GET", "/v1/queue", Authorization=f"Bearer {other}").json() == []
    h3.ask("POST", "/v1/hosts/h2/undrain")
    assert until(lambda: h3.ask("GET", "/v1/queue").json() == [], Deadline.after(20))
    done = h3.ask("GET", f"/v1/jobs/{placed.job}?wait=30").json()
    assert (done["state"], done["host_name"]) == ("succeeded", "h2")
    assert h3.ask("DELETE", "/v1/labs/waits?wait=60").status_code == 204


def test_pages_of_other_hosts_are_passed_on(fleet: Fleet) -> None:
    """Protects who looks at labs: those of all hosts have their page at each, with its buttons."""
    h1, h2 = fleet.hosts["h1"], fleet.hosts["h2"]
    made = up(h1, "paged", on="h2")
    assert until(lambda: "paged" in listed(h1), Deadline.after(10))
    secret = made["connection"]["password"]
    with visit_at(h1.url, h1.token) as client:
        listing = client.get("/").text
        assert "<span>on h2</span>" in listing
        assert f'href="{place_of(client)}/labs/paged"' in listing
        page = client.get("/labs/paged").text
        assert "<dt>Host</dt><dd>h2</dd>" in page
        assert secret in page
        assert client.get("/labs/paged/nodes/n1/logs").status_code == 200
        stopped = client.post("/labs/paged/power/stop")
        assert stopped.status_code == 303, stopped.text
        assert stopped.headers["location"] == "/labs/paged"
        (stop,) = h1.ask("GET", "/v1/jobs?host=h2&lab=paged&kind=stop").json()["items"]
        job = f"/jobs/{stop['id']}"
        assert h1.ask("GET", f"/v1{job}?wait=30").json()["state"] == "succeeded"
        shown = client.get(job)
        assert (shown.status_code, "stop paged" in shown.text) == (200, True)
        jobs = client.get("/jobs?host=h2").text
        assert "<h1>Jobs of h2</h1>" in jobs
        assert job in jobs
        assert job not in client.get("/jobs").text
        forged = client.post("/labs/paged/delete", headers={"Sec-Fetch-Site": "cross-site"})
        assert forged.status_code == 403
        form = {
            "name": "typed", "blueprint": "galera", "nodes": "1", "memory": "384M", "host": "@l2"
        }  # fmt: skip
        refused = client.post("/labs", data={**form, "host": "h9"})
        assert refused.status_code == 422
        assert "no host of the fleet has the name h9" in refused.text
        assert '<input id="host" name="host" type="text" value="h9"' in refused.text
        created = client.post("/labs", data={**form, "key": "one"}).headers["location"]
        done = h1.ask("GET", f"/v1{created}?wait=30").json()
        assert (done["state"], done["host_name"]) == ("succeeded", "h3")
        assert "create typed" in client.get(created).text
        assert client.post("/labs/typed/delete").status_code == 303
    trail = h1.ask("GET", "/v1/audit?host=h2").json()["items"]
    (entry,) = [one for one in trail if one["target"] == "/labs/paged/power/stop"]
    assert (entry["via"], entry["action"]) == ("h1", "powerLab")
    assert until(lambda: "typed" not in listed(h1), Deadline.after(20))
    assert h2.ask("DELETE", "/v1/labs/paged?wait=60").status_code == 204


def test_pages_are_passed_on_for_those_who_may_see_them(fleet: Fleet) -> None:
    """Protects labs of other hosts: scopes and projects hold there, only hosts vouch."""
    h1, h2 = fleet.hosts["h1"], fleet.hosts["h2"]
    made = up(h1, "closed", on="h2")
    tokens = {
        scope: h1.ask("POST", "/v1/tokens", {"name": f"to-{scope}", "scope": scope,
                                             "project": project}).json()
        for scope, project in (("read", "admin"), ("use", "else"))
    }  # fmt: skip
    with visit_at(h1.url, tokens["read"]["text"]) as client:
        page = client.get("/labs/closed")
        assert page.status_code == 200, page.text
        assert made["connection"]["password"] not in page.text
        assert client.post("/labs/closed/power/stop").status_code == 403
        assert client.post("/hosts/h2/drain").status_code == 403
        h1.ask("DELETE", f"/v1/tokens/{tokens['read']['token']['id']}")
        assert client.get("/labs/closed").status_code == 303, "revoked: to the sign-in"
    with visit_at(h1.url, tokens["use"]["text"]) as client:
        assert client.get("/labs/closed").status_code == 404
        assert client.post("/labs/closed/delete").status_code == 404
    # What a host says of a session is not believed of others.
    forged = {"X-Lab-Token": _token(h2), "X-Lab-Host": "h1", **OURS}
    path = f"/~{'x' * 22}/labs/closed"
    assert h2.client.get(h2.url + path, headers=forged).status_code == 303
    assert h2.client.post(f"{h2.url}{path}/delete", headers=forged).status_code == 401
    assert h1.client.get(h1.url + path, headers=forged).status_code == 303
    assert h2.ask("DELETE", "/v1/labs/closed?wait=60").status_code == 204


def test_the_page_of_hosts(fleet: Fleet) -> None:
    """Protects who keeps a fleet: what each host has, at a look, and to drain it."""
    h1 = fleet.hosts["h1"]
    up(h1, "mapped", on="h2")
    assert until(lambda: h1.ask("GET", "/v1/hosts/h2").json()["templates"] > 0, Deadline.after(20))
    reader = h1.ask("POST", "/v1/tokens", {"name": "looks", "scope": "read", "project": "ci"})
    with visit_at(h1.url, reader.json()["text"]) as client:
        page = client.get("/hosts").text
        assert "/drain" not in page
        assert h1.ask("GET", "/v1/hosts/h2").json()["datasets"] == []
        own = {"Authorization": f"Bearer {reader.json()['text']}"}
        assert h1.ask("GET", "/v1/hosts/h2", **own).json()["datasets"] is None
    with visit_at(h1.url, h1.token) as client:
        assert f'href="{place_of(client)}/hosts"' in client.get("/").text
        page = client.get("/hosts").text
        for name, label in zip(HOSTS, ("l0", "l1", "l2"), strict=True):
            card = page.split(f'id="host-{name}"')[1].split("</article>")[0]
            assert f"labels: {label}" in card
            for what in ("Memory for labs", "Disk", "Load"):
                assert f'aria-label="{what} of {name}"' in card
            assert ">up<" in card
        assert "No job waits for a host." in page
        row = page.split("galera, mariadb, 2 nodes of 384M")[1].split("</tr>")[0]
        assert row.split("<td>")[2].startswith("yes"), row
        assert client.post("/hosts/h2/drain").headers["location"] == "/hosts"
        assert ">draining<" in client.get("/hosts").text
        assert client.post("/hosts/h2/undrain").status_code == 303
        assert ">draining<" not in client.get("/hosts").text
        assert client.post("/hosts/h9/drain").status_code == 404
    shown = _lab(h1, "host", "show", "h2")
    assert re.search(r"^disk +\S+ of 1T$", shown, re.M), shown
    assert re.search(r"^datasets +-$", shown, re.M), shown
    assert h1.ask("DELETE", "/v1/labs/mapped?wait=60").status_code == 204


def _lab(host: Serving, *words: str) -> str:
    """What a command prints that uses the service of a host."""
    env = {**os.environ, "LAB_URL": host.url, "LAB_TOKEN": host.token}
    argv = [sys.executable, "-m", "lab", *words]
    return subprocess.run(
        argv, env=env, check=True, capture_output=True, text=True, timeout=60
    ).stdout


def test_metrics_of_a_fleet(fleet: Fleet) -> None:
    """Protects who watches a fleet: each host has the figures of all, without asking for them."""
    h1, h2, h3 = (fleet.hosts[name] for name in HOSTS)
    before = _figure(h2, "lab_fleet_claim_seconds_count")
    up(h1, "counted", on="h2")
    assert _figure(h2, "lab_fleet_claim_seconds_count") == before + 1
    assert 0 < _figure(h2, "lab_fleet_claim_seconds_sum") < 600

    def measured() -> bool:
        """Whether h3 measured after that lab was made, not while it was only placed."""
        states = [f'lab_fleet_placements{{state="{state}"}}' for state in ("queued", "placed")]
        waiting = sum(_figure(h3, state) for state in states)
        return _figure(h3, 'lab_fleet_hosts{state="up"}') == len(HOSTS) and not waiting

    assert until(measured, Deadline.after(15))
    for state, number in (("late", 0), ("draining", 0), ("lost", 0)):
        assert _figure(h3, f'lab_fleet_hosts{{state="{state}"}}') == number
    for name in HOSTS:
        age = _figure(h3, f'lab_fleet_heartbeat_age_seconds{{host="{name}"}}')
        assert 0 <= age < 15, name
    free, used = (_figure(h2, f"lab_memory_{one}_bytes") for one in ("free", "used"))
    shown = h1.ask("GET", "/v1/hosts/h2").json()["memory"]
    assert free + used == shown["total"]
    there = exposed(h3.ask("GET", "/metrics").text)
    for expression, legend in expressions():
        if names(expression) <= {one for one in there if one.startswith("lab_fleet_")}:
            shown = set().union(*(there[name] for name in names(expression)))
            assert labels(expression, legend) <= shown | OF_PROMETHEUS, expression
    assert h1.ask("DELETE", "/v1/labs/counted?wait=60").status_code == 204


def test_figures_of_a_fleet_end_with_what_is_known(fleet: Fleet, url: str, tmp_path: Path) -> None:
    """Protects dashboards: a host that hears nothing says nothing, and states are as of now."""
    serve = Serve(database=url, host_name="watcher")
    found = core_fleet.Fleet(Settings(home=Home(tmp_path), owner="tester", serve=serve))
    try:
        assert found.figures(time.monotonic()) is None, "nothing was measured yet"
        found.measure()
        now = time.monotonic()
        figures, later = found.figures(now), found.figures(now + LATE + 1)
        assert figures is not None
        assert later is not None
        assert figures.hosts == {"up": len(fleet.hosts), "late": 0, "draining": 0, "lost": 0}
        assert (later.hosts["up"], later.hosts["late"]) == (0, len(fleet.hosts))
        assert later.ages["h2"] > LATE
        assert found.figures(now + LOST_AFTER + 1) is None
    finally:
        found.close()


def _figure(host: Serving, series: str) -> float:
    """The value of a series; -1 if it is not exposed."""
    lines = host.ask("GET", "/metrics").text.splitlines()
    found = [one for one in lines if one.startswith(f"{series} ")]
    return float(found[0].split()[-1]) if found else -1.0


def _raw(host: Serving, path: str) -> int:
    """The status of a GET, whose path is sent as it is written."""
    connection = HTTPConnection(host.url.removeprefix("http://"), timeout=30)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {host.token}"})
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.parametrize("state", ["placed", "claimed"])
def test_what_is_not_signalled_is_found(fleet: Fleet, url: str, state: str) -> None:
    """Protects jobs where neither NOTIFY nor a call arrives: the poll is the net below both.

    And those of a host that was killed after it had claimed them.
    """
    database = FleetDatabase(url)
    try:
        placed, host = _place(database, fleet, "silent", "h3")
        # As of a host that ended before it recorded the job.
        database.run("UPDATE lab.placements SET state = :s WHERE job = :j", s=state, j=placed.job)
    finally:
        database.close()
    assert host is not None
    began = time.monotonic()

    def begun() -> bool:
        answer = fleet.hosts["h2"].ask("GET", f"/v1/jobs/{placed.job}")
        assert answer.status_code == 200, answer.text
        return bool(answer.json()["state"] != "queued")

    assert until(begun, Deadline.after(20), most=0.1)
    assert time.monotonic() - began < 6 + 3, "a poll each 5 s, on a busy machine"
    done = fleet.hosts["h1"].ask("GET", f"/v1/jobs/{placed.job}?wait=30").json()
    assert done["state"] == "succeeded", done
    assert fleet.hosts["h1"].ask("DELETE", "/v1/labs/silent?wait=60").status_code == 204


def _place(
    database: FleetDatabase, fleet: Fleet, lab: str, host: str
) -> tuple[Placement, Host | None]:
    """Place a lab on a host, which is not notified."""
    wanted = Placement(
        job=str(uuid.uuid4()), kind="create", lab=lab, project="admin",
        token=_token(fleet.hosts["h1"]), key=None, digest="d",
        request={"blueprint": "single", "memory": 768 << 20}, needs=Needs(768 << 20, host),
    )  # fmt: skip
    return placements.place(database, wanted, "single", queue=1)


def _token(host: Serving) -> str:
    (token, *_) = host.ask("GET", "/v1/tokens").json()["items"]
    return str(token["id"])


def test_a_host_is_lost_and_comes_back(fleet: Fleet, url: str) -> None:
    """Protects labs of a host that was away: neither duplicated, nor removed unasked."""
    h1 = fleet.hosts["h1"]
    up(h1, "kept", on="h2")
    up(h1, "taken", on="h2")
    wanted = {"kept": ("h2", "ready"), "taken": ("h2", "ready")}
    assert until(partial(_lists, h1, wanted), Deadline.after(10)), listed(h1)
    fleet.kill("h2")
    database = FleetDatabase(url)
    database.run("UPDATE lab.heartbeats SET at = now() - interval '1 hour' WHERE host = 'h2'")
    database.close()
    # Once the others' own heartbeats have come through for long enough.
    assert until(lambda: _state(h1, "h2") == "lost", Deadline.after(60))
    lost = {"kept@h2": ("h2", "lost"), "taken@h2": ("h2", "lost")}
    assert until(partial(_lists, h1, lost), Deadline.after(10)), listed(h1)
    assert h1.ask("GET", "/v1/labs/kept").status_code == 404
    assert h1.ask("GET", "/v1/labs/kept@h2").status_code == 503
    assert up(h1, "taken", on="h3")["host_name"] == "h3"
    fleet.start("h2")
    back = {
        "kept@h2": ("h2", "foreign"), "taken@h2": ("h2", "foreign"), "taken": ("h3", "ready"),
    }  # fmt: skip
    assert until(partial(_lists, h1, back), Deadline.after(15)), listed(h1)
    found = h1.ask("GET", "/v1/labs/taken@h2")
    assert (found.status_code, found.json()["host_name"]) == (200, "h2"), found.text
    h2 = fleet.hosts["h2"]
    assert listed(h2) == back, "its own API says the same"
    assert h2.ask("GET", "/v1/labs/taken").json()["host_name"] == "h3"
    for word in ("GET", "DELETE"):
        assert h2.ask(word, "/v1/labs/kept").status_code == 404, "nobody holds the name"
    refused = h1.ask("POST", "/v1/labs/taken@h2/adopt")
    assert refused.status_code == 409, refused.text
    adopted = h1.ask("POST", "/v1/labs/kept@h2/adopt")
    assert adopted.status_code == 200, adopted.text
    assert h1.ask("DELETE", "/v1/labs/taken@h2?wait=60").status_code == 204
    now = {"kept": ("h2", "ready"), "taken": ("h3", "ready")}
    for host in (h1, h2):
        assert until(partial(_lists, host, now), Deadline.after(15)), listed(host)
    for name in now:
        assert h1.ask("DELETE", f"/v1/labs/{name}?wait=60").status_code == 204


def _state(host: Serving, name: str) -> str:
    return str(host.ask("GET", f"/v1/hosts/{name}").json()["state"])


def test_the_database_is_away(fleet: Fleet, database: Postgres) -> None:
    """Protects what runs and its callers: an answer soon, and work once it is back."""
    h1 = fleet.hosts["h1"]
    up(h1, "own", on="h1")
    up(h1, "other", on="h2")
    assert until(lambda: set(listed(h1)) == {"own", "other"}, Deadline.after(10))
    every = 'lab_fleet_hosts{state="up"}'
    assert until(lambda: _figure(h1, every) == len(HOSTS), Deadline.after(15)), "measured each 5 s"
    database.stop()
    try:
        assert h1.ask("GET", "/v1/labs/own").status_code == 200
        assert h1.ask("POST", "/v1/labs/own/stop?wait=30").status_code == 200
        assert set(listed(h1)) == {"own", "other"}, "as known last"
        for ask in (("POST", "/v1/labs", {**BODY, "name": "more"}), ("GET", "/v1/labs/other")):
            began = time.monotonic()
            answer = h1.ask(*ask)
            assert answer.status_code == 503, answer.text
            assert float(answer.headers["retry-after"]) > 0
            assert time.monotonic() - began < 4
        began = time.monotonic()
        assert _figure(h1, 'lab_fleet_hosts{state="up"}') == len(HOSTS), "as measured last"
        assert time.monotonic() - began < 1, "no scrape waits for the database"
        time.sleep(3)
    finally:
        database.start()
    began = time.monotonic()
    made = until(lambda: _tried(h1, "more"), Deadline.after(20))
    assert made
    assert time.monotonic() - began < 10
    for name in ("own", "other", "more"):
        assert h1.ask("DELETE", f"/v1/labs/{name}?wait=60").status_code == 204


def _tried(host: Serving, name: str) -> bool:
    """Request a lab; whether its job has succeeded, also where its host could only be notified."""
    answer = host.ask("POST", "/v1/labs?wait=30", {**BODY, "name": name})
    if answer.status_code != 202:
        return answer.status_code == 201
    job = answer.json()["id"]
    return bool(host.ask("GET", f"/v1/jobs/{job}?wait=30").json()["state"] == "succeeded")


@pytest.mark.rare
@pytest.mark.skipif(programs() is None, reason=NEEDED)
def test_another_server_takes_over(tmp_path: Path) -> None:
    """Protects jobs from a fail-over: with a synchronous standby none is lost, or run twice."""
    with postgres() as primary, standby_of(primary) as standby:
        migrate(primary.url)
        database = FleetDatabase(primary.url)
        database.run("ALTER SYSTEM SET synchronous_standby_names = '*'")
        database.run("SELECT pg_reload_conf()")
        database.close()
        found = Fleet(tmp_path, standby.url)
        try:
            for name in HOSTS:
                found.start(name)
            _fail_over(found, primary, standby)
        finally:
            found.close()


def _fail_over(fleet: Fleet, primary: Postgres, standby: Postgres) -> None:
    h1 = fleet.hosts["h1"]
    jobs: dict[str, str] = {}
    ends = threading.Event()

    def request() -> None:
        while not ends.is_set():
            name = f"lab-{len(jobs)}"
            answer = h1.ask("POST", "/v1/labs", {**BODY, "name": name})
            if answer.status_code == 202:
                jobs[name] = answer.json()["id"]
            ends.wait(0.3)

    thread = threading.Thread(target=request)
    thread.start()
    try:
        assert until(lambda: len(jobs) > 5, Deadline.after(30))
        primary.stop()
        time.sleep(1.0)
        standby.promote()
        database = FleetDatabase(standby.url)
        database.run("ALTER SYSTEM RESET synchronous_standby_names")  # it has no standby itself
        database.run("SELECT pg_reload_conf()")
        database.close()
        began, before = time.monotonic(), len(jobs)
        assert until(lambda: len(jobs) > before + 3, Deadline.after(30))
        assert time.monotonic() - began < 10
    finally:
        ends.set()
        thread.join(30)
    for name, job in jobs.items():
        done = h1.ask("GET", f"/v1/jobs/{job}?wait=60").json()
        assert (done["state"], done["lab"]) == ("succeeded", name), done
    assert until(lambda: set(listed(h1)) == set(jobs), Deadline.after(20)), listed(h1)
    guests = [lab["nodes"] for lab in h1.ask("GET", "/v1/labs?limit=500").json()["items"]]
    assert len(guests) == len(jobs)


def test_streams_end_with_their_clients(fleet: Fleet) -> None:
    """Protects a host from streams that other hosts keep open for clients that have left."""
    h1 = fleet.hosts["h1"]
    for _ in range(80):  # a token has 64 at most
        answer = h1.client.stream(
            "GET", f"{h1.url}/v1/events", params={"host": "h2"}, timeout=20,
            headers={"Authorization": f"Bearer {h1.token}", "Accept": "text/event-stream"},
        )  # fmt: skip
        with answer as stream:
            assert stream.status_code == 200, stream.read()
            assert next(stream.iter_raw())

"""The web page: what its forms do, how it shows errors, and what may be in it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields
from html import unescape
from pathlib import Path

import pytest

from lab.api.events.eventlog import topic
from lab.api.web import pages
from lab.api.web.events import lines
from lab.config.servefile import Serve
from lab.names import EVERYWHERE
from lab.options import Options
from lab.state.records import EventRecord
from lab.units import parse_time
from tests import ROOT
from tests.support.page_visit import OURS, place_of, visit
from tests.support.serve_world import Site, site

WEB = ROOT / "api" / "web"
FORM = {"blueprint": "galera", "nodes": "2", "memory": "384M", "ttl": "30m", "name": "",
        "engine": "", "profile": "balanced", "cpus": "1", "disk": "", "idle": ""}  # fmt: skip


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site(tmp_path_factory.mktemp("serve")) as found:
        yield found


def test_the_way_of_a_lab(here: Site) -> None:
    """Protects the straight line: made, looked at, changed, stopped, started, removed."""
    with visit(here) as client:
        assert "There are no labs." in client.get("/").text
        made = client.post("/labs", data={**FORM, "name": "shop", "key": "k1"})
        assert made.status_code == 303
        # Sent twice, as by a second click: the same job.
        again = client.post("/labs", data={**FORM, "name": "shop", "key": "k1"})
        job = made.headers["location"]
        assert again.headers["location"] == job
        assert here.ask("GET", f"/v1{job}?wait=30").json()["state"] == "succeeded"
        page = client.get(job).text
        assert f'href="{place_of(client)}/labs/shop"' in page
        assert "personalise" in page
        lab = here.ask("GET", "/v1/labs/shop").json()
        page = unescape(client.get("/labs/shop").text)
        for text in (lab["connection"]["dsn"], lab["connection"]["password"], "127.0.0.1:"):
            assert text in page
        assert client.post("/labs/shop/change", data={"ttl": "3h"}).status_code == 303
        later = parse_time(here.ask("GET", "/v1/labs/shop").json()["expires_at"])
        assert later > parse_time(lab["expires_at"]) + 9000
        assert client.post("/labs/shop/change", data={"protected": "yes"}).status_code == 303
        refused = client.post("/labs/shop/delete")
        assert refused.status_code == 409
        assert "the lab shop is protected" in refused.text
        assert client.post("/labs/shop/nodes/n2/power/kill").headers["location"] == "/labs/shop"
        done = here.ask("GET", "/v1/jobs?kind=stop").json()["items"][0]["id"]
        here.ask("GET", f"/v1/jobs/{done}?wait=20")
        assert "not-primary" in client.get("/").text
        assert "its log" not in client.get("/labs/shop/nodes/n1/logs").text
        gone = client.post("/labs/shop/delete", data={"force": "yes"}).headers["location"]
        assert here.ask("GET", f"/v1{gone}?wait=20").json()["state"] == "succeeded"
        assert "The lab is removed." in client.get(gone).text
        assert client.get("/labs/shop").status_code == 404
    trail = here.ask("GET", "/v1/audit").json()["items"]
    assert {"signIn", "createLab", "changeLab", "deleteLab"} <= {one["action"] for one in trail}


def test_errors_stand_beside_what_was_typed(here: Site) -> None:
    """Protects users who mistyped: errors are marked and named, and input is kept."""
    with visit(here) as client:
        typed = {**FORM, "name": "Bad Name", "nodes": "99", "ttl": "soon"}
        answer = client.post("/labs", data=typed)
        page = unescape(answer.text)
        assert answer.status_code == 422
        assert 'value="Bad Name"' in page
        assert page.count('aria-invalid="true"') == 3
        assert "ttl: 'soon' is not a duration; write durations like 30m" in page
        assert "Hint: correct the marked fields" in page
        assert f'data-at="{place_of(client)}/"' in page  # where it continues
        long = client.post("/labs", data={**FORM, "ttl": "30d"})
        assert (long.status_code, "a lease is limited to" in long.text) == (429, True)
        here.make("taken")
        taken = client.post("/labs", data={**FORM, "name": "taken"})
        assert (taken.status_code, "lab taken exists already" in taken.text) == (409, True)
        wrong = client.post("/labs/taken/change", data={"ttl": "never"})
        assert (wrong.status_code, 'value="never"' in wrong.text) == (422, True)
        for path in ("/labs/absent", "/jobs/00", "/labs/UPPER"):
            answer = client.get(path)
            assert answer.status_code == 404
            assert answer.headers["content-type"].startswith("text/html")
        many = "&".join(f"f{number}=x" for number in range(60))
        assert client.post("/labs", content=many).status_code == 422


def test_what_comes_from_outside_is_text(here: Site) -> None:
    """Protects who looks: log lines, errors and steps are never read as HTML."""
    evil = "<script>alert(1)</script><img src=x onerror=alert(1)>"
    lab = here.make("evil")
    here.service.core.store.events.add(f"job:{lab['job']}", "note", "note", evil)
    problem = {**pages_problem(), "detail": evil, "hint": evil, "details": [evil]}
    here.service.core.store.jobs.update(lab["job"], state="failed", error=problem)
    log = here.service.core.settings.home.console_log
    with visit(here) as client, here.service.core.contexts.use() as ctx:
        guest = ctx.store.lab_with_nodes("evil").nodes[0].guest
        path = log(guest)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{evil}\n\x1b[31mred\n")
        for where in (f"/jobs/{lab['job']}", "/", "/labs/evil/nodes/n1/logs?source=console",
                      f"/jobs?after={lab['job']}{evil}"):  # fmt: skip
            page = client.get(where).text
            assert "<script>alert" not in page, where
            assert "<img" not in page, where
        assert "&lt;script&gt;" in client.get(f"/jobs/{lab['job']}").text
        assert "&lt;script&gt;" in client.get("/labs/evil/nodes/n1/logs?source=console").text
        typed = client.post("/labs", data={**FORM, "name": '"><script>alert(1)</script>'}).text
        assert "<script>alert" not in typed


def pages_problem() -> dict[str, object]:
    return {"type": "urn:lab:error:x", "title": "X", "status": 500, "details": [], "hint": ""}


def test_pages_run_nothing_but_our_own(here: Site) -> None:
    """Protects from what slips through: a policy without exceptions, and templates that fit it."""
    with visit(here) as client:
        for path in ("/", "/jobs", "/sign-in", "/labs/absent"):
            headers = client.get(path).headers
            policy = dict(
                part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";")
            )
            assert policy["default-src"] == policy["frame-ancestors"] == "'none'"
            assert policy["script-src"] == policy["style-src"] == "'self'"
            assert "unsafe" not in headers["content-security-policy"]
            assert headers.get_list("referrer-policy") == ["same-origin"]
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["cache-control"] == "no-store"
    for name, (_, kind) in pages.FILES.items():
        answer = here.client.get(f"/page/{name}", headers=OURS)
        assert answer.headers["content-type"].startswith(kind)
        assert "immutable" in answer.headers["cache-control"]
    assert here.client.get("/page/..%2Flabs.py").status_code == 404
    for template in (WEB / "templates").iterdir():
        text = template.read_text()
        assert not re.search(r"<script(?! src=)|<style|\sstyle=|\son\w+=|://|\|\s*safe", text), (
            template.name
        )


def test_steps_are_lines() -> None:
    """Protects progress: each step once, with its end, in the order of its beginning."""
    reported = [("job", "begin"), ("image", "begin"), ("build", "begin"), ("undo", "note"),
            ("build", "end"), ("image", "fail"), ("clone", "begin"), ("job", "fail")]  # fmt: skip
    events = [
        EventRecord(number, 0.0, "job:j", step, state, "", 1.0)
        for number, (step, state) in enumerate(reported)
    ]
    assert [(one.step, one.state, one.seconds) for one in lines(events)] == [
        ("image", "failed", 1.0),
        ("build", "done", 1.0),
        ("undo", "note", None),
        ("clone", "interrupted", None),
    ]
    again = [("job", "begin"), ("form", "begin"), ("job", "begin"), ("form", "begin")]
    events = [
        EventRecord(number, 0.0, "job:j", step, state, "", 1.0)
        for number, (step, state) in enumerate(again)
    ]
    assert [one.state for one in lines(events)] == ["interrupted", "running"]
    assert [one.state for one in lines(events, ended=True)] == ["interrupted", "interrupted"]


def test_a_job_with_many_steps_shows_the_last_ones(here: Site) -> None:
    """Protects the page of a long job: what it does now is there, and none runs once it ended."""
    here.make("steps")
    (job,) = here.service.core.store.jobs.latest(lab="steps")
    events = here.service.core.store.events
    with visit(here) as client:
        assert "earlier steps" not in client.get(f"/jobs/{job.id}").text
        for number in range(500):
            events.add(topic(job.id), "form", "note", f"number {number}", 0.0)
        events.add(topic(job.id), "image", "begin", "endless", 0.0)
        here.service.core.store.jobs.update(job.id, state="running", ended_at=None)
        page = client.get(f"/jobs/{job.id}").text
        assert "earlier steps" in page
        assert f"GET /v1/jobs/{job.id}/events has all" in page
        assert "number 499" in page
        assert "number 0<" not in page
        assert '<li class="running">' in page
        here.service.core.store.jobs.update(job.id, state="succeeded", ended_at=job.ended_at)
        page = client.get(f"/jobs/{job.id}").text
    assert '<li class="interrupted">' in page
    assert '<li class="running">' not in page
    here.ask("DELETE", "/v1/labs/steps?wait=20")


def test_the_options_of_a_lab_are_those_of_the_command_line(here: Site) -> None:
    """Protects who has the page alone: each option is there and used, and refused where wrong."""
    given = {
        "option_topology": "star", "option_semi_sync": "yes", "option_delay": "1h",
        "option_on": "n3", "option_set": "max_connections=50\nsort_buffer_size=1M",
        "option_proxy": "none", "option_replicas": "",
    }  # fmt: skip
    form = {**FORM, "blueprint": "replication", "nodes": "3", "name": "optioned", **given}
    with visit(here) as client:
        page = client.get("/").text
        known = {field.name for field in fields(Options)} - {"my_cnf", "user"}
        assert known == set(re.findall(r'name="option_(\w+)"', page))
        assert "such as 1h; of replication</small>" in page
        wrong = client.post("/labs", data={**form, "option_delay": "1"})
        assert wrong.status_code == 422
        assert 'value="1"\n' in wrong.text
        assert wrong.text.count('aria-invalid="true"') == 1
        other = client.post("/labs", data={**form, "blueprint": "galera"})
        assert (other.status_code, "does not have the option" in other.text) == (422, True)
        assert "max_connections=50\nsort_buffer_size=1M</textarea>" in other.text
        job = client.post("/labs", data=form).headers["location"]
        assert here.ask("GET", f"/v1{job}?wait=30").json()["state"] == "succeeded"
    asked = {"semi_sync": True, "delay": 3600.0, "on": ["n3"],
             "set": ["max_connections=50", "sort_buffer_size=1M"]}  # fmt: skip
    assert here.ask("GET", "/v1/labs/optioned").json()["options"] == asked
    here.ask("DELETE", "/v1/labs/optioned?wait=20")


def test_a_node_is_promoted_and_what_it_lacks_is_said(here: Site) -> None:
    """Protects who has the page alone: it promotes as the command line does, and says why not."""
    late = {"delay": 3600.0, "on": ["n3"]}
    here.make("turn", blueprint="replication", nodes=3, options=late)
    here.make("equal")
    with visit(here) as client:
        page = client.get("/labs/turn").text
        assert "/labs/turn/nodes/n2/promote" in page
        assert "/labs/turn/nodes/n1/promote" not in page, "it takes writes"
        assert "/labs/turn/nodes/n3/promote" not in page, "it is late on purpose"
        assert "/promote" not in client.get("/labs/equal").text, "all take writes"
        assert client.post("/labs/turn/nodes/n2/promote").headers["location"] == "/labs/turn"
        (job,) = here.ask("GET", "/v1/jobs?kind=promote").json()["items"]
        done = here.ask("GET", f"/v1/jobs/{job['id']}?wait=30").json()
        assert done["state"] == "succeeded", done
        here.ask("POST", "/v1/labs/equal/nodes/n2/kill?wait=20")
        found = here.ask("GET", "/v1/labs/equal").json()["nodes"][0]["unmet"]
        assert found
        page = unescape(client.get("/labs/equal").text)
        for one in found:
            assert f"required: {one['what']}; found: {one['found']}" in page
    for name in ("turn", "equal"):
        here.ask("DELETE", f"/v1/labs/{name}?wait=20")


def test_jobs_have_what_tells_them_apart(here: Site) -> None:
    """Protects who looks for a job: duration, project and owner are there, and a filter."""
    here.make("mine")
    here.make("other")
    store = here.service.core.store
    store.labs.update("mine", owner="eva")
    (job,) = store.jobs.latest(lab="mine")
    (other,) = store.jobs.latest(lab="other")
    with visit(here) as client:
        page = client.get("/jobs?lab=mine&kind=create&state=").text
        assert f"/jobs/{job.id}" in page
        assert f"/jobs/{other.id}" not in page
        assert f"took {(job.ended_at or 0) - job.created_at:.1f} s" in page
        assert "admin, eva" in page
        assert "<option selected>create</option>" in page
        assert f'data-at="{place_of(client)}/jobs?lab=mine&amp;kind=create&amp;state="' in page
        assert "There are no such jobs." in client.get("/jobs?state=failed&lab=mine").text
        assert client.get("/jobs?state=odd").status_code == 404
    for name in ("mine", "other"):
        here.ask("DELETE", f"/v1/labs/{name}?wait=20")


def luminance(colour: str) -> float:
    """Of ``#rrggbb``, as WCAG 2 defines it."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_colours_can_be_told_apart(scheme: int) -> None:
    """Protects who sees little: WCAG 2 AA, 4.5 for text and 3 for borders, in both schemes."""
    roots = re.findall(r":root \{(.*?)\}", (WEB / "static" / "page.css").read_text(), re.S)
    colour = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", roots[scheme]))
    for text in ("text", "faint", "link", "good", "wait", "bad"):
        for back in ("back", "card"):
            assert contrast(colour[text], colour[back]) >= 4.5, (text, back)
    for text, back in (("on-button", "button"), ("on-danger", "danger"), ("text", "problem")):
        assert contrast(colour[text], colour[back]) >= 4.5, (text, back)
    assert min(contrast(colour["line"], colour[back]) for back in ("back", "card")) >= 3


def test_the_page_is_there_unless_it_is_turned_off() -> None:
    """Protects the default."""
    assert Serve().page


# The last: one service at a time in a process.
def test_servers_elsewhere_are_checked(tmp_path: Path) -> None:
    """Protects who connects from elsewhere: what to check servers with comes with the strings."""
    with site(tmp_path, publish=EVERYWHERE) as here, visit(here) as client:
        here.make("far", idle=1200)
        page = unescape(client.get("/labs/far").text)
        assert "mariadb --ssl-ca=lab-ca.pem --ssl-verify-server-cert -h localhost -P " in page
        assert "20m" in page
        found = client.get("/host/ca")
        assert found.text.startswith("-----BEGIN CERTIFICATE-----")
        assert found.headers["content-disposition"] == 'attachment; filename="lab-ca.pem"'

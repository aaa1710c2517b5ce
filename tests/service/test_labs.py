"""Labs through the service, on the fakes: what is asked for is what is there."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from lab.api.jobs.submit import service_job
from lab.api.service import Service
from lab.errors import Busy
from lab.requests.labs import StopLab
from lab.state.service import Scope
from lab.units import parse_time
from lab.wait import Deadline, until
from tests.support.serve_world import BODY, MEMORY, Site, settings_of, site, timeless


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site(tmp_path_factory.mktemp("serve")) as found:
        yield found


def test_a_lab_is_made_shown_and_removed(here: Site) -> None:
    """Protects the straight line, at once and as a job."""
    answer = here.ask("POST", "/v1/labs", {**BODY, "name": "line"})
    assert answer.status_code == 202
    job = answer.json()
    assert answer.headers["location"] == f"/v1/jobs/{job['id']}"
    done = here.ask("GET", f"/v1/jobs/{job['id']}?wait=30").json()
    assert (done["state"], done["lab"], done["error"]) == ("succeeded", "line", None)

    lab = here.ask("GET", "/v1/labs/line").json()
    assert lab["state"] == "ready"
    assert lab["connection"]["dsn"].startswith("mysql://lab:")
    assert 3500 < parse_time(lab["expires_at"]) - time.time() <= 3600  # the default lease
    assert "line" in [one["name"] for one in here.ask("GET", "/v1/labs").json()["items"]]

    assert here.ask("DELETE", "/v1/labs/line?wait=30").status_code == 204
    assert here.ask("GET", "/v1/labs/line").status_code == 404


def test_a_lab_that_is_ready_in_time_is_the_answer(here: Site) -> None:
    """Protects scripts with one request: Prefer, Location, ETag, and the same lab as the CLI's."""
    answer = here.ask("POST", "/v1/labs", {**BODY, "name": "prefer"}, Prefer="wait=30")
    assert answer.status_code == 201
    assert answer.headers["location"] == "/v1/labs/prefer"
    got = here.ask("GET", "/v1/labs/prefer")
    assert timeless(got.json()) == timeless(answer.json())
    assert got.headers["etag"] == answer.headers["etag"]


def test_nodes_run_several_series(here: Site) -> None:
    """Protects callers that rehearse an upgrade; what cannot be is refused before a job is made."""
    asked = {**BODY, "name": "half", "options": {"node": ["n2=mariadb:10.11"]}}
    assert here.ask("POST", "/v1/labs?wait=60", asked).status_code == 201
    found = here.ask("GET", "/v1/labs/half").json()
    assert found["options"] == {"node": ["n2=mariadb:10.11"]}
    assert [node["engine_version"] for node in found["nodes"]] == ["11.8.6", "10.11.6"]
    for node, text in (("n9=mariadb", "no node with a server"), ("n2=mysql", "cannot run on")):
        answer = here.ask("POST", "/v1/labs", {**asked, "name": "no", "options": {"node": [node]}})
        assert (answer.status_code, text in answer.text) == (422, True)
    here.ask("DELETE", "/v1/labs/half?wait=20")


def test_a_lab_is_waited_for(here: Site) -> None:
    """Protects those who did not ask for it: they need no job to know when it is made."""
    job = here.ask("POST", "/v1/labs", {**BODY, "name": "waited"}).json()["id"]
    while here.ask("GET", "/v1/labs/waited").status_code == 404:
        assert here.ask("GET", f"/v1/jobs/{job}").json()["error"] is None
    assert here.ask("GET", "/v1/labs/waited?wait=30").json()["state"] == "ready"


def test_one_key_is_one_job(here: Site) -> None:
    """Protects those whose connection broke: a retried request makes no second lab."""
    with ThreadPoolExecutor(8) as pool:
        answers = list(
            pool.map(lambda _: here.ask("POST", "/v1/labs", BODY, Idempotency_Key="k-1"), range(8))
        )
    # A lab that is ready by the time of the retry is the answer.
    jobs = {answer.json()["job" if answer.status_code == 201 else "id"] for answer in answers}
    assert len(jobs) == 1
    other = here.ask("POST", "/v1/labs", {**BODY, "nodes": 3}, Idempotency_Key="k-1")
    assert other.status_code == 422
    assert other.json()["type"] == "urn:lab:error:key-reused"
    job = jobs.pop()
    assert here.ask("GET", f"/v1/jobs/{job}?wait=30").json()["state"] == "succeeded"
    after = here.ask("POST", "/v1/labs?wait=10", BODY, Idempotency_Key="k-1")
    assert (after.status_code, after.json()["job"]) == (201, job)


def test_answers_do_not_wait_for_each_other(here: Site) -> None:
    """Protects from 40 ms for every request on a kept connection (Nagle and delayed ACKs)."""
    times = []
    for _ in range(15):
        began = time.monotonic()
        assert here.ask("GET", "/healthz").status_code == 200
        times.append(time.monotonic() - began)
    assert sorted(times)[3] < 0.03


def test_errors_are_problems(here: Site) -> None:
    """Protects clients: every refusal has the same form, with a hint and without secrets."""
    here.make("taken")
    for answer, status, kind in (
        (here.ask("POST", "/v1/labs", {**BODY, "name": "taken"}), 409, "conflict"),
        (here.ask("POST", "/v1/labs", {"blueprint": "nope"}), 422, "invalid-spec"),
        (here.ask("POST", "/v1/labs", {**BODY, "nodes": 99}), 422, "invalid-spec"),
        (here.ask("GET", "/v1/labs/absent"), 404, "not-found"),
        (here.ask("GET", "/nowhere"), 404, "not-found"),
        (here.ask("PUT", "/v1/labs"), 405, "method-not-allowed"),
        (here.ask("POST", "/v1/labs", {**BODY, "ttl": 1e7}), 429, "limit-reached"),
    ):
        assert answer.status_code == status, answer.text
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["type"] == f"urn:lab:error:{kind}"
        assert answer.json()["request_id"] == answer.headers["x-request-id"]


def test_lists_are_filtered_and_come_in_parts(here: Site) -> None:
    """Protects lists from being cut or doubled at a page's end."""
    for name in ("part-a", "part-b", "part-c"):
        here.make(name)
    here.ask("POST", "/v1/labs/part-b/stop?wait=20")
    found, after = [], ""
    while True:
        page = here.ask("GET", f"/v1/labs?limit=2&after={after}").json()
        found += [one["name"] for one in page["items"]]
        if page["next"] is None:
            break
        after = page["next"]
    assert found == sorted(set(found))
    assert {"part-a", "part-b", "part-c"} <= set(found)
    stopped = here.ask("GET", "/v1/labs?state=stopped").json()["items"]
    assert [one["name"] for one in stopped] == ["part-b"]
    jobs, after = [], ""
    while True:
        page = here.ask("GET", f"/v1/jobs?limit=3&after={after}").json()
        jobs += [one["id"] for one in page["items"]]
        if page["next"] is None:
            break
        after = page["next"]
    assert len(jobs) == len(set(jobs)) >= 4
    assert here.ask("GET", "/v1/jobs?kind=stop").json()["items"][0]["lab"] == "part-b"


def test_a_change_tells_of_what_it_changes(here: Site) -> None:
    """Protects two people who change one lab: the second gets 412."""
    here.make("change")
    tag = here.ask("GET", "/v1/labs/change").headers["etag"]
    changed = here.ask("PATCH", "/v1/labs/change", {"protected": True, "ttl": 7200}, If_Match=tag)
    assert (changed.status_code, changed.json()["protected"]) == (200, True)
    assert parse_time(changed.json()["expires_at"]) > time.time() + 7000
    late = here.ask("PATCH", "/v1/labs/change", {"protected": False}, If_Match=tag)
    assert late.status_code == 412
    assert here.ask("DELETE", "/v1/labs/change", If_Match=tag).status_code == 412

    refused = here.ask("DELETE", "/v1/labs/change")
    assert (refused.status_code, refused.json()["type"]) == (409, "urn:lab:error:conflict")
    assert here.ask("DELETE", "/v1/labs/change?force=true&wait=20").status_code == 204


def test_leases_end(here: Site) -> None:
    """Protects the host: a lab goes when its time is over, unless it was given more."""
    here.make("short")
    here.make("long")
    here.make("alive", heartbeat=90)
    store = here.service.core.store
    at = time.time() + 3
    store.labs.update("alive", expires_at=at)
    beat = here.ask("POST", "/v1/labs/alive/heartbeat").json()
    assert parse_time(beat["expires_at"]) > at + 60
    store.labs.update("short", expires_at=at)
    here.until_gone("short")
    for name in ("long", "alive"):
        answer = here.ask("GET", f"/v1/labs/{name}").json()
        assert answer.get("state") == "ready", answer
    refused = here.ask("POST", "/v1/labs/long/heartbeat")
    assert refused.status_code == 409

    def ended() -> bool:  # the lab is gone a moment before its job has ended
        expired = here.ask("GET", "/v1/jobs?kind=expire").json()["items"]
        return [(job["lab"], job["state"]) for job in expired] == [("short", "succeeded")]

    assert until(ended, Deadline.after(20))


def test_nodes_stop_start_and_are_looked_into(here: Site) -> None:
    """Protects tests of failover: nodes are stopped and started one by one."""
    here.make("nodes")
    assert here.ask("POST", "/v1/labs/nodes/nodes/n2/kill?wait=20").status_code == 200
    assert here.ask("GET", "/v1/labs/nodes").json()["state"] == "not-primary"
    assert here.ask("GET", "/v1/labs/nodes/nodes/n2").json()["state"] == "stopped"
    assert here.ask("POST", "/v1/labs/nodes/nodes/n2/start?wait=20").status_code == 200
    assert here.ask("POST", "/v1/labs/nodes/restart?wait=20").status_code == 200
    assert here.ask("GET", "/v1/labs/nodes").json()["state"] == "ready"
    assert here.ask("POST", "/v1/labs/nodes/nodes/n7/stop").status_code == 404
    failed = here.ask("POST", "/v1/labs/nodes/nodes/n1/exec", {"argv": ["no-such-program"]})
    assert (failed.status_code, failed.json()["title"]) == (422, "Command failed")


def test_every_step_is_an_event_and_can_be_gone_on_with(here: Site) -> None:
    """Protects progress: nothing is lost when a client comes back, nothing is sent twice."""
    lab = here.make("steps")
    path = f"/v1/jobs/{lab['job']}/events"
    reported = here.stream(path)
    steps = [(one["step"], one["state"]) for one in reported]
    assert steps[0] == ("job", "begin")
    assert steps[-1] == ("job", "end")
    assert {"preflight", "clone", "restore", "personalise", "ready"} <= {step for step, _ in steps}
    rest = here.stream(path, Last_Event_ID=str(reported[4]["id"]))
    assert rest == reported[5:]
    assert here.ask("GET", f"{path}?limit=500").json()["items"] == reported
    password = lab["connection"]["password"]
    assert password not in here.ask("GET", f"{path}?limit=500").text


def test_a_job_is_cancelled_and_undone(here: Site) -> None:
    """Protects those who changed their mind: nothing is left of the lab."""
    job = here.ask("POST", "/v1/labs", {**BODY, "name": "never", "nodes": 9}).json()["id"]
    assert here.ask("POST", f"/v1/jobs/{job}/cancel").status_code == 202
    ended = here.ask("GET", f"/v1/jobs/{job}?wait=30").json()
    assert ended["state"] in ("cancelled", "succeeded")  # it may have been too late
    if ended["state"] == "cancelled":
        assert here.ask("GET", "/v1/labs/never").status_code == 404


def test_quotas_hold_whatever_comes_at_once(here: Site) -> None:
    """Protects projects from each other: labs that are being made count."""
    token = here.token("small", project="quota", labs=2, nodes=5, memory=6 * MEMORY, ttl=600)
    with ThreadPoolExecutor(6) as pool:
        answers = list(
            pool.map(lambda _: here.ask("POST", "/v1/labs", BODY, token=token), range(6))
        )
    codes = sorted(answer.status_code for answer in answers)
    assert codes == [202, 202, 429, 429, 429, 429]
    refused = next(answer for answer in answers if answer.status_code == 429).json()
    assert (
        refused["detail"]
        == "the project quota is limited to 2 labs, and would have 3 with this lab"
    )
    long = here.ask("POST", "/v1/labs", {**BODY, "ttl": 3600}, token=token)
    assert long.status_code == 429


def test_the_host_and_who_did_what(here: Site) -> None:
    """Protects operators: figures, images, templates, and a trail of what was changed."""
    here.make("audited")
    host = here.ask("GET", "/v1/host").json()
    assert host["memory"]["used"] >= 2 * MEMORY
    image = here.ask("GET", "/v1/images").json()[0]
    assert here.ask("GET", f"/v1/images/{image['key']}").json() == image
    template = here.ask("GET", "/v1/templates").json()[0]
    assert here.ask("GET", f"/v1/templates/{template['key']}").json() == template
    entry = here.ask("GET", "/v1/audit?limit=1").json()["items"][0]
    assert (entry["action"], entry["target"], entry["status"]) == ("createLab", "/v1/labs", 201)


@pytest.mark.parametrize("scope", ["read", "use", "admin"])
def test_the_list_that_programs_poll_is_the_same_as_any(here: Site, scope: Scope) -> None:
    """Protects labs and passwords: what is answered without routing has the same rules."""
    here.make(f"polled-{scope}")
    token = here.token("ci", scope=scope, project="admin")
    here.ask("GET", "/v1/labs?limit=100", token=token)  # observed, and the token is known
    here.ask("GET", "/v1/audit")
    plain = here.ask("GET", "/v1/labs", token=token)
    routed = here.ask("GET", "/v1/labs?limit=100", token=token)
    own = ("x-request-id", "date")
    assert plain.json()["items"]
    both = [answer.json() for answer in (plain, routed)]
    first, second = ({**page, "items": [timeless(lab) for lab in page["items"]]} for page in both)
    assert first == second
    assert (plain.status_code, "password" in plain.text) == (200, scope != "read")
    assert {k: v for k, v in plain.headers.items() if k not in own} == {
        k: v for k, v in routed.headers.items() if k not in own
    }


def test_labs_of_commands_are_seen_by_admins_only(here: Site) -> None:
    """Protects what people make on the same host with `lab up`."""
    from tests.support.lifecycle_world import World, make_lab

    with World(here.service.core.settings.home.root).open() as ctx:
        make_lab(ctx)
    assert here.ask("GET", "/v1/labs/shop").json()["project"] == ""
    assert here.ask("GET", "/v1/labs/shop", token=here.token("other")).status_code == 404
    assert here.ask("DELETE", "/v1/labs/shop?wait=20").status_code == 204


def test_requests_wait_for_room_in_order(here: Site) -> None:
    """Protects the host from more than it has: who comes first is served first, with figures."""
    admission, store = here.service.core.admission, here.service.core.store
    # What tests before removed may still be going, and would make room.
    assert until(lambda: not store.jobs.open(), Deadline.after(60))
    used = admission.used().memory
    here.change(memory=used + 2 * MEMORY)
    try:
        first = here.make("room-1")
        waiting = [
            here.ask("POST", "/v1/labs", {**BODY, "name": f"room-{n}"}).json()["id"] for n in (2, 3)
        ]
        assert here.ask("GET", f"/v1/jobs/{waiting[0]}?wait=1").json()["state"] == "queued"
        never = here.ask("POST", "/v1/labs", {**BODY, "nodes": 9, "memory": 1 << 40})
        assert (never.status_code, never.headers.get("retry-after")) == (429, None)
        assert "9T of memory" in never.json()["detail"]
        here.change(queue=2)
        full = here.ask("POST", "/v1/labs", BODY)
        assert (full.status_code, full.headers["retry-after"]) == (429, "30")
        here.ask("DELETE", f"/v1/labs/{first['name']}?wait=20")
        assert here.ask("GET", f"/v1/jobs/{waiting[0]}?wait=20").json()["state"] == "succeeded"
        assert here.ask("GET", f"/v1/jobs/{waiting[1]}").json()["state"] == "queued"
        here.ask("POST", f"/v1/jobs/{waiting[1]}/cancel")
        assert here.ask("GET", f"/v1/jobs/{waiting[1]}?wait=20").json()["state"] == "cancelled"
    finally:
        here.change(memory=0, queue=100)


def test_a_job_that_was_not_begun_is_begun(here: Site) -> None:
    """Protects the promise of 202 from a moment in which jobs could not be begun."""
    store = here.service.core.store
    here.make("begun")
    job = replace(
        service_job(StopLab(lab="begun"), project="admin"),
        id="0b9a", created_at=time.time() - 60,
    )  # fmt: skip
    store.jobs.add(job)
    assert here.ask("GET", "/v1/jobs/0b9a?wait=20").json()["state"] == "succeeded"
    assert here.ask("GET", "/v1/labs/begun").json()["state"] == "stopped"


def test_a_home_has_one_service(here: Site) -> None:
    """Protects jobs from being done twice at the same time."""
    other = Service(settings_of(here.service.core.settings.home.root))
    try:
        with pytest.raises(Busy):
            other.open()
    finally:
        other.core.store.close()
        other.core.events.close()


def test_what_is_old_is_forgotten(here: Site) -> None:
    """Protects the disk: jobs that ended, their events and the trail go, open jobs stay."""
    store = here.service.core.store
    assert store.jobs.latest()
    here.settled()  # the lab that missed its heartbeats may be being removed
    now = time.time()
    here.service.sweeper.prune(now + 1)
    assert store.jobs.latest() == []
    assert len(store.events.latest()) == 1  # the last: who listens waits for larger ids
    assert store.audit.latest() == []

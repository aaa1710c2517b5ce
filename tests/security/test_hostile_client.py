"""Who can connect to the service, and who has a token of it, against everybody else.

The service is the real one, on the fake hypervisor; those who attack it have sockets of their own.
"""

from __future__ import annotations

import gc
import json
import resource
import socket
import ssl
import struct
import time
from asyncio.sslproto import SSLProtocol
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from uvicorn.protocols.http.h11_impl import H11Protocol

from lab.api.http import middleware
from lab.api.http.sessions import COOKIE
from lab.api.jobs.submit import new_job
from lab.api.jobs.work import WORK
from lab.api.wire.connections import Peer, QuietConnections
from lab.run import run
from lab.state.service import JobKind, JobRecord
from tests.support.answering import answering
from tests.support.page_visit import OURS, visit
from tests.support.serve_world import BODY, MEMORY, Site, site

CONNECTIONS = 400
LATE = 5.0
"""Seconds within which every other client is answered, under any attack."""


@pytest.fixture(scope="module", autouse=True)
def files() -> None:
    """Both ends of all connections are in this process."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4096 if most == resource.RLIM_INFINITY else min(most, 4096)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site(tmp_path_factory.mktemp("hostile"), failed_auth=5, token_jobs=4) as found:
        yield found


def until(what: Callable[[], object], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end
        time.sleep(0.02)


def connected(here: Site, said: bytes = b"", *, stack: ExitStack) -> socket.socket:
    """A new connection on which ``said`` was sent."""
    url = here.client.base_url
    found = stack.enter_context(socket.create_connection((url.host, url.port or 0), timeout=LATE))
    found.sendall(said)
    return found


def head(method: str, path: str, token: str = "", length: int = 0) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: x", f"Content-Length: {length}"]
    lines += ["Content-Type: application/json"] if length else []
    lines += [f"Authorization: Bearer {token}"] if token else []
    return "".join(f"{line}\r\n" for line in [*lines, ""]).encode()


def closed(connection: socket.socket) -> bool:
    """Whether the other end has closed it; what it said before is passed over."""
    connection.setblocking(False)
    try:
        while connection.recv(65536):
            pass
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def stands(peer: Peer, quiet: QuietConnections) -> bool:
    """Whether a connection is quiet for longer than between two answers."""
    end = time.monotonic() + 0.5
    while peer in quiet and time.monotonic() < end:
        time.sleep(0.01)
    return peer in quiet


def served(here: Site) -> None:
    """Everybody else is answered, and soon; who has a token may keep the connection."""
    url = here.client.base_url
    with httpx.Client(base_url=url, timeout=LATE) as watcher:
        assert watcher.get("/healthz").text == "ok\n"
    sent = {"Authorization": f"Bearer {here.admin}"}
    with httpx.Client(base_url=url, timeout=LATE, headers=sent) as other:
        for _ in range(2):
            assert other.get("/v1/jobs").status_code == 200


@pytest.mark.parametrize(
    "said",
    [b"", b"GET /healthz HTTP/1.1\r\n", head("POST", "/sign-in", length=9000) + b"token=",
     b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"],
    ids=["silent", "slow-head", "slow-form", "kept-alive"],
)  # fmt: skip
def test_idle_connections_shut_nobody_out(here: Site, said: bytes) -> None:
    """Protects the service from whoever can connect: the oldest that say nothing are closed."""
    with ExitStack() as stack:
        attacker = [connected(here, said, stack=stack) for _ in range(CONNECTIONS)]
        if said.endswith(b"\r\n\r\n"):  # they are idle once they are answered
            for one in attacker:
                with suppress(ConnectionError):
                    one.recv(1)
        served(here)
        until(lambda: sum(map(closed, attacker)) >= CONNECTIONS - 256)
        served(here)
        assert not closed(attacker[-1])


def test_who_does_not_read_answers_is_closed_too(here: Site) -> None:
    """Protects the number of requests that are answered from those who never take the answers."""
    url = here.client.base_url
    with ExitStack() as stack:
        stalled = stack.enter_context(socket.socket())
        stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stalled.connect((url.host, url.port))
        stalled.sendall(b"GET /page/page.css HTTP/1.1\r\nHost: x\r\n\r\n" * 1000)
        strangers, peer = here.connections.strangers, stalled.getsockname()
        until(partial(stands, peer, strangers), 20.0)
        for _ in range(CONNECTIONS):
            connected(here, stack=stack)
        until(lambda: peer not in strangers)
        served(here)


def alive(kind: type) -> int:
    """How many objects of a class there are in this process, garbage among them."""
    return sum(issubclass(type(one), kind) for one in gc.get_objects())


def test_connections_that_are_cut_leave_nothing(here: Site) -> None:
    """Protects memory: with TLS each has a buffer of a quarter of a megabyte."""
    gc.collect()
    before = alive(H11Protocol)
    for _ in range(50):
        with ExitStack() as stack:
            one = connected(here, head("GET", "/healthz"), stack=stack)
            assert one.recv(12) == b"HTTP/1.1 200"
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def gone() -> bool:
        gc.collect()
        return alive(H11Protocol) <= before

    until(gone, LATE)


def test_who_has_asked_is_answered_however_many_ask_at_once(here: Site) -> None:
    """Protects those behind one proxy: no connection is closed whose request has arrived."""
    asked = head("GET", "/v1/jobs", here.admin) + b"\r\n"
    with ExitStack() as stack:
        many = [connected(here, asked, stack=stack) for _ in range(CONNECTIONS)]
        for one in many:
            one.settimeout(30)
            assert one.recv(12) in (b"HTTP/1.1 200", b"HTTP/1.1 429")


def test_who_has_most_connections_loses_them() -> None:
    """Protects slow clients elsewhere from one address, or one network of IPv6, with very many."""
    shut: list[str] = []
    quiet = QuietConnections(3)
    quiet.add(("192.0.2.1", 1), lambda: shut.append("slow"))
    for port in range(9):
        quiet.add((f"2001:db8::{port}", port), lambda: shut.append("flood"))
    assert (shut, len(quiet)) == (["flood"] * 7, 3)
    quiet.remove(("192.0.2.1", 1))
    quiet.remove(("192.0.2.1", 1))
    assert len(quiet) == 2


def test_nothing_is_read_without_a_token(here: Site) -> None:
    """Protects memory: a megabyte is not taken from anybody who can connect."""
    for token in ("", "wrong"):
        with ExitStack() as stack:
            sender = connected(here, head("POST", "/v1/labs", token, 1 << 20), stack=stack)
            answer = sender.recv(65536)
            assert b" 401 " in answer
            assert b"connection: close" in answer.lower()
            until(partial(closed, sender))


def test_a_long_form_is_refused(here: Site) -> None:
    """Protects memory: who signs in sends a token, and nothing that is longer."""
    with ExitStack() as stack:
        sender = connected(here, head("POST", "/sign-in", length=1 << 18), stack=stack)
        assert b" 413 " in sender.recv(65536)


@pytest.fixture
def stuck(here: Site) -> Iterator[dict[str, Any]]:
    """A job that waits for room."""
    here.change(memory=here.service.core.admission.used().memory + MEMORY)
    job = here.ask("POST", "/v1/labs", {**BODY, "nodes": 1, "name": "fits"}).json()
    assert here.ask("GET", f"/v1/jobs/{job['id']}?wait=20").json()["state"] == "succeeded"
    found = here.ask("POST", "/v1/labs", {**BODY, "nodes": 1, "name": "waits"}).json()
    try:
        yield found
    finally:
        here.ask("POST", f"/v1/jobs/{found['id']}/cancel")
        assert here.ask("GET", f"/v1/jobs/{found['id']}?wait=20").json()["state"] == "cancelled"
        assert here.ask("DELETE", "/v1/labs/fits?wait=20").status_code == 204
        here.change(memory=0)


def test_waits_are_limited_and_end_with_their_client(here: Site, stuck: dict[str, Any]) -> None:
    """Protects everybody from a token that only looks: it waits so often, and while it is there."""
    waits, path = here.service.core.limits.waits, f"/v1/jobs/{stuck['id']}?wait=10m"
    reader = here.token("reader", scope="read", project="admin")
    with ExitStack() as stack:
        attacker = [
            connected(here, head("GET", path, reader), stack=stack) for _ in range(waits.per_token)
        ]
        until(lambda: waits.used() == waits.per_token)
        began = time.monotonic()
        assert here.ask("GET", path, token=reader).json()["state"] == "queued"  # at once
        assert here.ask("GET", "/v1/labs/fits?wait=600", token=reader).status_code == 200
        assert time.monotonic() - began < LATE
        began = time.monotonic()
        assert here.ask("GET", f"/v1/jobs/{stuck['id']}?wait=1s").json()["state"] == "queued"
        assert time.monotonic() - began >= 1.0  # others may still wait
        served(here)
        assert not any(map(closed, attacker))
    until(lambda: waits.used() == 0, LATE)
    until(lambda: here.service.core.limits.requests.used() == 0, LATE)


@pytest.mark.parametrize("ahead", [1, 3 << 18], ids=["a-byte", "much"])
def test_who_sends_more_and_leaves_keeps_no_wait(
    here: Site, stuck: dict[str, Any], ahead: int
) -> None:
    """Protects waits from clients that are gone, and sent more than the request before."""
    with ExitStack() as stack:
        sent = head("GET", f"/v1/jobs/{stuck['id']}?wait=10m", here.admin)
        left = connected(here, sent, stack=stack)
        until(lambda: here.service.core.limits.waits.used() == 1)
        with suppress(ConnectionError):  # more is not taken
            left.sendall(b"G" * ahead)
    until(lambda: here.service.core.limits.waits.used() == 0, LATE)


def test_requests_that_are_sent_ahead_are_answered(here: Site, stuck: dict[str, Any]) -> None:
    """Protects clients that send the next request before the first is answered (pipelining)."""
    with ExitStack() as stack:
        first = head("GET", f"/v1/jobs/{stuck['id']}?wait=1", here.admin)
        then = head("GET", "/healthz")
        sender = connected(here, first + then, stack=stack)
        until(lambda: here.service.core.limits.waits.used() == 1)
        sender.sendall(then)
        answers = b""
        while answers.count(b"HTTP/1.1 200") < 3 or not answers.endswith(b"ok\n"):
            answers += (came := sender.recv(65536))
            assert came, answers


def test_a_client_that_leaves_while_its_lab_is_made(here: Site, stuck: dict[str, Any]) -> None:
    """Protects the service from requests whose clients are gone, bodies or not."""
    body = json.dumps({**BODY, "nodes": 1, "name": "unheard"}).encode()
    with ExitStack() as stack:
        sent = head("POST", "/v1/labs?wait=600", here.admin, len(body)) + body
        connected(here, sent, stack=stack)
        until(lambda: here.service.core.limits.waits.used() == 1)
    until(lambda: here.service.core.limits.waits.used() == 0, LATE)
    late = here.ask("GET", "/v1/jobs?kind=create&state=queued").json()["items"][0]
    assert late["id"] != stuck["id"]
    here.ask("POST", f"/v1/jobs/{late['id']}/cancel")
    assert here.ask("GET", f"/v1/jobs/{late['id']}?wait=20").json()["state"] == "cancelled"


def test_health_is_answered_when_all_slots_are_taken(
    here: Site, stuck: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects from a watcher that restarts a busy service; other requests get Retry-After."""
    monkeypatch.setattr(middleware, "_MOST", 2)
    with ExitStack() as stack:
        for _ in range(2):
            sent = head("GET", f"/v1/jobs/{stuck['id']}?wait=600", here.admin)
            connected(here, sent, stack=stack)
        until(lambda: here.service.core.limits.waits.used() == 2)
        refused = here.ask("GET", "/v1/host")
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "30")
        assert refused.json()["type"] == "urn:lab:error:overloaded"
        assert here.client.get("/healthz").status_code == 200
    until(lambda: here.ask("GET", "/v1/host").status_code == 200)


def test_requests_of_a_token_are_limited(here: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects the others' requests: one token cannot have all that are answered at a time."""
    monkeypatch.setattr(here.service.core.limits.requests, "per_token", 0)
    refused = here.ask("GET", "/v1/host")
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "10")


def test_requests_of_a_session_count_as_those_of_its_token(
    here: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects the others' requests from a token that signs in: its pages have no other limit."""
    requests = here.service.core.limits.requests
    with visit(here) as client:
        with client.stream("GET", "/live"):
            until(lambda: requests.used() == 1)
            monkeypatch.setattr(requests, "per_token", 1)
            assert here.ask("GET", "/v1/host").status_code == 429
            refused = client.get("/jobs")
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "10")
        until(lambda: requests.used() == 0)
        assert client.get("/jobs").status_code == 200
        monkeypatch.setattr(requests, "per_token", 0)
        assert client.get("/jobs").status_code == 429
        assert here.client.get("/sign-in").status_code == 200  # nobody's


def test_wrong_tokens_do_not_shut_out_right_ones(here: Site) -> None:
    """Protects those behind one address from each other; who tries tokens is in the audit trail."""
    wrong = {"Authorization": f"Bearer {here.admin[:-4]}AAAA"}
    statuses = [here.client.get("/v1/labs", headers=wrong).status_code for _ in range(8)]
    assert statuses[-3:] == [429] * 3
    assert set(statuses) == {401, 429}
    assert here.ask("GET", "/v1/labs").status_code == 200
    answer = here.client.post("/sign-in", data={"token": here.admin}, headers=OURS)
    assert answer.status_code == 303
    trail = here.ask("GET", "/v1/audit?limit=500").json()["items"]
    noted = [one for one in trail if one["action"] == "wrongToken"]
    assert 0 < len(noted) <= 5
    assert {one["status"] for one in noted} == {401}
    assert here.admin.split("_", 2)[2][:-4] not in json.dumps(trail)


def test_reading_secrets_is_noted_once_in_a_while(here: Site) -> None:
    """Protects those who look into the audit trail after a token was lost: what it has seen."""
    here.make("secret", nodes=1)
    token, reader = here.token("noted", project="admin"), here.token("r", scope="read")
    for _ in range(3):
        assert here.ask("GET", "/v1/labs/secret", token=token).status_code == 200
        assert here.ask("GET", "/v1/labs/secret/nodes/n1/ssh", token=token).status_code == 200
        assert here.ask("GET", "/v1/labs", token=reader).status_code == 200
        assert here.ask("GET", "/v1/labs", token=token).status_code == 200
    trail = here.ask("GET", "/v1/audit?limit=500").json()["items"]
    owner, other = token.split("_")[1], reader.split("_")[1]
    noted = sorted(one["action"] for one in trail if one["token"] == owner)
    assert noted == ["getLab", "getSsh", "listLabs"]
    assert not [one for one in trail if one["token"] == other]
    here.ask("DELETE", "/v1/labs/secret?wait=20")


def test_jobs_are_limited(here: Site, stuck: dict[str, Any]) -> None:
    """Protects threads and the queue: one job works on a lab, and a token has so many."""
    assert stuck["state"] == "queued"
    token = here.token("many", project="many")
    small = {**BODY, "nodes": 1}
    jobs = [here.ask("POST", "/v1/labs", small, token=token).json()["id"] for _ in range(4)]
    refused = here.ask("POST", "/v1/labs", small, token=token)
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "10")
    assert "4 jobs" in refused.json()["detail"]
    for job in jobs:
        here.ask("POST", f"/v1/jobs/{job}/cancel", token=token)
        here.ask("GET", f"/v1/jobs/{job}?wait=20", token=token)
    here.change(memory=1)  # no room to start again
    assert here.ask("POST", "/v1/labs/fits/stop?wait=20").status_code == 200
    started = here.ask("POST", "/v1/labs/fits/start").json()["id"]
    for path in ("start", "stop", "kill", "nodes/n1/restart", "snapshots", "rollback"):
        body: dict[str, Any] | None = {} if path in ("snapshots", "rollback") else None
        again = here.ask("POST", f"/v1/labs/fits/{path}", body)
        assert again.status_code == 409, path
        assert started in again.json()["detail"]
    here.ask("POST", f"/v1/jobs/{started}/cancel")
    assert here.ask("GET", f"/v1/jobs/{started}?wait=20").json()["state"] == "cancelled"


def test_the_session_goes_to_no_other_port(here: Site) -> None:
    """Protects sessions from nodes: their ports have the page's host, and cookies know no ports."""
    host = str(here.client.base_url)
    with (
        httpx.Client(headers=OURS, timeout=LATE) as browser,
        answering((200, "text/html", b"a node's")) as (node, heard),
    ):
        signed = browser.post(f"{host}/sign-in", data={"token": here.admin})
        place = signed.headers["location"].rstrip("/")
        cookie = browser.cookies[COOKIE]
        assert browser.get(f"{host}{place}/").status_code == 200
        for path in ("/", "/sign-in", "/labs/shop", "/~", "/page/page.js"):
            browser.get(f"{node}{path}")
        assert len(heard) == 5
        assert not [one for one in heard if "Cookie" in one]
        # The cookie alone, or with a guess, does not open the page either.
        with httpx.Client(headers={**OURS, "Cookie": f"{COOKIE}={cookie}"}) as thief:
            for at in ("", f"/~{'A' * 22}"):
                assert thief.get(f"{host}{at}/").status_code == 303
        page = browser.get(f"{host}{place}/")
        assert page.headers["referrer-policy"] == "same-origin"
        log = here.ask("GET", "/v1/audit?limit=500").text
        assert place not in log


def test_cookies_of_others_end_no_session(here: Site) -> None:
    """Protects who is signed in from a lab's port, which can set cookies for all ports."""
    with visit(here) as client:
        own = client.cookies[COOKIE]
        for sent in (f"{COOKIE}=x; {COOKIE}={own}", f"{COOKIE}={own}; {COOKIE}=x"):
            with httpx.Client(base_url=client.base_url, headers={"Cookie": sent}) as other:
                assert other.get("/jobs").status_code == 200


def test_only_pages_have_places(here: Site) -> None:
    """Protects what a proxy in front refuses: other paths have one address each."""
    place = "/~" + "A" * 22
    for path in ("/healthz", "/readyz", "/metrics", "/v1/jobs", "/openapi.json"):
        assert here.ask("GET", place + path).status_code == 404


def test_jobs_of_others_stay_when_a_lab_goes(here: Site) -> None:
    """Protects a project whose request waits from one that removes a lab of the same name."""
    here.change(memory=here.service.core.admission.used().memory + 2 * MEMORY)
    ours, theirs = (here.token(f"same-{n}", project=f"same-{n}") for n in (1, 2))
    body = {**BODY, "name": "same", "nodes": 1}
    try:
        here.make("blocker", nodes=1)
        waiting = here.ask("POST", "/v1/labs", {**body, "nodes": 2}, token=theirs)
        assert waiting.status_code == 202, waiting.text
        assert here.ask("POST", "/v1/labs?wait=20", body, token=ours).status_code == 201
        assert here.ask("DELETE", "/v1/labs/same?wait=20", token=ours).status_code == 204
        job = f"/v1/jobs/{waiting.json()['id']}"
        assert here.ask("GET", job, token=theirs).json()["state"] == "queued"
        here.ask("DELETE", "/v1/labs/blocker?wait=20")
        assert here.ask("GET", f"{job}?wait=20", token=theirs).json()["state"] == "succeeded"
        here.ask("DELETE", "/v1/labs/same?wait=20", token=theirs)
    finally:
        here.change(memory=0)


def test_quotas_count_all_that_a_project_takes(here: Site) -> None:
    """Protects the host's disk and processors, and the time that templates take of it."""

    def refused(token: str, body: dict[str, Any]) -> str:
        answer = here.ask("POST", "/v1/labs?wait=20", {**BODY, "nodes": 2, **body}, token=token)
        assert answer.status_code == 429, answer.text
        assert answer.json()["hint"]
        return str(answer.json()["detail"])

    small = {**BODY, "nodes": 1}
    token = here.token("cpus", project="cpus", cpus=3)
    assert refused(token, {"cpus": 2}) == (
        "the project cpus is limited to 3 processors, and would have 4 with this lab"
    )
    token = here.token("disk", project="disk", disk=60 << 30, snapshots=2)
    assert "60G of disk" in refused(token, {"disk": "31G"})
    made = here.ask("POST", "/v1/labs?wait=20", {**small, "disk": "10G", "name": "d"}, token=token)
    assert made.status_code == 201, made.text
    assert "limited to 2 snapshots" in refused(
        token, {"snapshots": "hourly:3", "nodes": 1, "disk": "8G"}
    )
    take = "/v1/labs/d/snapshots?wait=20"
    assert [
        here.ask("POST", take, {"name": name}, token=token).status_code for name in ("a", "b", "c")
    ] == [201, 201, 429]
    assert "60G of disk" in refused(token, {"disk": "16G"})
    token = here.token("shapes", project="shapes", templates=2)
    for memory, status in (("401M", 201), ("402M", 201), ("403M", 429), ("401M", 201)):
        body = {**small, "memory": memory}
        answer = here.ask("POST", "/v1/labs?wait=20", body, token=token)
        assert answer.status_code == status, answer.text
        made = answer.json()["name"] if memory == "402M" else made
    here.ask("DELETE", f"/v1/labs/{made}?wait=20")
    body = {**small, "memory": "403M"}
    assert here.ask("POST", "/v1/labs?wait=20", body, token=token).status_code == 201
    for lab in here.ask("GET", "/v1/labs").json()["items"]:
        here.ask("DELETE", f"/v1/labs/{lab['name']}?wait=20")


def test_quotas_count_what_is_being_made(here: Site) -> None:
    """Protects the host's disk from requests side by side, each lab with disks of its own size."""
    token = here.token("coming", project="coming", disk=60 << 30)
    store = here.service.core.store
    record, jobs = next(one for one in store.tokens.all() if one.name == "coming"), store.jobs
    for name, disk in (("small", "8G"), ("large", "20G")):
        here.make(name, nodes=1, disk=disk, token=token)

    def open_(kind: JobKind, asked: dict[str, Any]) -> JobRecord:
        request = msgspec.convert(asked, WORK[kind].request)
        jobs.add(job := new_job(record, request))  # it is not begun
        return job

    def take() -> tuple[int, str]:
        answer = here.ask("POST", "/v1/labs/small/snapshots?wait=20", {}, token=token)
        return answer.status_code, answer.json().get("detail", "")

    assert take()[0] == 201
    snapshot = open_("snapshot", {"lab": "large"})
    assert take() == (
        429, "the project coming is limited to 60G of disk, and would have 64G with this snapshot"
    )  # fmt: skip
    body = {**BODY, "nodes": 1, "disk": "5G"}
    refused = here.ask("POST", "/v1/labs", body, token=token)
    assert (refused.status_code, "would have 61G" in refused.json()["detail"]) == (429, True)
    jobs.remove_all([snapshot.id])
    create = open_("create", {"blueprint": "galera", "nodes": 1, "disk": 17 << 30})
    assert "would have 61G" in take()[1]
    jobs.remove_all([create.id])
    assert take()[0] == 201
    for name in ("small", "large"):
        assert here.ask("DELETE", f"/v1/labs/{name}?wait=20", token=token).status_code == 204


def test_errors_tell_no_names_of_others(here: Site) -> None:
    """Protects what other projects call their labs: a mistyped name is not corrected to theirs."""
    here.make("payroll", nodes=1, token=here.token("theirs", project="theirs"))
    token = here.token("curious", project="curious")
    job = here.ask("POST", "/v1/labs?wait=20", {**BODY, "nodes": 1, "name": "payrol"}, token=token)
    with here.service.core.contexts.use() as ctx:
        for find in (ctx.store.labs.get, here.service.core.store.labs.get):
            with pytest.raises(Exception, match=r"there is no lab .payrole.") as caught:
                find("payrole")
            assert "payroll" not in caught.value.hint  # type: ignore[attr-defined]
    assert job.status_code == 201
    for name in ("payroll", "payrol"):
        here.ask("DELETE", f"/v1/labs/{name}?wait=20")


def test_times_durations_and_sizes(here: Site) -> None:
    """Protects scripts: one way to write each, and numbers as before."""
    body = {**BODY, "name": "units", "nodes": 1, "memory": "384M", "ttl": "30m", "idle": "1h"}
    lab = here.ask("POST", "/v1/labs?wait=1m", body).json()
    assert (lab["memory"], lab["idle"]) == (MEMORY, 3600.0)
    for name in ("created_at", "expires_at"):
        assert lab[name].endswith("Z")
        assert lab[name][10] == "T"
    changed = here.ask("PATCH", "/v1/labs/units", {"ttl": 600, "idle": "2h"}).json()
    assert changed["idle"] == 7200.0
    assert changed["expires_at"] < lab["expires_at"]
    for field, wrong in (("ttl", "1y"), ("ttl", "5s"), ("memory", "1X"), ("memory", "1M")):
        answer = here.ask("POST", "/v1/labs", {**body, field: wrong})
        assert answer.status_code == 422
        assert field in answer.text
    here.ask("DELETE", "/v1/labs/units?wait=20")


# From here on with services of their own: the one above is over, as a process has one at a time.
@pytest.mark.rare
def test_connections_that_begin_no_tls_are_closed_too(tmp_path: Path) -> None:
    """Protects the service where it has TLS: before that is agreed there is no request to count."""
    cert, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
         "-nodes", "-keyout", str(key), "-out", str(cert), "-days", "2",
         "-subj", "/CN=x", "-addext", "subjectAltName=IP:127.0.0.1"], timeout=30)  # fmt: skip
    trust = ssl.create_default_context(cafile=cert)
    with ExitStack() as stack:
        found = stack.enter_context(site(tmp_path / "home", tls_cert=str(cert), tls_key=str(key)))
        attacker = [connected(found, stack=stack) for _ in range(CONNECTIONS)]
        with httpx.Client(base_url=found.client.base_url, verify=trust, timeout=LATE) as other:
            answer = other.get("/healthz")
            # It would hold for the ports of labs too, so it takes a setting.
            found.change(hsts=True)
            strict = other.get("/healthz").headers["strict-transport-security"]
        assert answer.text == "ok\n"
        assert "strict-transport-security" not in answer.headers
        assert strict.startswith("max-age=")
        until(lambda: sum(map(closed, attacker)) >= CONNECTIONS - 256)
        gc.disable()  # Python collects by the number of objects: megabytes are few
        stack.callback(gc.enable)
        for _ in range(2 * CONNECTIONS):
            connected(found, stack=stack).close()
        until(lambda: alive(SSLProtocol) <= CONNECTIONS)


@pytest.mark.rare
@pytest.mark.parametrize(("count", "last"), [(40, b""), (9, b"Connection: close\r\n")],
                         ids=["stalled", "closing"])  # fmt: skip
def test_answers_that_are_never_read_end(tmp_path: Path, count: int, last: bytes) -> None:
    """Protects memory and files from clients that leave answers unread, one of which closes.

    The answers are more than the sockets take: by more than the server buffers, or by less.
    """
    asked = head("GET", "/page/page.css")
    with site(tmp_path, request_timeout=3.0) as here, socket.socket() as stalled:
        here.listening.setsockopt(
            socket.SOL_SOCKET, socket.SO_SNDBUF, 4096
        )  # accepted ones as well
        stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stalled.connect((here.client.base_url.host, here.client.base_url.port))
        stalled.sendall(asked * (count - 1) + asked[:-2] + last + b"\r\n")
        peer, strangers = stalled.getsockname(), here.connections.strangers
        until(partial(stands, peer, strangers), 20.0)
        until(lambda: peer not in strangers, 20.0)
        until(partial(closed, stalled))


@pytest.mark.rare
def test_a_large_request_does_not_block_small_ones(tmp_path: Path) -> None:
    """Protects others from a request that finds no room for long; and it gets its turn as well."""
    turn = 8.0  # seconds: a busy machine must come to each step in its turn
    with site(tmp_path, memory=3 * MEMORY, queue_timeout=4 * turn) as here:
        here.make("there", nodes=2)
        began = time.monotonic()
        large = here.ask("POST", "/v1/labs", {**BODY, "nodes": 3, "name": "large"}).json()["id"]
        until(lambda: here.service.core.admission.waiting == 1)
        here.make("small", nodes=1)  # it passes
        here.ask("DELETE", "/v1/labs/small?wait=20")
        # In the second turn the large one keeps what becomes free.
        time.sleep(max(0.0, began + turn + 0.5 - time.monotonic()))
        late = here.ask("POST", "/v1/labs", {**BODY, "nodes": 1, "name": "late"}).json()["id"]
        assert here.ask("GET", f"/v1/jobs/{late}?wait=1").json()["state"] == "queued"
        here.ask("DELETE", "/v1/labs/there?wait=20")
        assert here.ask("GET", f"/v1/jobs/{large}?wait=20").json()["state"] == "succeeded"
        here.ask("POST", f"/v1/jobs/{late}/cancel")

"""The web page, route by route: who may see what, and what is refused."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.routing import APIRoute
from httpx import Response

from lab.api import web
from lab.api.http.sessions import COOKIE, LASTS, Sessions
from lab.api.web.request import SessionCaller
from lab.lifecycle.service import token as tokens
from tests.support.mixed import register
from tests.support.page_visit import OURS, PLACE, place_of, visit
from tests.support.serve_world import Site, site

OPEN = {"signInPage", "signIn", "signOut", "pageFile"}
"""What answers without a session."""


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site(tmp_path_factory.mktemp("serve")) as found:
        yield found


@pytest.fixture(scope="module")
def theirs(here: Site) -> dict[str, str]:
    """What another project has, as it stands in paths."""
    lab = here.make("theirs", token=here.token("theirs", project="theirs"))
    here.ask("POST", "/v1/labs/theirs/snapshots?wait=20", {"name": "kept"})
    label = here.ask("GET", "/v1/labs/theirs/snapshots").json()[-1]["label"]
    key = here.ask("GET", "/v1/templates").json()[0]["key"]
    return {"name": "theirs", "node": "n1", "action": "stop", "job": lab["job"],
            "file": "page.js", "label": label, "key": key}  # fmt: skip


def routes() -> list[tuple[str, APIRoute]]:
    found = [one for router in web.ROUTERS for one in router.routes if isinstance(one, APIRoute)]
    return [(method, one) for one in found for method in sorted(one.methods or ())]


def scope_of(route: APIRoute) -> str:
    found = [d.call for d in route.dependant.dependencies if isinstance(d.call, SessionCaller)]
    return found[0].scope if found else ""


def test_no_page_is_shown_without_a_session(here: Site, theirs: dict[str, str]) -> None:
    """Protects everything: no, wrong, ended, expired and revoked sessions open nothing."""
    with visit(here, here.token("revoked", scope="admin")) as client:
        revoked = place_of(client), client.cookies[COOKIE]
        tokens.revoke(here.service.core.store, "revoked")
    with visit(here) as client:
        ended = place_of(client), client.cookies[COOKIE]
        assert client.post("/sign-out").headers["location"] == "/sign-in"
    with visit(here, here.token("brief", scope="admin", lasts=1.0)) as client:
        expired = place_of(client), client.cookies[COOKIE]
        time.sleep(1.0)
    with visit(here) as client:
        place, valid = place_of(client), client.cookies[COOKIE]
    elsewhere = f"/~{'x' * 22}"
    assert len(routes()) > 12
    for method, route in routes():
        assert not route.include_in_schema
        where = route.path.format(**theirs)
        if route.operation_id in OPEN:
            assert here.client.request(method, where, headers=OURS).status_code < 404
            continue
        assert scope_of(route) in ("read", "use", "admin"), where
        for at, cookie in (
            *(("", one) for one in ("", "x", valid, here.admin)),
            *((place, one) for one in ("", "x", revoked[1])),
            (elsewhere, valid),
            *(revoked, ended, expired),
        ):
            headers = {**OURS, "Cookie": f"{COOKIE}={cookie}"}
            answer = here.client.request(method, at + where, headers=headers)
            if method == "GET":
                assert answer.status_code == 303, where
                assert answer.headers["location"].startswith(f"{at}/sign-in")
            else:
                assert answer.status_code == 401, where


def test_a_token_that_may_look_can_only_look(here: Site, theirs: dict[str, str]) -> None:
    """Protects from tokens that were given for looking: by what is shown, and by what is taken."""
    password = here.ask("GET", "/v1/labs/theirs").json()["connection"]["password"]
    with visit(here, here.token("reader", scope="read", project="theirs")) as client:
        for method, route in routes():
            if scope_of(route) and route.operation_id != "live":  # a stream, which does not end
                answer = client.request(method, route.path.format(**theirs), headers=OURS)
                wanted = 200 if scope_of(route) == "read" else 403
                wanted = 404 if route.path == "/hosts" else wanted  # without a fleet
                assert answer.status_code == wanted, route.path
        for path in ("/", "/labs/theirs"):
            page = client.get(path).text
            assert "theirs" in page
            assert password not in page
            assert f"{place_of(client)}/labs" not in [
                part.split('"')[0] for part in page.split('action="')[1:]
            ]
            assert "/delete" not in page
    with visit(here) as client:
        assert password in client.get("/labs/theirs").text
        assert password not in client.get("/").text


def test_each_service_of_a_node_is_shown(here: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects users of proxies and arbiters: what can be reached is on the lab's page."""
    register(monkeypatch)
    asked = {"blueprint": "watched", "name": "fronted", "nodes": 1, "memory": 384 << 20}
    here.ask("POST", "/v1/labs?wait=60", asked)
    nodes = here.ask("GET", "/v1/labs/fronted").json()["nodes"]
    with visit(here) as client:
        shown = client.get("/labs/fronted").text
    for node in nodes:
        for name, address in node["addresses"].items():
            assert f"<span>{name} <code>{address}</code></span>" in shown
    assert [list(node["addresses"]) for node in nodes] == [
        ["sql", "ssh"], ["sql", "ssh", "admin"], ["ssh"]
    ]  # fmt: skip
    here.ask("DELETE", "/v1/labs/fronted?wait=30")


def test_projects_do_not_see_each_other(here: Site, theirs: dict[str, str]) -> None:
    """Protects projects: what another has is not there."""
    checked = 0
    with visit(here, here.token("curious", project="mine")) as client:
        for method, route in routes():
            named = {"{name}", "{job}"} & set(route.path.split("/"))
            if scope_of(route) in ("read", "use") and named:
                answer = client.request(
                    method, route.path.format(**theirs), headers=OURS, data={"ttl": "1h"}
                )
                assert answer.status_code == 404, route.path
                checked += 1
        assert "theirs" not in client.get("/").text
        assert theirs["job"] not in client.get("/jobs").text
    assert checked > 6
    assert here.ask("GET", "/v1/labs/theirs").json()["state"] == "ready"


def test_forms_of_other_sites_are_refused(here: Site, theirs: dict[str, str]) -> None:
    """Protects who is signed in from pages elsewhere that send forms in their name."""
    ours = str(here.client.base_url).rstrip("/")
    with visit(here) as client:
        del client.headers["Sec-Fetch-Site"]
        for method, route in routes():
            if method != "POST":
                continue
            for headers in (
                {"Sec-Fetch-Site": "cross-site", "Origin": ours},
                {"Sec-Fetch-Site": "same-site"},
                {"Sec-Fetch-Site": "none"},
                {"Origin": "http://evil.example"},
                {"Origin": ours.replace("http:", "https:")},
                {"Origin": "null"},
                {},
            ):
                answer = client.post(route.path.format(**theirs), headers=headers)
                assert answer.status_code == 403, (route.path, headers)
        # Where browsers send only an origin, ours will do.
        kept = client.post("/labs/theirs/change", data={"ttl": "2h"}, headers={"Origin": ours})
        assert kept.status_code == 303
    assert here.ask("GET", "/v1/labs/theirs").json()["state"] == "ready"


def test_a_session_is_not_its_token(here: Site) -> None:
    """Protects tokens from who gets at a cookie, and cookies from scripts and other sites."""
    with visit(here) as client:
        cookie = client.cookies[COOKIE]
        assert cookie not in here.admin
        assert here.admin.split("_", 2)[2] not in cookie
    answer = here.client.post("/sign-in", data={"token": here.admin}, headers=OURS)
    place = answer.headers["location"].removesuffix("/")
    assert PLACE.fullmatch(place)
    said = {part.strip() for part in answer.headers["set-cookie"].split(";")}
    assert {"HttpOnly", "SameSite=strict", f"Path={place}", f"Max-Age={LASTS:.0f}"} <= said
    assert "Secure" not in said  # it came without TLS
    assert here.client.get("/v1/labs", headers={"Cookie": f"{COOKIE}={cookie}"}).status_code == 401
    here.client.cookies.clear()


def test_sessions_end() -> None:
    """Protects who left a browser open: sessions end by time and by signing out."""
    now = [0.0]
    sessions = Sessions(clock=lambda: now[0])
    first, second = sessions.begin("t1", "/~a"), sessions.begin("t1", "/~b")
    assert first != second
    sessions.end("/~a", first)
    assert (sessions.token_of("/~a", first), sessions.token_of("/~b", second)) == (None, "t1")
    assert sessions.token_of("/~b", "") is None
    assert sessions.token_of("", second) is None
    assert sessions.token_of("/~a", second) is None
    now[0] = LASTS
    assert sessions.token_of("/~b", second) is None


def test_a_token_has_so_many_sessions() -> None:
    """Protects who is signed in from a token that signs in again and again: it ends its own."""
    sessions = Sessions()
    other = sessions.begin("other", "/~o")
    own = [sessions.begin("t1", "/~p") for _ in range(101)]
    assert sessions.token_of("/~o", other) == "other"
    assert sessions.token_of("/~p", own[0]) is None
    assert [sessions.token_of("/~p", one) for one in own[1:]] == ["t1"] * 100


@pytest.mark.parametrize("path", ["/live", "/v1/events"])
def test_a_stream_ends_with_its_token(here: Site, path: str) -> None:
    """Protects from looking on: who is shut out hears no more of what happens."""
    name = f"listener-{path.count('/')}"
    token = here.token(name, project="ear")
    sent = {"Authorization": f"Bearer {token}", "Accept": "text/event-stream"}
    with visit(here, token) as client:
        done = threading.Event()
        lines: list[str] = []

        def listen() -> None:
            asking = here.client if path.startswith("/v1/") else client
            with asking.stream("GET", path, headers=sent) as answer:
                assert answer.headers["content-type"].startswith("text/event-stream")
                for line in answer.iter_lines():
                    lines.append(line)
                    done.set()

        thread = threading.Thread(target=listen)
        thread.start()
        assert done.wait(10)
        tokens.revoke(here.service.core.store, name)
        here.service.core.notifier.notify("anything")
        thread.join(10)
        assert not thread.is_alive()
        assert not [line for line in lines if line.startswith("data:")]


def test_signing_in_leads_on_and_only_here(here: Site) -> None:
    """Protects from links that sign one in and then lead elsewhere."""
    asked = here.client.get("/labs/theirs/nodes/n1/logs?source=console")
    path = asked.headers["location"]
    assert path == "/sign-in?to=%2Flabs%2Ftheirs%2Fnodes%2Fn1%2Flogs%3Fsource%3Dconsole"
    assert 'value="/labs/theirs/nodes/n1/logs?source=console"' in here.client.get(path).text

    def lead(to: str) -> Response:
        data = {"token": here.admin, "to": to}
        return here.client.post("/sign-in", data=data, headers=OURS)

    assert PLACE.sub("", lead("/jobs?after=x").headers["location"], count=1) == "/jobs?after=x"
    for to in ("//evil.example", "https://evil.example/", "/\\evil.example", "evil", "/\n/x", ""):
        at = lead(to).headers["location"]
        assert (at[:2], PLACE.sub("", at, count=1)) == ("/~", "/"), to
    here.client.cookies.clear()


def test_links_from_elsewhere_work(here: Site) -> None:
    """Protects who follows a link in a chat: the browser asks again, as if from here."""
    with visit(here) as client:
        place, cookie = place_of(client), client.cookies[COOKIE]
    elsewhere = {"Sec-Fetch-Site": "cross-site"}
    first = here.client.get("/jobs?after=", headers=elsewhere)  # Strict: without the cookie
    assert first.status_code == 200
    assert '<meta http-equiv="refresh" content="0">' in first.text
    assert "Latest" not in first.text
    sent = {**OURS, "Cookie": f"{COOKIE}={cookie}"}
    again = here.client.get(f"{place}/jobs?after=", headers=sent)
    assert "<h1>Jobs</h1>" in again.text
    assert here.client.get("/jobs", headers=OURS).status_code == 303


# From here on with services of their own: the one above is over, as a process has one at a time.
def test_guessing_is_slowed_down_on_the_page_too(tmp_path: Path) -> None:
    """Protects from those who try tokens: page and API count together."""
    with site(tmp_path, failed_auth=3) as here:
        for _ in range(2):
            answer = here.client.post("/sign-in", data={"token": "lab_x"}, headers=OURS)
            assert (answer.status_code, "set-cookie" in answer.headers) == (401, False)
            assert "www-authenticate" not in answer.headers
            assert "lab_x" not in answer.text
        assert here.client.get("/v1/labs", headers={"Authorization": "Bearer x"}).status_code == 401
        refused = here.client.post("/sign-in", data={"token": "lab_x"}, headers=OURS)
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) > 0
        right = here.client.post("/sign-in", data={"token": here.admin}, headers=OURS)
        assert right.status_code == 303


def test_the_page_can_be_turned_off(tmp_path: Path) -> None:
    """Protects installations that want only the API."""
    with site(tmp_path, page=False) as here:
        for path in ("/", "/sign-in", "/page/page.js"):
            assert here.client.get(path).status_code == 404


def test_cookies_are_secure_under_tls(tmp_path: Path) -> None:
    """Protects sessions behind a proxy with TLS: they never cross the network in clear."""
    with site(tmp_path, proxy="127.0.0.1") as here:
        headers = {**OURS, "X-Forwarded-Proto": "https", "X-Forwarded-For": "192.0.2.1"}
        answer = here.client.post("/sign-in", data={"token": here.admin}, headers=headers)
        assert "; Secure" in answer.headers["set-cookie"]

"""The warm pool: labs that are there before they are asked for, given to one only."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from lab.cli import main
from lab.errors import Conflict
from lab.lifecycle.core import waiting
from lab.lifecycle.labs.down import down
from lab.lifecycle.labs.ensure import ensure
from lab.lifecycle.nodes.inspect import labs as look_at_labs
from lab.lifecycle.service import pool as pools
from lab.observe.account import Account
from lab.requests.labs import CreateLab
from lab.units import parse_time
from tests.support.page_visit import visit
from tests.support.pool_world import SPEC, members, pool, until, until_full
from tests.support.serve_world import BODY, MEMORY, Site, site

CLAIMS = 24


def claim(here: Site, **asked: Any) -> dict[str, Any]:
    """A lab that was asked for without a name."""
    answer = here.ask("POST", "/v1/labs?wait=30", {**BODY, **asked})
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json()
    return found


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site(tmp_path_factory.mktemp("pool"), pool=(pool(3),), metrics=True) as found:
        yield found


def test_a_member_belongs_to_nobody(here: Site) -> None:
    """Protects passwords: no token, not even the administrator's, sees a lab that is in a pool."""
    until_full(here, 3)
    names = {lab.name for lab in members(here)}
    assert len(names) == 3
    assert not {lab["name"] for lab in here.ask("GET", "/v1/labs").json()["items"]} & names
    name = names.pop()
    for method, path, body in (
        ("GET", "", None),
        ("GET", "/nodes", None),
        ("PATCH", "", {"ttl": 60}),
        ("DELETE", "", None),
        ("POST", "/stop", None),
        ("POST", "/nodes/n1/exec", {"argv": ["id"]}),
    ):
        assert here.ask(method, f"/v1/labs/{name}{path}", body).status_code == 404, path
    host = here.ask("GET", "/v1/host").json()
    assert host["pools"] == [
        {"name": "small", "blueprint": "galera", "nodes": 2, "memory": MEMORY, "count": 3,
         "ready": 3, "hits": 0, "misses": 0}
    ]  # fmt: skip
    assert (host["labs"], host["pooled"], host["projects"]) == (0, 3, [])
    assert host["memory"]["used"] == 6 * MEMORY
    assert host["processors_used"] == 6
    with visit(here) as client:
        page = client.get("/").text
    assert "0 labs and 3 in pools" in page
    assert "pool small: 3 of 3 labs ready, 0 hits, 0 misses" in page


def test_a_claimed_lab_is_whole_and_ones_own(here: Site) -> None:
    """Protects who claims: name, owner, lease, password and events are as of a lab just made."""
    until_full(here, 3)
    before = {lab.name: lab for lab in members(here)}
    token = here.token("claimer", project="shop", labs=1)
    (pool_before,) = here.ask("GET", "/v1/host").json()["pools"]
    asked = {**BODY, "ttl": 600, "heartbeat": 60, "protected": True, "snapshots": "hourly:2"}
    answer = here.ask("POST", "/v1/labs?wait=30", asked, token=token, Idempotency_Key="one")
    lab = answer.json()
    assert answer.status_code == 201
    host = here.ask("GET", "/v1/host", token=token).json()
    assert host["pools"][0]["hits"] == pool_before["hits"] + 1
    assert host["pools"][0]["misses"] == pool_before["misses"]
    use = {"project": "shop", "labs": 1, "memory": 2 * MEMORY, "processors": 2}
    assert host["projects"] == [use]
    other = here.token("other", project="other")
    assert here.ask("GET", "/v1/host", token=other).json()["projects"] == []
    old = before[lab["name"]]
    assert (lab["state"], lab["project"], lab["owner"]) == ("ready", "shop", "claimer")
    assert (lab["protected"], lab["heartbeat"], lab["snapshots"]) == (True, 60, "hourly:2")
    assert 590 < parse_time(lab["expires_at"]) - time.time() <= 600
    assert parse_time(lab["created_at"]) > old.created_at
    # Nobody has seen the password: it is in no event, and no answer had the lab.
    password = lab["connection"]["password"]
    assert password == old.password
    assert password not in here.ask("GET", "/v1/events?after=0&limit=500").text
    with here.service.core.contexts.use() as ctx:
        for node in lab["nodes"]:
            rows = ctx.sql(Account("lab", password), node["sql_port"], "SELECT 1", timeout=5.0)
            assert rows.rows == ((1,),)

    again = here.ask("POST", "/v1/labs?wait=30", asked, token=token, Idempotency_Key="one")
    assert again.json()["name"] == lab["name"]
    job = here.ask("GET", f"/v1/jobs/{lab['job']}", token=token).json()
    assert (job["kind"], job["state"], job["lab"]) == ("create", "succeeded", lab["name"])
    assert job["created_at"] <= job["started_at"] <= job["ended_at"]
    steps = [(one["step"], one["state"]) for one in here.stream(f"/v1/jobs/{lab['job']}/events")]
    assert steps == [("job", "begin"), ("claim", "end"), ("job", "end")]
    assert here.ask("POST", "/v1/labs", BODY, token=token).status_code == 429  # its quota
    answer = here.ask("DELETE", f"/v1/labs/{lab['name']}?force=true&wait=20", token=token)
    assert answer.status_code == 204


def test_no_two_claimants_get_one_lab(here: Site) -> None:
    """Protects labs from having two owners, whatever comes at once; the pool is full again."""
    until_full(here, 3)
    with ThreadPoolExecutor(8) as threads:
        made = list(threads.map(lambda _: claim(here), range(8)))
    assert len({lab["name"] for lab in made}) == 8
    assert len({lab["job"] for lab in made}) == 8
    records = {lab.name: lab for lab in here.service.core.store.labs.all()}
    assert all(records[lab["name"]].job == lab["job"] for lab in made)
    until_full(here, 3)
    for lab in made:
        here.ask("DELETE", f"/v1/labs/{lab['name']}?wait=20")


@pytest.mark.rare
def test_claims_are_fast_and_counted(here: Site) -> None:
    """Protects the reason for pools: milliseconds, over HTTP, and figures of them."""
    times = []
    for _ in range(CLAIMS):
        until_full(here, 3)
        until(lambda: not here.service.core.store.jobs.open(), "jobs are open")
        began = time.monotonic()
        lab = claim(here)
        times.append(time.monotonic() - began)
        here.ask("DELETE", f"/v1/labs/{lab['name']}?wait=20")
    median = statistics.median(times)
    sys.stdout.write(f"claim over HTTP: median {median:.4f} s, slowest {max(times):.4f} s\n")
    assert median < 0.5
    text = here.client.get("/metrics").text
    hits = next(line for line in text.splitlines() if line.startswith("lab_pool_claims_total{res"))
    assert hits.startswith('lab_pool_claims_total{result="hit"} ')
    assert float(hits.split()[-1]) >= CLAIMS
    for share in ("0.5", "0.95"):
        assert f'lab_pool_claim_quantile_seconds{{quantile="{share}"}} 0.' in text
    assert "lab_pool_claim_seconds_bucket" in text
    assert 'lab_pool_ready{pool="small"} ' in text


def test_who_asks_for_something_else_gets_it_made(here: Site) -> None:
    """Protects from being given what was not asked for."""
    until_full(here, 3)
    before = {lab.name for lab in members(here)}
    others: tuple[dict[str, Any], ...] = (
        {"nodes": 1}, {"name": "mine"}, {"cold": True}, {"profile": "durable"},
        {"memory": 2 * MEMORY},
    )  # fmt: skip
    for asked in others:
        lab = claim(here, **asked)
        assert lab["name"] not in before, asked
        here.ask("DELETE", f"/v1/labs/{lab['name']}?wait=20")
    until_full(here, 3)
    before = {lab.name for lab in members(here)}
    wish = claim(here, name="wish", accept_pooled_name=True)
    assert wish["name"] in before
    here.ask("DELETE", f"/v1/labs/{wish['name']}?wait=20")
    until_full(here, 3)
    before = {lab.name for lab in members(here)}
    same = claim(here, engine="mariadb", profile="balanced")  # galera has no other engine
    assert same["name"] in before
    here.ask("DELETE", f"/v1/labs/{same['name']}?wait=20")


def test_a_dead_lab_is_never_given_away(here: Site) -> None:
    """Protects who claims from what broke while it waited: the next one is taken."""
    until_full(here, 3)
    with here.service.core.contexts.use() as ctx:
        first, second, _ = waiting.members(ctx)
        for guest in ctx.hypervisor.guests():
            if str(guest).startswith(f"lab-{first.name}-"):
                ctx.hypervisor.stop(guest, force=True)
        # One whose database has gone, while its guests run.
        ctx.store.labs.update(second.name, password="another")
    with pytest.raises(Exception, match=f"{second.name} is not ready"):
        pools.check_member(ctx, second.name)
    lab = claim(here)
    assert lab["name"] not in (first.name, second.name)
    until_full(here, 3)
    assert not {first.name, second.name} & {lab.name for lab in here.service.core.store.labs.all()}
    here.ask("DELETE", f"/v1/labs/{lab['name']}?wait=20")


def test_commands_of_the_host_treat_members_as_what_they_are(here: Site) -> None:
    """Protects members from commands that would take them for one's own, and people from them."""
    until_full(here, 3)
    with here.service.core.contexts.use() as ctx:
        states = {view.name: view.state for view in look_at_labs(ctx)}
        ours = waiting.members(ctx)
        assert {states[lab.name] for lab in ours} == {"pooled"}
        with pytest.raises(Conflict, match="different configuration"):
            ensure(ctx, CreateLab.of(SPEC, name=ours[0].name))
        down(ctx, ours[0].name)
    until(lambda: ours[0].name not in {lab.name for lab in members(here)}, "it is still there")
    until_full(here, 3)


def test_labs_that_may_exist_beside_a_pool(
    here: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Protects pipelines that say `lab up --exist-ok`: one lab, theirs, never one in a pool."""
    for name, value in (
        ("LAB_HOME", str(tmp_path / "none")), ("XDG_CONFIG_HOME", str(tmp_path / "config")),
        ("LAB_URL", str(here.client.base_url)), ("LAB_TOKEN", here.token("pipeline")),
    ):  # fmt: skip
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)

    def lab_up(*words: str, code: int = 0) -> tuple[str, str]:
        words = ("up", "galera", "--nodes", "2", "--memory", "384M", "--exist-ok", *words)
        assert main((*words, "-o", "name")) == code
        said = capsys.readouterr()
        return said.out.strip(), said.err

    # The plain name is free: the lab has it, as without a pool.
    until_full(here, 3)
    kept = {lab.name for lab in members(here)}
    assert lab_up()[0] == lab_up()[0] == "galera"
    assert {lab.name for lab in members(here)} == kept
    # The name of a lab in a pool is taken, as another project's is.
    assert "exists already" in lab_up("--name", min(kept), code=4)[1]
    here.ask("DELETE", "/v1/labs/galera?wait=20")
    # It is another's: a lab of the pool will do, and is the same one from then on.
    here.make("galera", token=here.token("others", project="others"))
    claimed = lab_up()[0]
    assert claimed in kept
    until_full(here, 3)
    assert lab_up()[0] == claimed
    assert here.service.core.store.labs.get(claimed).project == "shop"
    for name in (claimed, "galera"):
        here.ask("DELETE", f"/v1/labs/{name}?wait=20")
    until_full(here, 3)

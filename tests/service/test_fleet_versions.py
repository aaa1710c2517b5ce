"""Two versions of this program side by side in one fleet: a rolling upgrade."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lab import distribution
from lab.fleet.database import FleetDatabase, migrate
from lab.fleet.schema import REVISION
from lab.wait import Deadline, until
from tests.support.newer_version import NEWER, NEXT, Program, newer_version
from tests.support.postgres_server import NEEDED, Postgres, postgres, programs
from tests.support.serve_process import Serving, configure, environment, serving
from tests.support.serve_world import BODY

OLDER: Program = (sys.executable, "-m", "lab")
CONFIG = """
[serve]
database = "{url}"
host_name = "{name}"
fleet_address = "127.0.0.1"
fleet_port = 0
sweep = 1.0
"""


@pytest.fixture(scope="module")
def database() -> Iterator[Postgres]:
    """A server of PostgreSQL with the tables of the older version."""
    if programs() is None:
        pytest.skip(NEEDED)
    with postgres() as found:
        migrate(found.url)
        yield found


@pytest.fixture(scope="module")
def newer(tmp_path_factory: pytest.TempPathFactory) -> Program:
    """How the newer version is called."""
    return newer_version(tmp_path_factory.mktemp("newer"))


class Fleet:
    """Hosts, each of one of the two versions."""

    def __init__(self, root: Path, url: str, newer: Program) -> None:
        self.hosts: dict[str, Serving] = {}
        self.newer = newer
        self._held: dict[str, ExitStack] = {}
        self.environments: dict[str, dict[str, str]] = {}
        for number, name in enumerate(("h1", "h2", "h3")):
            (root / name).mkdir()
            ports = {"LAB_PORT_RANGE": f"{32000 + 200 * number}-{32199 + 200 * number}"}
            self.environments[name] = environment(root / name) | ports
            configure(self.environments[name], CONFIG.format(url=url, name=name))

    def start(self, name: str, program: Program = OLDER) -> Serving:
        held = ExitStack()
        env = self.environments[name]
        self.hosts[name] = held.enter_context(serving(env, program=program))
        self._held[name] = held
        return self.hosts[name]

    def stop(self, name: str) -> None:
        self.hosts[name].process.send_signal(signal.SIGTERM)  # nothing, if it was killed
        self.hosts[name].process.wait(30)
        self._held.pop(name).close()

    def lab(self, program: Program, name: str, *words: str) -> subprocess.CompletedProcess[str]:
        env, argv = self.environments[name], [*program, *words]
        return subprocess.run(
            argv, env=env, capture_output=True, text=True, check=False, timeout=60
        )

    def close(self) -> None:
        for held in self._held.values():
            held.close()


@pytest.fixture(scope="module")
def fleet(
    tmp_path_factory: pytest.TempPathFactory, database: Postgres, newer: Program
) -> Iterator[Fleet]:
    found = Fleet(tmp_path_factory.mktemp("fleet"), database.url, newer)
    try:
        yield found
    finally:
        found.close()


def up(host: Serving, name: str, on: str, **more: Any) -> Any:
    answer = host.ask("POST", "/v1/labs?wait=60", {**BODY, "name": name, "host": on, **more})
    assert answer.status_code == 201, answer.text
    assert answer.json()["host_name"] == on
    return answer.json()


def labs_of(host: Serving) -> dict[str, tuple[str, str]]:
    answer = host.ask("GET", "/v1/labs")
    assert answer.status_code == 200, answer.text
    return {one["name"]: (one["host_name"], one["state"]) for one in answer.json()["items"]}


def lists(host: Serving, wanted: dict[str, tuple[str, str]]) -> bool:
    return labs_of(host) == wanted


def versions(host: Serving) -> dict[str, tuple[str, str]]:
    items = host.ask("GET", "/v1/hosts").json()["items"]
    return {one["name"]: (one["version"], one["state"]) for one in items}


@pytest.mark.rare
def test_one_host_after_the_other_is_upgraded(fleet: Fleet, database: Postgres) -> None:
    """Protects labs and their users while the hosts of a fleet are upgraded."""
    older = distribution.version()
    h1, h2 = fleet.start("h1"), fleet.start("h2")
    up(h1, "before", "h2")
    # The tables first: the newer program starts on none that are older.
    refused = fleet.lab(fleet.newer, "h3", "serve", "--port", "0")
    assert refused.returncode == 5, refused.stderr
    assert f"schema {REVISION}, this program knows {NEXT}" in refused.stderr
    assert "`lab db migrate` upgrades the schema" in refused.stderr
    migrated = fleet.lab(fleet.newer, "h3", "db", "migrate")
    assert f"schema {NEXT}, before: {REVISION}" in migrated.stderr, migrated.stderr
    # What runs keeps running, and takes jobs; what is older does not start any more.
    up(h2, "during", "h1")
    for verb in (("serve", "--port", "0"), ("db", "migrate")):
        refused = fleet.lab(OLDER, "h3", *verb)
        assert refused.returncode == 5, refused.stderr
        assert f"schema {NEXT}, this program knows {REVISION}" in refused.stderr
        assert "upgrade lab on this host" in refused.stderr
    h2 = _restarted_without_jobs_of_dbos(fleet)
    assert h2.ask("GET", "/v1/labs/before").json()["processor"] == "epyc"
    assert versions(h1) == versions(h2) == {"h1": (older, "up"), "h2": (NEWER, "up")}
    # Each is asked for labs of the other.
    up(h1, "to-newer", "h2")
    up(h2, "to-older", "h1")
    wanted = {"before": ("h2", "ready"), "during": ("h1", "ready"), "to-newer": ("h2", "ready"),
              "to-older": ("h1", "ready")}  # fmt: skip
    for host in (h1, h2):
        assert until(partial(lists, host, wanted), Deadline.after(15)), labs_of(host)
        for name in wanted:
            assert host.ask("GET", f"/v1/labs/{name}").json()["state"] == "ready"
    assert h1.ask("GET", "/v1/labs/to-newer").json()["processor"] == "epyc", "passed on as it is"
    _requests_that_only_one_knows(fleet, database)
    _views_that_only_one_knows(fleet, database)
    for name in wanted:
        assert h1.ask("DELETE", f"/v1/labs/{name}?wait=60").status_code == 204
    fleet.stop("h1")
    h1 = fleet.start("h1", fleet.newer)
    assert versions(h2) == {"h1": (NEWER, "up"), "h2": (NEWER, "up")}
    up(h2, "encrypted", "h1", encrypted=True)
    for host in fleet.hosts.values():
        assert not [line for line in host.talk if "Traceback" in line or "traceback" in line]


def _restarted_without_jobs_of_dbos(fleet: Fleet) -> Serving:
    """The newer version on h2, with a DBOS that reads nothing of what the older one's wrote.

    Its tables are in the home, and open jobs in the home's record: they are started again.
    """
    h1, h2 = fleet.hosts["h1"], fleet.hosts["h2"]
    begun = _requested(h2, "begun")
    h2.process.kill()
    fleet.stop("h2")
    placed = _requested(h1, "placed")
    for path in Path(fleet.environments["h2"]["LAB_HOME"]).glob("jobs.db*"):
        path.unlink()
    found = fleet.start("h2", fleet.newer)
    for job, lab in ((begun, "begun"), (placed, "placed")):
        assert until(lambda: _succeeded(found, job), Deadline.after(30)), lab  # noqa: B023
        assert h1.ask("DELETE", f"/v1/labs/{lab}?wait=60").status_code == 204
    return found


def _requested(host: Serving, name: str) -> str:
    answer = host.ask("POST", "/v1/labs", {**BODY, "name": name, "host": "h2"})
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


def _succeeded(host: Serving, job: str) -> bool:
    return bool(host.ask("GET", f"/v1/jobs/{job}?wait=30").json()["state"] == "succeeded")


def _requests_that_only_one_knows(fleet: Fleet, database: Postgres) -> None:
    """A field that the older one does not know is refused by it, and by nobody else."""
    h1, h2 = fleet.hosts["h1"], fleet.hosts["h2"]
    body = {**BODY, "name": "secret", "encrypted": True}
    refused = h1.ask("POST", "/v1/labs", {**body, "host": "h2"})
    assert refused.status_code == 422, "the older one does not pass on what it cannot check"
    assert "encrypted" in refused.text
    up(h2, "secret", "h2", encrypted=True)
    assert h2.ask("DELETE", "/v1/labs/secret?wait=60").status_code == 204
    refused = h2.ask("POST", "/v1/labs?wait=60", {**body, "host": "h1"})
    assert refused.status_code == 422, refused.text
    assert "on the host h1, does not know" in refused.json()["detail"]
    assert refused.json()["detail"].endswith("encrypted")
    job = h2.ask("GET", f"/v1/jobs/{refused.json()['job']}").json()
    assert (job["state"], job["error"]["status"]) == ("failed", 422)
    assert h1.ask("GET", "/v1/labs/secret").status_code == 404
    store = FleetDatabase(database.url)
    try:
        query = "SELECT job FROM lab.placements WHERE state IN ('placed', 'claimed')"
        assert until(lambda: not store.run(query), Deadline.after(15)), store.run(query)
    finally:
        store.close()


def _views_that_only_one_knows(fleet: Fleet, database: Postgres) -> None:
    """A lab in a state that the older one does not know is listed by it all the same."""
    h1, h2 = fleet.hosts["h1"], fleet.hosts["h2"]
    store = FleetDatabase(database.url)
    (row,) = store.run("SELECT view FROM lab.labs WHERE name = 'to-newer'")
    nodes = [{**node, "state": "hibernating"} for node in row.view["nodes"]]
    views = {
        "asleep": {**row.view, "state": "hibernating", "nodes": nodes},
        "sharded": {**row.view, "state": "ready", "blueprint": "sharded"},
        "strange": {"state": ["ready"], "nodes": {}},
    }
    try:
        # As of a newer host whose labs this test cannot have.
        for name, view in views.items():
            store.run(
                'INSERT INTO lab.labs (name, host, holds, "foreign", epoch, project, state, job,'
                "  view, observed_at) VALUES (:name, 'h4', true, false, 1, 'admin', :state, '',"
                "  CAST(:view AS jsonb), EXTRACT(EPOCH FROM now()) + 600)",
                name=name, state=str(view["state"]), view=json.dumps(view),
            )  # fmt: skip
        wanted = {"asleep": ("h4", "unknown"), "sharded": ("h4", "ready"),
                  "strange": ("h4", "unknown")}  # fmt: skip
        assert until(lambda: wanted.items() <= labs_of(h1).items(), Deadline.after(10)), labs_of(h1)
        newer = {**wanted, "asleep": ("h4", "hibernating")}
        assert until(lambda: newer.items() <= labs_of(h2).items(), Deadline.after(10))
        assert h1.ask("GET", "/v1/labs?state=unknown").status_code == 200
        up(h1, "counted", "h1")  # quotas of the project count labs of all hosts
        assert h1.ask("DELETE", "/v1/labs/counted?wait=60").status_code == 204
        assert h1.ask("GET", "/v1/labs/asleep").status_code in (404, 503), "there is no host h4"
    finally:
        store.run("DELETE FROM lab.labs WHERE host = 'h4'")
        store.close()

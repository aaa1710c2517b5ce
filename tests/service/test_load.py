"""Many clients at once, and a service that is killed under them."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.lifecycle_world import World
from tests.support.serve_process import Serving, environment, serving
from tests.support.serve_world import BODY

LABS = 8
KILLS = 2


@dataclass
class Restarted:
    """A service that comes back; ``now`` is the one that runs."""

    env: dict[str, str]
    now: Serving | None = None
    kills: int = 0

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> httpx.Response:
        """A request, again and again until there is an answer."""
        end = time.monotonic() + 240
        while True:
            try:
                assert self.now is not None
                return self.now.ask(method, path, body, **headers)
            except (httpx.TransportError, RuntimeError):  # it is gone, or its client closed
                assert time.monotonic() < end, f"no answer to {method} {path}"
                time.sleep(0.1)

    @contextmanager
    def killed(self, times: int, every: float) -> Iterator[None]:
        """Kill it ``times``, ``every`` so many seconds, while the block runs; it runs behind it."""
        started = threading.Event()

        def run() -> None:
            for number in range(times + 1):
                with serving(self.env) as self.now:
                    started.set()
                    if number == times:
                        done.wait()
                        return
                    time.sleep(every)
                    self.now.process.kill()
                    self.kills += 1

        done = threading.Event()
        thread = threading.Thread(target=run)
        thread.start()
        try:
            assert started.wait(120)
            yield
        finally:
            done.set()
            thread.join(120)


def each(act: Callable[[int], Any], count: int) -> list[Any]:
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(act, range(count)))


@pytest.mark.rare
def test_a_service_that_is_killed_under_load_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """Protects CI: retried requests make one lab each, every job ends, and nothing leaks."""
    found = Restarted(environment(tmp_path))
    root = Path(found.env["LAB_HOME"])

    def make(number: int) -> str:
        answer = found.ask("POST", "/v1/labs", BODY, Idempotency_Key=f"key-{number}")
        assert answer.status_code in (201, 202), answer.text
        # A lab that is ready by the time of the retry is the answer.
        job: str = answer.json()["job" if answer.status_code == 201 else "id"]
        return job

    def end(job: str) -> dict[str, Any]:
        while True:
            ended: dict[str, Any] = found.ask("GET", f"/v1/jobs/{job}?wait=5").json()
            if ended["state"] not in ("queued", "running"):
                return ended

    with found.killed(KILLS, 0.4):
        jobs = each(make, LABS)
        assert each(make, LABS) == jobs
        ended = each(lambda number: end(jobs[number]), LABS)
        assert [job["state"] for job in ended] == ["succeeded"] * LABS
        labs = found.ask("GET", "/v1/labs").json()["items"]
        assert {lab["job"] for lab in labs} == set(jobs)
        assert len(labs) == LABS
        assert {lab["state"] for lab in labs} == {"ready"}
    with found.killed(KILLS, 0.2):
        each(lambda number: found.ask("DELETE", f"/v1/labs/{labs[number]['name']}"), LABS)
        deleted = found.ask("GET", "/v1/jobs?kind=delete").json()["items"]
        each(lambda number: end(deleted[number]["id"]), len(deleted))
        assert found.ask("GET", "/v1/labs").json()["items"] == []
        assert found.ask("GET", "/v1/jobs?state=failed").json()["items"] == []
    assert found.kills >= KILLS
    left = [one for one in World(root).there() if one.startswith(("lab ", "guest ", "port "))]
    assert left == []


@pytest.mark.rare
def test_fifty_clients_for_a_while(tmp_path: Path) -> None:
    """Protects the service from its users: no error in a minute, and times that are printed."""
    seconds, clients = 60.0, 50
    times: dict[str, list[float]] = {"create": [], "list": [], "delete": []}
    env = environment(tmp_path) | {"LAB_PORT_RANGE": "32000-36999"}
    with serving(env) as found:
        stop = time.monotonic() + seconds

        def timed(word: str, method: str, path: str, body: Any = None) -> httpx.Response:
            began = time.monotonic()
            answer = found.ask(method, path, body)
            times[word].append(time.monotonic() - began)
            assert answer.status_code in (200, 201, 204), answer.text
            return answer

        def work(number: int) -> None:
            while time.monotonic() < stop:
                name = f"load-{number}"
                timed("create", "POST", "/v1/labs?wait=300", {**BODY, "nodes": 1, "name": name})
                timed("list", "GET", "/v1/labs?limit=10")
                timed("delete", "DELETE", f"/v1/labs/{name}?wait=300")

        each(work, clients)
        assert found.ask("GET", "/v1/labs").json()["items"] == []
    for word, taken in times.items():
        taken.sort()
        p50, p95, p99 = (taken[int(len(taken) * share)] for share in (0.5, 0.95, 0.99))
        sys.stdout.write(
            f"{word}: {len(taken)}, p50 {p50:.3f} s, p95 {p95:.3f} s, p99 {p99:.3f} s\n"
        )

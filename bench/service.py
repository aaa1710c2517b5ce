"""The same labs through the service, beside those of the command line in the same run."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace

from msgspec import to_builtins

from bench.figures import Figure, Target
from bench.labs import Failed, Home, ended
from bench.measure import UP, Log, check, labs_removed
from bench.topologies import check as used
from lab.client import Client
from lab.errors import LabError
from lab.paths import Home as LabHome

CLIENTS = 4
ROUNDS = 3
_SERVING = "serving at "
_START_SECONDS = 60.0


@contextmanager
def serving(home: Home) -> Iterator[str]:
    """``lab serve`` in ``home`` for the block: its URL. Raises Failed if it does not start."""
    with served(home) as (url, _):
        yield url


@contextmanager
def served(home: Home) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """``serving``, with its process."""
    with ended(home.start("serve", "--port", "0", quiet=False)) as process:
        said: list[str] = []
        known = threading.Event()

        def read() -> None:  # till its end: a full pipe would stop it
            for line in process.stderr or ():
                said.append(line)
                if _SERVING in line:
                    known.set()
            known.set()

        threading.Thread(target=read, daemon=True).start()
        known.wait(_START_SECONDS)
        urls = [line.split(_SERVING)[1].split()[0] for line in said if _SERVING in line]
        if not urls:
            raise Failed(f"lab serve did not start: {''.join(said[-3:])}")
        yield urls[0], process


def over_http(home: Home, runs: int, log: Log) -> list[Figure]:
    """Warm labs by three ways, one after the other in each run; the template is there."""
    token = LabHome(home.root).admin_token
    direct, beyond, remote_beyond = [], [], []
    removed: list[float] = []
    with serving(home) as url:
        remote = replace(home, env={"LAB_URL": url, "LAB_TOKEN_FILE": str(token)})
        with Client(url, token.read_text().strip()) as client:
            for number in range(1, runs + 1):
                with log.attempt(f"through the service {number}"), labs_removed(home):
                    here = _up(home, home.name(1))
                    took = posted(client, home.name(2), 3)
                    client.delete(home.name(2))
                    there = _up(remote, home.name(3))
                    client.create("single", name=home.name(4))
                    began = time.perf_counter()
                    client.delete(home.name(4))
                    removed.append(time.perf_counter() - began)
                    direct.append(took)
                    beyond.append(took - here)
                    remote_beyond.append(there - here)
    failed = runs - len(direct)
    return [
        Figure(
            "warm lab by `POST /v1/labs`",
            "s",
            tuple(direct),
            note="Python client, connection kept; from the request to the lab that is ready",
            failed=failed,
        ),
        Figure(
            "the same, beyond `lab up` on the host",
            "s",
            tuple(beyond),
            Target(0.3),
            "differences within a run; `lab up` has a process to start",
            failed=failed,
        ),
        Figure(
            "`lab --remote up`, beyond `lab up` on the host",
            "s",
            tuple(remote_beyond),
            Target(0.3),
            "differences within a run",
            failed=failed,
        ),
        Figure(
            "`DELETE /v1/labs/{name}` of a `single`",
            "s",
            tuple(removed),
            Target(0.6, 0.4),
            "from the request to the end of its job",
            failed=runs - len(removed),
        ),
    ]


@dataclass(frozen=True)
class Pipeline:
    """Clients of a kind that create, use and delete labs, each on its own."""

    blueprint: str
    nodes: int
    clients: int
    target: Target


PIPELINES = (
    Pipeline("single", 1, 12, Target(65, 90, at_least=True)),
    Pipeline("galera", 3, 4, Target(28, 40, at_least=True)),
)


def pipelines(home: Home, seconds: float, log: Log) -> list[Figure]:
    """How many labs a minute CI pipelines get through, by blueprint."""
    token = LabHome(home.root).admin_token
    figures = []
    for kind in PIPELINES:
        name = f"{kind.clients} pipelines of `{kind.blueprint}`, {kind.nodes} nodes, over the API"
        ended_: list[float] = []
        with log.attempt(name), labs_removed(home), serving(home) as url:
            home.run("template", "build", kind.blueprint, "--nodes", str(kind.nodes))
            end = time.perf_counter() + seconds

            def work(
                number: int, kind: Pipeline = kind, url: str = url, end: float = end
            ) -> list[float]:
                done = []
                with Client(url, token.read_text().strip()) as client:
                    while time.perf_counter() < end:
                        name = home.name(number)
                        lab = client.create(kind.blueprint, nodes=kind.nodes, name=name)
                        used(to_builtins(lab))
                        client.delete(name)
                        done.append(time.perf_counter())
                return done

            with ThreadPoolExecutor(kind.clients) as pool:
                try:
                    for done in pool.map(work, range(1, kind.clients + 1)):
                        ended_ += [moment for moment in done if moment <= end]
                except LabError as error:
                    raise Failed(str(error)) from error
        rate = (len(ended_) * 60 / seconds,) if ended_ else ()
        note = f"labs a minute that were created, written to and deleted, in {seconds:.0f} s"
        figures.append(Figure(name, "1/min", rate, kind.target, note, failed=not rate))
    return figures


def clients(home: Home, log: Log) -> Figure:
    """Several clients that make, list and remove labs of two nodes for a while."""
    token = LabHome(home.root).admin_token.read_text().strip()
    home.run("template", "build", "pxc", "--nodes", "2")
    seconds: list[float] = []
    what = f"{CLIENTS} clients, {ROUNDS} labs each"
    with log.attempt(what), labs_removed(home), serving(home) as url:

        def work(number: int) -> None:
            with Client(url, token) as client:
                for _ in range(ROUNDS):
                    seconds.append(posted(client, home.name(number), 2))
                    client.labs()
                    client.delete(home.name(number))

        with ThreadPoolExecutor(CLIENTS) as pool:
            try:
                list(pool.map(work, range(1, CLIENTS + 1)))
            except LabError as error:
                raise Failed(str(error)) from error
    return Figure(
        f"warm 2-node lab by `POST /v1/labs`, {CLIENTS} clients at once",
        "s",
        tuple(seconds),
        Target(no_failure=True),
        f"each makes, lists and removes {ROUNDS} labs",
        failed=CLIENTS * ROUNDS - len(seconds),
    )


def _up(home: Home, name: str) -> float:
    """Seconds of ``lab up``; the lab is gone then."""
    ran = home.run(*UP, "--name", name, "-o", "json")
    check(ran.value)
    home.run("down", name)
    return ran.seconds


def posted(client: Client, name: str, nodes: int, host: str = "") -> float:
    """Seconds until a lab was made and known to be ready; it is there then.

    ``host``: of a fleet, where it is to be.
    """
    began = time.perf_counter()
    try:
        lab = client.create("pxc", nodes=nodes, name=name, host=host)
    except LabError as error:
        raise Failed(str(error)) from error
    took = time.perf_counter() - began
    if lab.started != "warm":
        raise Failed(f"{name} started {lab.started}")
    return took

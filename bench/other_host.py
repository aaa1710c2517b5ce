"""A warm lab by the host that has it, and through another host of a fleet, in turns."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from bench.figures import Figure, Target
from bench.labs import Failed, Home
from bench.measure import Log, labs_removed
from bench.service import posted, serving
from lab.client import Client
from lab.fleet.database import migrate
from lab.paths import Home as LabHome
from tests.support.postgres_server import postgres, programs

_NODES = 3
_CONFIG = """
[serve]
database = "{url}"
host_name = "{name}"
fleet_address = "127.0.0.1"
fleet_port = 0
"""


def through(home: Home, other: Home, runs: int, log: Log) -> list[Figure]:
    """What it costs that a request is made at a host that passes it on.

    ``home`` has the guests, ``other`` none. Raises Failed without PostgreSQL's programs.
    """
    if programs() is None:
        raise Failed("PostgreSQL's server is not installed (Debian: postgresql)")
    here: list[float] = []
    beyond: list[float] = []
    home.run("template", "build", "pxc", "--nodes", str(_NODES))
    with _fleet(home, other) as (owner, asked):
        for number in range(1, runs + 1):
            with log.attempt(f"through another host {number}"), labs_removed(home):
                turns = [(owner, 1), (asked, 2)]
                took = {}
                for client, place in turns if number % 2 else turns[::-1]:
                    took[place] = posted(client, home.name(place), _NODES, host="h1")
                    client.delete(home.name(place))
                here.append(took[1])
                beyond.append(took[2] - took[1])
    failed = runs - len(here)
    return [
        Figure(
            f"warm lab of {_NODES} by `POST /v1/labs` of its host", "s", tuple(here), failed=failed,
            note="a fleet of two hosts on one machine and PostgreSQL; request to ready",
        ),
        Figure(
            "the same through another host, beyond it", "s", tuple(beyond), Target(0.3),
            "differences within a run, of which every other begins with the other host", failed,
        ),
    ]  # fmt: skip


@contextmanager
def _fleet(home: Home, other: Home) -> Iterator[tuple[Client, Client]]:
    """Clients of both hosts, h1 and h2, of which h1 has the template."""
    with postgres() as database, tempfile.TemporaryDirectory(prefix="lab-bench-") as place:
        migrate(database.url)
        one, two = (
            _host(each, name, database.url, Path(place))
            for each, name in ((home, "h1"), (other, "h2"))
        )
        with (
            serving(one) as first, serving(two) as second,
            Client(first, _token(home)) as owner, Client(second, _token(other)) as asked,
        ):  # fmt: skip
            yield owner, asked


def _host(home: Home, name: str, url: str, place: Path) -> Home:
    config = place / name / "lab" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text(_CONFIG.format(url=url, name=name))
    return replace(home, env={**home.env, "XDG_CONFIG_HOME": str(place / name)})


def _token(home: Home) -> str:
    return LabHome(home.root).admin_token.read_text().strip()

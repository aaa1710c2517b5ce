"""MySQL Router. With static destinations it knows of no roles.

So a program beside it asks the checkers of servers, and restarts it with other destinations.

Source: the manual of MySQL Router, "Configuration Options".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lab.blueprints import Engine, Member, Service
from lab.blueprints.proxies import Traffic
from lab.guest.seed import SeedFile

SERVERS = "/etc/lab/proxy"
"""What the program beside it reads: how writes are spread, and the servers, in order."""


@dataclass(frozen=True)
class Router:
    """See Proxy."""

    recipe: str = "mysql-router"
    seed: str = SERVERS
    pages: tuple[Service, ...] = ()
    counts_delayed: bool = False  # they are its destinations only where there are no others

    def files(
        self, servers: Sequence[Member], engine: Engine, traffic: Traffic
    ) -> Mapping[str, SeedFile]:
        """See Proxy."""
        lines = [f"rw\t{'round-robin' if traffic.spread else 'first-available'}"]
        lines += [
            f"{m.name}\t{m.address}\t{'last' if m.role == 'delayed' else ''}" for m in servers
        ]
        return {
            engine.config_path: SeedFile(engine.config.encode()),
            SERVERS: SeedFile("".join(f"{line}\n" for line in lines).encode()),
        }

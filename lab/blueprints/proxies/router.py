"""MySQL Router. With static destinations it knows of no roles.

So a program beside it asks the checkers of servers, and restarts it with other destinations.

Source: the manual of MySQL Router, "Configuration Options".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lab.blueprints import Engine, Member
from lab.blueprints.proxies import Traffic
from lab.guest.seed import SeedFile

SERVERS = "/etc/lab/proxy"
"""What the program beside it reads: how writes are spread, and the servers, in order."""


class Router:
    """See Proxy."""

    recipe = "mysql-router"
    seed = SERVERS
    pages = ()
    counts_delayed = False  # they are its destinations only where there are no others

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

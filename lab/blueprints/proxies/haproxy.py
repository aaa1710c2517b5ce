"""HAProxy, which asks the checkers of servers by itself.

Source: the manual of HAProxy 3.0, "Configuration Manual".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lab.blueprints import Engine, Member, Service
from lab.blueprints.proxies import RO_PORT, Traffic
from lab.guest import network
from lab.guest.seed import SeedFile

_ADMIN_PORT = 8404


class HAProxy:
    """See Proxy."""

    recipe = "haproxy"
    seed = "/etc/haproxy/haproxy.cfg"
    pages = (Service("admin", _ADMIN_PORT),)
    counts_delayed = True  # they are its backup servers

    def files(
        self, servers: Sequence[Member], engine: Engine, traffic: Traffic
    ) -> Mapping[str, SeedFile]:
        """See Proxy."""
        text = engine.config + _sections(servers, traffic)
        return {engine.config_path: SeedFile(text.encode())}


def _sections(behind: Sequence[Member], traffic: Traffic) -> str:
    """The frontends and backends of a proxy in front of these servers."""
    parts = [
        _frontend("rw", network.SQL_PORT, ["default_backend rw"]),
        _backend("rw", traffic, [_server(m, traffic, first=m == behind[0]) for m in behind]),
    ]
    if traffic.alike:
        # A backend to read from for each server that writes may go to: all others, then itself.
        # What the checks of the backend rw find holds for the servers of these as well.
        rules = [f"use_backend ro-{m.name} if {{ srv_is_up(rw/{m.name}) }}" for m in behind]
        parts.append(_frontend("ro", RO_PORT, [*rules, "default_backend rw"]))
        for writer in behind:
            tracked = [
                f"server {m.name} {m.address}:{network.SQL_PORT} track rw/{m.name}"
                + (" backup" if m == writer else "")
                for m in behind
            ]
            parts.append(_section(f"backend ro-{writer.name}", ["balance leastconn", *tracked]))
    else:
        rules = ["use_backend rw if { nbsrv(ro) lt 1 }", "default_backend ro"]
        parts.append(_frontend("ro", RO_PORT, rules))
        lines = ["balance leastconn", "option httpchk GET /ro", "http-check expect status 200"]
        for m in behind:
            last = " backup" if m.role == "delayed" else ""
            lines.append(f"server {m.name} {m.address}:{network.SQL_PORT} check{last}")
        parts.append(_section("backend ro", lines))
    return "".join(parts)


def _backend(name: str, traffic: Traffic, lines: Sequence[str]) -> str:
    balance = "leastconn" if traffic.spread else "first"
    head = [f"balance {balance}", "option httpchk GET /rw", "http-check expect status 200"]
    return _section(f"backend {name}", [*head, *lines])


def _server(member: Member, traffic: Traffic, *, first: bool) -> str:
    line = f"server {member.name} {member.address}:{network.SQL_PORT} check"
    if not traffic.alike:
        return line
    # Writes go to one node: sessions on others end when the first is back.
    return f"{line} on-marked-up shutdown-backup-sessions" if first else f"{line} backup"


def _frontend(name: str, port: int, lines: Sequence[str]) -> str:
    return _section(f"frontend {name}", [f"bind 0.0.0.0:{port}", *lines])


def _section(head: str, lines: Sequence[str]) -> str:
    return "".join([f"\n{head}\n", *(f"    {line}\n" for line in lines)])

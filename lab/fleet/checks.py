"""What ``lab doctor`` looks at in the database of a fleet."""

from __future__ import annotations

import time
from collections.abc import Iterator

from lab.errors import LabError
from lab.fleet.database import CONNECTIONS, FleetDatabase
from lab.fleet.hosts import hosts as all_hosts
from lab.host.finding import Finding

_ASKED = 5
_SLOW = 0.02
_SKEW = 5.0
"""Seconds that clocks may differ: times in views are those of their hosts."""
_LISTENS = 1
"""Further connections of a host: it waits for notifications."""
_POOLER = Finding(
    "fleet pooler",
    "fail",
    "a pooler is between this host and the database: it drops the options of connections",
    "connect without it: a host has few connections, and one of them waits for notifications",
)


def findings(url: str) -> Iterator[Finding]:
    """What was found; never raises."""
    try:
        database = FleetDatabase(url)
    except LabError as error:
        yield Finding("fleet", "fail", error.what, error.hint)
        return
    try:
        yield from _looked(database)
    except LabError as error:
        if "startup parameter" in error.what:  # PgBouncer's refusal of what we need
            yield _POOLER
        else:
            yield Finding("fleet", "fail", error.what, error.hint or "check database of [serve]")
    finally:
        database.close()


def _looked(database: FleetDatabase) -> Iterator[Finding]:
    database.check()
    seconds, skews = [], []
    for _ in range(_ASKED):
        began = time.time()
        ((now,),) = database.run("SELECT EXTRACT(EPOCH FROM clock_timestamp())")
        ended = time.time()
        seconds.append(ended - began)
        skews.append(abs(float(now) - (began + ended) / 2))
    latency, skew = min(seconds), min(skews)
    yield Finding("fleet", "ok", database.where)
    yield Finding(
        "fleet latency", "note" if latency > _SLOW else "ok", f"{latency * 1000:.1f} ms",
        "creating a lab takes four times this longer, listing labs once" if latency > _SLOW else "",
    )  # fmt: skip
    late = skew > _SKEW
    yield Finding(
        "fleet clock", "warn" if late else "ok", f"{skew:.1f} s from the database's",
        "set the clocks of this host and of the database's, such as with chrony" if late else "",
    )  # fmt: skip
    ((limit, most, hosts),) = database.run(
        "SELECT current_setting('statement_timeout'),"
        " CAST(current_setting('max_connections') AS integer)"
        "  - CAST(current_setting('superuser_reserved_connections') AS integer),"
        " (SELECT COUNT(*) FROM lab.hosts)"
    )
    if limit != "2s":
        yield _POOLER
    needed = max(hosts, 1) * (CONNECTIONS + _LISTENS)
    short = needed > most
    yield Finding(
        "fleet connections", "warn" if short else "ok",
        f"{most} for {hosts} hosts, which use {needed} at most",
        f"set max_connections of PostgreSQL to {needed + 20}, and restart it" if short else "",
    )  # fmt: skip
    for at, names in _different(database):
        yield Finding(
            "fleet datasets", "warn", f"{at} differs between {' and '.join(names)}",
            "labs of it differ by host: remove it on all hosts but one, which give it to the others"
        )  # fmt: skip


def _different(database: FleetDatabase) -> Iterator[tuple[str, list[str]]]:
    """The versions of datasets that are not the same on all hosts, and those that have them.

    Each host made it before it joined, or two at the same moment.
    """
    digests: dict[str, dict[str, str]] = {}
    for host in all_hosts(database):
        for one in host.facts.versions:
            if one.digest:
                digests.setdefault(one.at, {})[host.name] = one.digest
    for at, found in sorted(digests.items()):
        if len(set(found.values())) > 1:
            yield at, sorted(found)

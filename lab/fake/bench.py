"""sysbench in a client of the fake hypervisor: it takes no time, and prints what a real one would.

Servers that flush at each commit because a user set ``innodb_flush_log_at_trx_commit=1`` take half
as many transactions; all figures differ by up to a hundredth from run to run.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from lab.errors import CommandFailed

SLOW = "innodb_flush_log_at_trx_commit=1"
_RATE = 100.0
"""Transactions a second of a thread."""


def output(words: Sequence[str], *, slow: bool) -> str:
    """What sysbench prints for ``SCRIPT COMMAND OPTION...``; raises CommandFailed."""
    script, command, *given = words
    options = dict(one.removeprefix("--").partition("=")[::2] for one in given)
    if command != "run":
        return "sysbench 1.0.20 (using system LuaJIT 2.1.0)\n\n"
    if not options.get("threads", "").isdigit():
        raise CommandFailed(["sysbench", script], 1, stderr="FATAL: no threads")
    chance = random.uniform(0.99, 1.01)  # noqa: S311  no secret
    rate = _RATE * int(options["threads"]) * chance / (2 if slow else 1)
    if options.get("rate"):
        rate = min(rate, float(options["rate"]))
    events = int(options.get("events", 0))
    seconds = events / rate if events else float(options["time"])
    events = events or int(rate * seconds)
    each = 10.0 * (2 if slow else 1)
    series = "".join(
        f"[ {at}s ] thds: {options['threads']} tps: {rate:.2f} qps: {rate * 20:.2f}"
        f" (r/w/o: {rate * 14:.2f}/{rate * 4:.2f}/{rate * 2:.2f}) lat (ms,95%): {each:.2f}"
        " err/s: 0.00 reconn/s: 0.00\n"
        for at in range(1, int(seconds) + 1)
    )
    return (
        "Threads started!\n\n"
        f"{series}Latency histogram (values are in milliseconds)\n"
        "       value  ------------- distribution ------------- count\n"
        f"{each:>12.3f} |**************************************** {events}\n \n"
        "SQL statistics:\n    queries performed:\n"
        f"        total:                           {events * 20}\n"
        f"    transactions:                        {events}  ({rate:.2f} per sec.)\n"
        f"    queries:                             {events * 20} ({rate * 20:.2f} per sec.)\n"
        "    ignored errors:                      0      (0.00 per sec.)\n"
        "    reconnects:                          0      (0.00 per sec.)\n\n"
        "General statistics:\n"
        f"    total time:                          {seconds:.4f}s\n"
        f"    total number of events:              {events}\n\n"
        "Latency (ms):\n"
        f"         min:                                {each:>9.2f}\n"
        f"         avg:                                {each:>9.2f}\n"
        f"         max:                                {each:>9.2f}\n"
        f"         95th percentile:                    {each:>9.2f}\n"
    )

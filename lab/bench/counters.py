"""Counters of servers: which are read before and after a run, and by how much they rose."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

NAMES = (
    "Com_commit", "Com_rollback", "Questions",
    "Innodb_buffer_pool_read_requests", "Innodb_buffer_pool_reads", "Innodb_buffer_pool_wait_free",
    "Innodb_data_fsyncs", "Innodb_data_read", "Innodb_data_written", "Innodb_dblwr_pages_written",
    "Innodb_log_waits", "Innodb_os_log_fsyncs", "Innodb_os_log_written", "Innodb_pages_written",
    "Innodb_row_lock_time", "Innodb_row_lock_waits",
    "wsrep_flow_control_paused_ns", "wsrep_flow_control_recv", "wsrep_flow_control_sent",
    "wsrep_local_bf_aborts", "wsrep_local_cert_failures", "wsrep_received", "wsrep_replicated",
    "wsrep_replicated_bytes",
)  # fmt: skip
QUESTION = "SHOW GLOBAL STATUS WHERE Variable_name IN ({})".format(
    ", ".join(f"'{name}'" for name in NAMES)
)
_COUNT = re.compile(r"\d{1,19}")


def read(rows: Iterable[tuple[object, ...]]) -> dict[str, int]:
    """The counters in the answer to ``QUESTION``; what is not a number is left out."""
    found = {}
    for row in rows:
        if len(row) == 2 and row[0] in NAMES and _COUNT.fullmatch(str(row[1])):
            found[str(row[0])] = int(str(row[1]))
    return found


def rise(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """By how much each rose; one that fell, since its server started again, is left out."""
    return {
        name: after[name] - before[name]
        for name in NAMES
        if name in before and name in after and after[name] >= before[name]
    }

"""Ids of jobs that say which host has them, so that any host finds them without a look-up.

A UUID of version 8 (RFC 9562, 5.8): its last 48 bits are a hash of the host's name. Jobs that are
placed have ids of version 4, as their host is not known when they are requested.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterable


def job_id(host: str) -> str:
    """A new id for a job of a host."""
    random = uuid.uuid4().int
    value = random >> 48 << 48 | int(_mark(host), 16)
    value = value & ~(0xF << 76) | 8 << 76
    return str(uuid.UUID(int=value))


def host_of(job: str, hosts: Iterable[str]) -> str | None:
    """The host whose job this is; empty: none of ``hosts``; None: the id does not say it."""
    if job[14:15] != "8":
        return None
    return next((host for host in hosts if job.endswith(_mark(host))), "")


def _mark(host: str) -> str:
    return hashlib.sha256(host.encode()).hexdigest()[:12]

"""What a server's log says of how it came back to its Galera cluster: by IST, or by an SST.

A joiner asks for both, and starts the program for an SST in any case; "SST received" is logged
where nothing but its own position was. So the positions decide: that which it had, and that which
it has when the program has ended (galera/src/replicator_str.cpp).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from lab.views.upgrades import Transfer

_REQUIRED = "State transfer required"
_HAD = re.compile(r"Local state: *([0-9a-f-]+:-?[0-9]+)")
_HAS = re.compile(r"Installed new state from SST: *([0-9a-f-]+:-?[0-9]+)")
_REPLACED = re.compile(
    r"Resetting GCache seqno map due to|Switching to SST|IST will be unavailable"
)
_CAUGHT_UP = re.compile(r"IST received: *[0-9a-f-]+:[0-9]")


def came_back(lines: Iterable[str]) -> Transfer | None:
    """How a server came back, by the lines of its log; None: it did not, or they do not say.

    Of several times that it did the last one counts, from its beginning on.
    """
    _, found, text = "\n".join(lines).rpartition(_REQUIRED)
    if not found:
        return None
    had, has = _HAD.search(text), _HAS.search(text)
    moved = had is not None and has is not None and had[1] != has[1]
    if moved or _REPLACED.search(text):
        return "sst"
    return "ist" if _CAUGHT_UP.search(text) else None

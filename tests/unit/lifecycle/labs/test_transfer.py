"""How a node came back to its cluster, by what Galera logs of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.fake.servers import FakeServers
from lab.lifecycle.labs.transfer import came_back
from lab.lifecycle.labs.up import up
from lab.lifecycle.labs.upgrade import upgrade
from lab.requests.labs import UpgradeLab
from lab.views.upgrades import Transfer
from tests.support.lifecycle_world import World, lab_request

OURS = "259d2792-eb0d-11f1-8b0e-2349d6030cc2"
NOBODY = "00000000-0000-0000-0000-000000000000"


def joined(local: str, *more: str) -> str:
    """What a node logs that has the position ``local`` and needs a state transfer."""
    lines = (
        "[Note] WSREP: State transfer required: ",
        f"\tGroup state: {OURS}:12",
        f"\tLocal state: {local}",
        "[Note] WSREP: Running: 'wsrep_sst_rsync --role 'joiner' --address '10.0.0.3'",
        "[Note] WSREP: Check if state gap can be serviced using IST",
        *more,
    )
    return "\n".join(["[Note] WSREP: Found saved state", *lines])


# The program for an SST ends, and "SST received" is logged, with nothing received as well.
IST = joined(
    f"{OURS}:9",
    f"[Note] WSREP: SST received: {OURS}:9",
    f"[Note] WSREP: Installed new state from SST: {OURS}:9",
    "[Note] WSREP: Receiving IST: 3 writesets, seqnos 10-12",
    f"[Note] WSREP: IST received: {OURS}:12",
)
# What was written meanwhile follows the files.
SST = joined(
    f"{OURS}:9",
    "[Note] WSREP: Resetting GCache seqno map due to seqno gap: 9..11",
    f"[Note] WSREP: Installed new state from SST: {OURS}:11",
    "[Note] WSREP: Receiving IST: 1 writesets, seqnos 12-12",
    f"[Note] WSREP: IST received: {OURS}:12",
)
WITHOUT_STATE = joined(
    f"{NOBODY}:-1",
    f"[Note] WSREP: Installed new state from SST: {OURS}:12",
    f"[Note] WSREP: IST received: {OURS}:12",
)
# Percona XtraDB Cluster before 8.0 ("Upgrading Percona XtraDB Cluster").
SWITCHED = joined(
    f"{OURS}:9",
    "[Note] WSREP: State gap can't be serviced using IST. Switching to SST",
    f"[Note] WSREP: SST received: {OURS}:12",
)


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ("", None),
        ("[Note] ready for connections", None),
        # The beginning is before the lines that are read: it may have been an SST.
        (f"[Note] WSREP: IST received: {OURS}:12", None),
        (joined(f"{OURS}:9"), None),
        (IST, "ist"),
        (SST, "sst"),
        (WITHOUT_STATE, "sst"),
        (SWITCHED, "sst"),
        (f"{SST}\n{IST}", "ist"),
        (f"{IST}\n{SST}", "sst"),
    ],
)
def test_what_the_log_says(said: str, found: Transfer | None) -> None:
    assert came_back(said.splitlines()) == found


def test_it_is_reported_of_each_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects from an SST that nobody sees: it brings data files of the older series."""
    logs = iter([SST, IST])
    monkeypatch.setattr(FakeServers, "log", lambda *_: next(logs))
    with World(tmp_path).open() as ctx:
        up(ctx, lab_request("galera", "shop", nodes=2, engine="mariadb:10.11"))
        steps = upgrade(ctx, UpgradeLab(lab="shop", to="mariadb:11.8"), timeout=20).steps
    assert [(step.node, step.transfer) for step in steps] == [("n2", "sst"), ("n1", "ist")]
    assert [step.log for step in steps] == [(), ()]

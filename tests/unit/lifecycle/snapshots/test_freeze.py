"""Nodes that are brought to rest before their disks are captured."""

from __future__ import annotations

import pytest

from lab.blueprints.rejoin import last_of
from lab.errors import NotReady

HISTORY = "0fd7f221-e597-11f1-869e-4f5edd524c08"
OTHER = "0fd7f221-e597-11f1-869e-000000000000"


def test_all_are_given_the_last_step_that_any_saw() -> None:
    """Protects clones from transfers: who left first has not seen the others leave."""
    assert last_of([f"{HISTORY}:7\n", f"{HISTORY}:9\n", f"{HISTORY}:8\n"]) == 9


@pytest.mark.parametrize(
    "said",
    [f"{HISTORY}:-1\n", f"{OTHER}:7\n", "", ":\n", f"{HISTORY}:7", f"{HISTORY}:7\n; reboot\n"],
)
def test_a_stop_that_was_not_clean_is_no_template(said: str) -> None:
    """Protects clones from disks that need a recovery, and hosts from what guests print."""
    with pytest.raises(NotReady):
        last_of([f"{HISTORY}:7\n", said])

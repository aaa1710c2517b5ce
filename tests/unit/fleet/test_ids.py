"""Ids of jobs say whose they are."""

from __future__ import annotations

import uuid

from lab.fleet import ids


def test_ids_say_their_host() -> None:
    """Protects requests for a job at any host: it is found where it is."""
    hosts = [f"h{number}" for number in range(200)]
    made = {ids.job_id("h7") for _ in range(1000)}
    assert len(made) == 1000
    for one in made:
        parsed = uuid.UUID(one)
        assert (parsed.version, parsed.variant, str(parsed)) == (8, uuid.RFC_4122, one)
        assert ids.host_of(one, hosts) == "h7"
        assert ids.host_of(one, ["h1"]) == ""
    assert ids.host_of(str(uuid.uuid4()), hosts) is None
    assert ids.host_of("", hosts) is None

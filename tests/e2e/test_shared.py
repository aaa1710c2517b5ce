"""What clones of a template share is what docs/templates.md says, on a real pair of them."""

from __future__ import annotations

import time
import uuid

import pytest

from tests.e2e.e2e_site import PXC, Site

pytestmark = [pytest.mark.e2e, pytest.mark.rare]

_GREGORIAN = 0x01B21DD213814000
"""Tenths of microseconds between the epochs of UUIDs of version 1 (1582) and of Unix."""


def made(site: Site, lab: str) -> uuid.UUID:
    """What ``UUID()`` gives on the first node."""
    found = uuid.UUID(str(site.sql(lab, "n1", "SELECT UUID()")[0][0]))
    assert found.version == 1
    return found


def behind(found: uuid.UUID) -> float:
    """By how many seconds the time inside is behind ours."""
    return time.time() - (found.time - _GREGORIAN) / 1e7


def test_uuid_of_clones(site: Site) -> None:
    """Node and sequence are the template's, and so is the time; a restart cures the time.

    Random functions are the clones' own, so the hint to use them is right.
    """
    with site.up(*PXC, "--nodes", "1") as one, site.up(*PXC, "--nodes", "1") as other:
        names = [one["name"], other["name"]]
        first, second = (made(site, name) for name in names)
        assert (first.node, first.clock_seq) == (second.node, second.clock_seq)
        age = time.time() - site.template(1)["created_at"]
        assert all(1 < behind(found) < age + 60 for found in (first, second))
        random = [site.sql(name, "n1", "SELECT UUID_v4(), UUID_v7(), RAND()")[0] for name in names]
        assert not set(random[0]) & set(random[1])
        site.lab("stop", names[0])
        site.lab("start", names[0], timeout=600)
        again = made(site, names[0])
        assert abs(behind(again)) < 60
        assert again.clock_seq != first.clock_seq


def test_increments_of_a_cluster(site: Site) -> None:
    """Ids of three nodes are three apart, until Galera no longer controls them."""
    with site.up(*PXC, "--nodes", "3") as lab:
        name = lab["name"]
        step = "SELECT @@GLOBAL.auto_increment_increment"
        assert str(site.sql(name, "n1", step)[0][0]) == "3"
        for statement in (
            "SET GLOBAL wsrep_auto_increment_control = OFF",
            "SET GLOBAL auto_increment_increment = 1",
            "SET GLOBAL auto_increment_offset = 1",
        ):
            site.sql(name, "n1", statement)
        assert str(site.sql(name, "n1", step)[0][0]) == "1"

"""The timeline and the index of a bundle."""

from __future__ import annotations

from lab.bundle import page
from lab.bundle.page import Moment

LOG = """2026-11-29T10:00:01.250000+01:00 n1 mariadbd[812]: WSREP: view 3
-- Boot 3f --
2026-99-99T10:00:01.250000+01:00 n1 mariadbd[812]: no such day
0001-01-01T00:00:00.000000+23:59 n1 mariadbd[812]: before all days
2026-11-29T09:00:02.5+0000 n1 mariadbd[812]: [ERROR] aborting
"""
MANIFEST = {
    "at": 0.0,
    "why": "<b>it failed</b>",
    "lab": {"name": "shop", "state": "degraded", "blueprint": "pxc", "engine": "mariadb"},
    "nodes": [{"name": "n1", "role": "member", "state": "lost", "why": "<script>", "engine": None}],
    "versions": {"lab": "1"},
    "missing": [{"what": "n2: guest", "why": "it is stopped"}],
    "files": {"nodes/n1/error.log": {"size": 5}},
}


def test_lines_of_all_nodes_are_one_timeline() -> None:
    """Protects who looks for what came first."""
    found = page.merged([*page.moments("n1", LOG), Moment(1764406801.9, "lab", "restart")])
    assert [(one.where, one.text) for one in found][:2] == [
        ("lab", "restart"), ("n1", "mariadbd[812]: WSREP: view 3"),
    ] or [one.where for one in found] == ["n1", "lab", "n1"]  # fmt: skip
    assert len(found) == 3
    assert [one.at for one in found] == sorted(one.at for one in found)
    assert "09:00:02.500" in page.as_text(found)


def test_nothing_of_a_guest_is_markup() -> None:
    """Protects who opens a bundle that somebody sent."""
    found = page.index(MANIFEST, [Moment(0.0, "n1", "<img src=x onerror=alert(1)>")])
    assert "<script>" not in found
    assert "<img" not in found
    assert "<b>it" not in found
    assert "default-src 'none'" in found
    assert "n2: guest" in found

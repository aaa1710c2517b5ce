"""The picture of a lab's topology on its page."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from lab.api.web.picture import HIGH, WIDE, picture
from lab.blueprints import Link
from lab.views.labs import Lab, NodeView
from tests.support.page_visit import visit
from tests.support.serve_world import site

CHAIN = (Link("n1", "n2"), Link("n2", "n3", "1h late"))
RING = (Link("n3", "n1"), Link("n1", "n2"), Link("n2", "n3"))
FAN_IN = (Link("n1", "n3"), Link("n2", "n3"))
STAR = (Link("n1", "n2"), Link("n1", "n3"))


def lab(*links: Link, role: str = "source", behind: int | None = None) -> Lab:
    nodes = tuple(
        NodeView(f"n{n}", role, "ready", "127.0.0.1", n, n, f"lab-n{n}", behind=behind)
        for n in (1, 2, 3)
    )
    return Lab("shop", "mariadb", "11", "ready", nodes, blueprint="x", links=links)


@pytest.mark.parametrize("links", [(), CHAIN, RING, FAN_IN, STAR])
def test_all_of_it_is_inside_and_apart(links: tuple[Link, ...]) -> None:
    """Protects readability: no box covers another, no line leaves the picture."""
    drawn = picture(lab(*links, role="member"))
    assert [box.node.name for box in sorted(drawn.boxes, key=lambda box: box.node.name)] == [
        "n1", "n2", "n3"]  # fmt: skip
    for number, one in enumerate(drawn.boxes):
        assert 0 < one.x < drawn.width - WIDE
        assert 0 < one.y < drawn.height - HIGH
        for other in drawn.boxes[number + 1 :]:
            assert abs(one.x - other.x) >= WIDE or abs(one.y - other.y) >= HIGH
    assert len(drawn.arrows) == len(links)
    for arrow in drawn.arrows:
        numbers = [int(text) for text in re.findall(r"\d+", arrow.path)]
        assert all(0 < x < drawn.width for x in numbers[::2])
        assert all(0 < y < drawn.height for y in numbers[1::2])


def test_arrows_say_what_they_are() -> None:
    """Protects who looks for lag: the kind of a link, and what its replica lacks."""
    assert [arrow.text for arrow in picture(lab(*CHAIN, behind=2)).arrows] == [
        "2 behind", "1h late, 2 behind"]  # fmt: skip
    assert [arrow.text for arrow in picture(lab(*CHAIN, behind=0)).arrows] == ["", "1h late"]
    assert picture(lab(*CHAIN)).cluster is None
    assert picture(lab(role="member")).cluster is not None


def test_the_page_of_a_lab_has_it(tmp_path: Path) -> None:
    """Protects everybody who looks at it, also without seeing it: its title says the links."""
    with site(tmp_path) as here:
        here.make("shop", blueprint="replication", nodes=3)
        here.make("alone", blueprint="single", nodes=1)
        with visit(here) as client:
            page = client.get("/labs/shop").text
            assert "<svg" not in client.get("/labs/alone").text
        (drawn,) = re.findall(r"<svg.*?</svg>", page, re.S)
        root = ET.fromstring(drawn)  # noqa: S314  our own page
        assert root.findtext("title") == ("Topology: n2 replicates from n1, n3 replicates from n1")
        assert len([one for one in root.iter("rect") if one.get("class") == "node"]) == 3
        assert "style=" not in drawn

"""Members of a group: what they boot with, who starts a group that stopped; on real servers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lab.blueprints import Engine, Member, Situation, planned
from lab.blueprints.group import GROUP
from lab.config.profile import EngineProfile
from lab.errors import InvalidSpec, NotReady
from lab.guest.network import inner_address
from lab.imagebuild.recipe import load
from lab.spec import LabSpec
from lab.units import MIB
from tests import ROOT

RECIPE = load("mysql")
ENGINE = Engine(
    "mysql", "9.7", (ROOT / "images/mysql/my.cnf").read_text(), RECIPE.config, "mysql", 100, 101,
    service="mysql.service",
)  # fmt: skip
ENGINES = dict.fromkeys(("n1", "n2", "n3"), ENGINE)
MEMBERS = [Member(f"n{number}", number, inner_address(number), "member") for number in (1, 2, 3)]
UUID = "9a6b1f2e-0000-4000-8000-000000000001"


@pytest.mark.parametrize("member", MEMBERS[:2], ids=lambda member: member.name)
def test_config(golden: Callable[[str, str], None], member: Member) -> None:
    """Protects every setting of the servers: a change must be meant."""
    files = GROUP.files(member, MEMBERS, ENGINE, 768 * MIB, EngineProfile())
    golden(f"blueprint/group-{member.name}.cnf", files[ENGINE.config_path].content.decode())
    peers = files["/etc/lab/group"].content.decode().splitlines()
    assert peers == [f"{other.address} 33061" for other in MEMBERS if other != member]


def test_it_has_members() -> None:
    assert [plan.role for plan in planned(LabSpec("group"))] == ["member"] * 3
    with pytest.raises(InvalidSpec, match="two nodes at least, not 1"):
        planned(LabSpec("group", nodes=1))
    assert [end.nodes for end in GROUP.endpoints(MEMBERS)] == [("n1",), ("n2", "n3")]
    assert [end.nodes for end in GROUP.endpoints([])] == [(), ()], "it is being created"
    assert GROUP.role("member", {"role": "primary"}) == "primary"
    assert GROUP.role("member", {"role": "'; DROP"}) == "member"


@pytest.mark.parametrize("view", ["1:2'); DROP TABLE a; --", "\\", "\n"])
def test_what_a_member_says_is_no_sql(view: str) -> None:
    """Protects members from the root of another one."""
    assert view not in GROUP.question("member", {"n1": {"view": view}})
    assert "unknown: n1 does not answer" in GROUP.question("member", {"n1": {}})


def standing(
    executed: str, received: str = "", *, member: str = "OFFLINE", reachable: int = 0
) -> str:
    rows = {
        "server": "active", "member": member, "members": "3" if reachable else "1",
        "reachable": str(reachable), "executed": executed, "received": received,
    }  # fmt: skip
    return "".join(f"{name}\t{value}\n" for name, value in rows.items())


def orders(
    *standings: str, all_here: bool = True, waited: bool = False, given: int = 0
) -> list[tuple[str, str]]:
    """Who is given which order."""
    by_node = {f"n{number}": text for number, text in enumerate(standings, 1)}
    before = {(node, order): given for node in by_node for order in ("bootstrap", "leave")}
    found = GROUP.remedies(Situation(by_node, all_here, waited, before), ENGINES)
    return [(one.node, one.order) for one in found]


def test_who_has_received_the_most_starts_the_group() -> None:
    """Protects acknowledged transactions: also those that are received and not executed yet."""
    assert orders(
        standing(f"{UUID}:1-90"), standing(f"{UUID}:1-80", f"{UUID}:1-95"), standing(f"{UUID}:1-92")
    ) == [("n2", "bootstrap")]
    assert orders(*[standing("")] * 3) == [("n1", "bootstrap")]
    assert orders(*[standing("")] * 3, given=2) == []


def test_a_group_that_lives_is_left_alone() -> None:
    serving = standing(f"{UUID}:1-9", member="ONLINE", reachable=2)
    assert orders(serving, standing(f"{UUID}:1-99"), standing("")) == []


def test_a_minority_leaves_before_the_group_is_started() -> None:
    """Protects what the others have: who is left may lack transactions."""
    left = standing(f"{UUID}:1-9", member="ONLINE", reachable=1)
    assert orders(left, standing(f"{UUID}:1-9"), standing("")) == [("n1", "leave")]
    assert orders(left, left, left) == [], "they may find each other again"
    assert len(orders(left, left, left, waited=True)) == 3


def test_nobody_starts_a_group_while_it_is_not_known_who_is_ahead() -> None:
    assert orders(standing(""), "server\tactive\n", standing("")) == []
    assert orders(standing(""), "server\tactivating\n", standing("")) == []
    with pytest.raises(NotReady, match="a node that does not run may have transactions"):
        orders(standing(""), standing(""), all_here=False)
    with pytest.raises(NotReady, match="not a GTID set"):
        orders(standing(""), standing("what?"), standing(""))
    with pytest.raises(NotReady, match="n2 has transactions that n1 has not"):
        orders(standing(f"{UUID}:1-9"), standing(f"{UUID}:5-11"), standing(""))
    assert orders("server\tfailed\n", standing(""), standing("")) == [("n1", "restart")]

"""Members of a group: what they boot with, who starts a group that stopped; on real servers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from lab.blueprints import Engine, Member, Promotion, Release, Situation, planned
from lab.blueprints.group import GROUP
from lab.config.profile import EngineProfile
from lab.errors import Conflict, InvalidSpec, NotReady
from lab.guest.network import inner_address
from lab.imagebuild.recipe import load
from lab.spec import LabSpec
from lab.units import MIB
from lab.wait import Deadline
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
    assert view not in GROUP.question("member", {"n1": {"view": view}}, Release())
    assert "unknown: n1 does not answer" in GROUP.question("member", {"n1": {}}, Release())


def standing(
    executed: str, received: str = "", *, member: str = "OFFLINE", reachable: int = 0
) -> str:
    rows = {
        "server": "active", "member": member, "members": "3" if reachable else "1",
        "reachable": str(reachable), "executed": executed, "received": received,
    }  # fmt: skip
    return "".join(f"{name}\t{value}\n" for name, value in rows.items())


def actions(
    *standings: str, all_here: bool = True, waited: bool = False, given: int = 0
) -> list[tuple[str, str]]:
    """Who is given which action."""
    by_node = {f"n{number}": text for number, text in enumerate(standings, 1)}
    before = {(node, action): given for node in by_node for action in ("bootstrap", "leave")}
    found = GROUP.remedies(Situation(by_node, all_here, waited, before), ENGINES)
    return [(one.node, one.action) for one in found]


def test_who_has_received_the_most_starts_the_group() -> None:
    """Protects acknowledged transactions: also those that are received and not executed yet."""
    assert actions(
        standing(f"{UUID}:1-90"), standing(f"{UUID}:1-80", f"{UUID}:1-95"), standing(f"{UUID}:1-92")
    ) == [("n2", "bootstrap")]
    assert actions(*[standing("")] * 3) == [("n1", "bootstrap")]
    assert actions(*[standing("")] * 3, given=2) == []


def test_a_group_that_lives_is_left_alone() -> None:
    serving = standing(f"{UUID}:1-9", member="ONLINE", reachable=2)
    assert actions(serving, standing(f"{UUID}:1-99"), standing("")) == []


def test_a_minority_leaves_before_the_group_is_started() -> None:
    """Protects what the others have: who is left may lack transactions."""
    left = standing(f"{UUID}:1-9", member="ONLINE", reachable=1)
    assert actions(left, standing(f"{UUID}:1-9"), standing("")) == [("n1", "leave")]
    assert actions(left, left, left) == [], "they may find each other again"
    assert len(actions(left, left, left, waited=True)) == 3


def test_nobody_starts_a_group_while_it_is_not_known_who_is_ahead() -> None:
    assert actions(standing(""), "server\tactive\n", standing("")) == []
    assert actions(standing(""), "server\tactivating\n", standing("")) == []
    with pytest.raises(NotReady, match="a node that does not run may have transactions"):
        actions(standing(""), standing(""), all_here=False)
    with pytest.raises(NotReady, match="not a GTID set"):
        actions(standing(""), standing("what?"), standing(""))
    with pytest.raises(NotReady, match="n2 has transactions that n1 has not"):
        actions(standing(f"{UUID}:1-9"), standing(f"{UUID}:5-11"), standing(""))
    assert actions("server\tfailed\n", standing(""), standing("")) == [("n1", "restart")]


def test_a_group_is_not_started_while_a_member_leaves() -> None:
    """Protects the start of the group: it is refused while STOP GROUP_REPLICATION runs."""
    leaves = standing(f"{UUID}:1-9", member="ONLINE", reachable=1) + "leaves\tyes\n"
    assert actions(leaves, standing(f"{UUID}:1-9"), standing("")) == []
    assert GROUP.unchanging(leaves) != GROUP.unchanging(leaves.replace("leaves\tyes\n", ""))


def returns(
    *standings: str, waited: bool = False, given: int = 0, password: str = ""
) -> list[tuple[str, tuple[str, ...], bytes]]:
    """Who is ordered to join again: the program and what it reads."""
    by_node = {f"n{number}": text for number, text in enumerate(standings, 1)}
    before = {("n2", "return"): given}
    found = GROUP.remedies(Situation(by_node, True, waited, before, password), ENGINES)
    return [(one.node, one.argv, one.stdin) for one in found]


LEAVE = ("/usr/lib/lab/regroup", "leave", "mysql.service")
SERVING = standing(f"{UUID}:1-9", member="ONLINE", reachable=2)
JOINED = "joined\tyes\n"
DENIED = "recovery error\t1045\n"


@pytest.mark.parametrize("state", ["OFFLINE", "ERROR"])
def test_a_member_that_has_left_joins_again(state: str) -> None:
    """Protects `lab start` from members that nothing on their node has join again."""
    out = standing(f"{UUID}:1-8", member=state, reachable=1)
    assert returns(SERVING, out + JOINED) == [("n2", LEAVE, b"")]
    assert returns(SERVING, out) == [], "it has booted, and may be in START GROUP_REPLICATION"
    assert returns(SERVING, out, waited=True) == [("n2", LEAVE, b"")]
    assert returns(SERVING, out + JOINED + "leaves\tyes\n") == []
    assert returns(SERVING, "server\tactivating\n" + JOINED) == []
    assert returns(SERVING, out + JOINED, given=2) == [], "it cannot, and its log says why"
    assert returns(SERVING, out + JOINED, "server\tfailed\n")[1:] == [("n2", LEAVE, b"")]


def test_a_member_of_another_password_is_given_the_one_of_the_lab() -> None:
    """Protects a node that was rolled back: its recovery has the password of the template."""
    refused = standing("", member="RECOVERING", reachable=2) + JOINED + DENIED
    ((node, argv, login),) = returns(SERVING, refused, password="secret")
    assert (node, argv) == ("n2", LEAVE)
    statements = GROUP.personalise_statements(MEMBERS[0], MEMBERS, ENGINE, "lab", "secret")
    assert login.decode() == f"{statements[-1]}\n"
    assert b"FOR CHANNEL 'group_replication_recovery'" in login
    left = standing("", member="ERROR") + JOINED
    assert returns(SERVING, left, password="secret") == [("n2", LEAVE, login)]
    assert returns(SERVING, refused) == [], "the password is not known yet"
    assert returns(SERVING, refused.replace("1045", "2003"), password="secret") == []
    assert returns(SERVING, refused.replace(DENIED, ""), password="secret") == []
    assert returns(SERVING, refused, password="secret", given=2) == []


def test_what_a_recovery_fails_with_is_no_change() -> None:
    """Protects the patience with a group: each attempt of a recovery has its own error."""
    refused = standing("", member="RECOVERING", reachable=2)
    assert GROUP.unchanging(refused + DENIED) == GROUP.unchanging(refused)


class Answers:
    """A cluster of which each node says what it was given; what else is run is kept."""

    def __init__(self, **standings: str) -> None:
        self.standings, self.ran = standings, list[tuple[str, str]]()
        self.members = [one for one in MEMBERS if one.name in standings]
        self.says: Callable[[str], str] = self.standings.__getitem__

    def run(
        self, member: Member, argv: Sequence[str], *, stdin: bytes = b"", timeout: float
    ) -> str:
        assert timeout > 0
        if argv[:2] == ("/usr/lib/lab/regroup", "bootstrap"):
            self.ran.append((member.name, "bootstrap"))
            return ""
        if argv[0] == "/usr/lib/lab/regroup":
            said = self.says(member.name)
            if not said:
                raise NotReady("silent")
            return said
        self.ran.append((member.name, stdin.decode().strip()))
        return ""

    def each(self, step: Callable[[Member], Any]) -> list[Any]:
        return [step(member) for member in self.members]


def promote(cluster: Answers, to: str, *, force: bool = False) -> list[str]:
    """Which nodes were powered off."""
    fenced: list[str] = []
    asked = Promotion(to, ("n1", "n2", "n3"), Deadline.after(9), force=force, fence=fenced.append)
    GROUP.promote(cluster, ENGINES, asked)
    return fenced


def member(number: int, role: str, reaches: str, *, state: str = "ONLINE") -> str:
    rows = {
        "server": "active", "member": state, "members": "3", "role": role,
        "reachable": str(reaches.count(",") + 1), "reaches": reaches,
        "uuid": f"9a6b1f2e-0000-4000-8000-00000000000{number}",
    }  # fmt: skip
    return "".join(f"{name}\t{value}\n" for name, value in rows.items())


def test_a_member_is_made_the_primary() -> None:
    everyone = "10.77.0.1,10.77.0.2,10.77.0.3"
    group = Answers(n1=member(1, "primary", everyone), n2=member(2, "secondary", everyone))
    promote(group, "n2")
    uuid = "9a6b1f2e-0000-4000-8000-000000000002"
    assert group.ran == [("n2", f"SELECT group_replication_set_as_primary('{uuid}', 10)")]
    promote(group, "n1")
    assert len(group.ran) == 1, "it is already"
    with pytest.raises(NotReady, match="n3 is not in the group"):
        promote(group, "n3")


def test_a_group_that_has_not_noticed_its_loss() -> None:
    """Protects from a primary that takes no writes: members that were lost count for seconds."""
    everyone = "10.77.0.1,10.77.0.2,10.77.0.3"
    sees_all, alone = member(2, "primary", everyone), member(2, "primary", "10.77.0.2")
    with pytest.raises(Conflict, match="n2 is the primary already, and its group has lost its maj"):
        promote(Answers(n1="", n2=sees_all, n3=""), "n2")
    with pytest.raises(Conflict, match="the group of n2 has lost its majority"):
        promote(Answers(n2=member(2, "secondary", everyone)), "n2")
    group = Answers(n1="", n2=sees_all, n3="")
    looks = iter([sees_all, sees_all, alone, alone, alone])
    group.says = lambda name: next(looks) if name == "n2" else ""
    assert promote(group, "n2", force=True) == ["n1", "n3"]
    assert ("n2", "SET GLOBAL group_replication_force_members = '10.77.0.2:33061'") in group.ran


def test_a_part_of_a_group_is_not_made_one_beside_the_other() -> None:
    """Protects groups from a second one of the same name."""
    alone = member(1, "primary", "10.77.0.1")
    with pytest.raises(Conflict, match="has lost its majority"):
        promote(Answers(n1=alone), "n1")
    majority = member(2, "primary", "10.77.0.2,10.77.0.3")
    with pytest.raises(Conflict, match="n1 has lost its group, which others are in"):
        promote(Answers(n1=alone, n2=majority), "n1", force=True)
    other = member(2, "secondary", "10.77.0.2")
    with pytest.raises(Conflict, match="n2 runs, and n1 does not reach it"):
        promote(Answers(n1=alone, n2=other), "n1", force=True)
    group = Answers(n1=alone, n2=member(2, "", "", state="OFFLINE"), n3="")
    assert promote(group, "n1", force=True) == ["n3"]
    assert group.ran == [
        ("n1", "SET GLOBAL group_replication_force_members = '10.77.0.1:33061'"),
        ("n1", "SET GLOBAL group_replication_force_members = ''"),
    ]


def test_who_stopped_last_starts_a_group_of_another_name() -> None:
    """Protects branches: an event may have committed something once the others had stopped."""
    behind, ahead = standing(f"{UUID}:1-8"), standing(f"{UUID}:1-9")
    group = Answers(n1=behind, n2=ahead, n3=behind)
    GROUP.identify(group, ENGINES, 1 << 21)
    assert [node for node, what in group.ran if what == "bootstrap"] == ["n2"]

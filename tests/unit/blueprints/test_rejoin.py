"""Which nodes of a Galera cluster that went down need help, and which; pure decisions."""

from __future__ import annotations

import pytest

from lab.blueprints import Engine, Situation, blueprint
from lab.errors import NotReady

ENGINE = Engine("mariadb", "11.8", "", "", "mysql", 1, 1, service="mariadb.service")
ENGINES = {f"n{number}": ENGINE for number in range(1, 6)}
UUID = "0fd7f221-e597-11f1-869e-4f5edd524c08"
OTHER = "1fd7f221-e597-11f1-869e-4f5edd524c08"
NOWHERE = "00000000-0000-0000-0000-000000000000"


def stands(
    seqno: int | None = 7,
    *,
    me: str = "",
    view: str = "",
    server: str = "activating",
    status: str = "",
    comment: str = "",
    history: str = UUID,
    doubtful: bool = False,
    more: str = "",
) -> str:
    """What ``rejoin state`` says; ``view``: its members, a letter each."""
    lines = [f"server\t{server}"]
    if seqno is not None:
        lines += [f"position\t{history}:{seqno}", f"doubtful\t{'yes' if doubtful else 'no'}"]
    lines += [f"me\t{me}"] if me else []
    lines += [f"member\t{member}" for member in view]
    lines += [f"wsrep_cluster_status\t{status}"] if status else []
    lines += [f"wsrep_local_state_comment\t{comment}"] if comment else []
    lines += [f"{more}\tyes"] if more else []
    return "".join(f"{line}\n" for line in lines)


PRIMARY = stands(server="active", status="Primary", comment="Synced")
LOST = stands(server="active", status="Disconnected", comment="Inconsistent")
A, B, C = (stands(me=me, view="abc") for me in "abc")


def actions(*nodes: str, all_here: bool = True, waited: bool = False) -> dict[str, str]:
    """The actions by node, n1 first."""
    standings = {f"n{number}": text for number, text in enumerate(nodes, 1)}
    situation = Situation(standings, all_here, waited, {})
    found = blueprint("galera").remedies(situation, ENGINES)
    assert all(remedy.why for remedy in found)
    return {remedy.node: remedy.action for remedy in found}


@pytest.mark.parametrize(
    "nodes",
    [
        (PRIMARY, PRIMARY),
        (A, B, C),
        (stands(None), stands(9)),
        ("", ""),
        (PRIMARY, stands(3), stands(3, more="transfer")),
        (stands(9, more="bootstraps"), stands(7)),
        # Two can restore their view, the third will join them.
        (stands(me="a", view="ab"), stands(me="b", view="ab"), C),
    ],
    ids=["ready", "restorable", "recovering", "silent", "joining", "bootstrapping", "partly"],
)
def test_who_helps_itself_is_left_alone(nodes: tuple[str, ...]) -> None:
    assert actions(*nodes) == {}


def test_an_inconsistent_node_is_given_data() -> None:
    """A CREATE TABLE ... SELECT right before a crash: its tables are ahead of its position."""
    assert actions(LOST, PRIMARY, PRIMARY) == {"n1": "transfer"}


@pytest.mark.parametrize("server", ["failed", "inactive"])
def test_an_ended_server_is_started_again(server: str) -> None:
    assert actions(PRIMARY, stands(server=server), PRIMARY) == {"n2": "restart"}
    assert actions(A, B, stands(me="c", view="abc", server=server)) == {"n3": "restart"}


def test_a_node_that_never_finds_the_others_is_given_data() -> None:
    assert actions(PRIMARY, stands(3), stands(3, more="transfer"), waited=True) == {
        "n2": "transfer"
    }
    assert actions(PRIMARY, stands(None), waited=True) == {}, "its recovery takes long"


def test_without_a_common_view_the_most_advanced_starts() -> None:
    """n1 noted the loss of n3, n2 did not any more: each waits for another group."""
    torn = (stands(7, me="a", view="ab"), stands(9, me="b", view="abc"), stands(8, me="c"))
    assert actions(*torn) == {"n2": "bootstrap"}


def test_nobody_has_a_view() -> None:
    """All were stopped in the same moment, each in an orderly way."""
    ended = stands(8, server="failed")
    assert actions(stands(7), ended, stands(7)) == {"n2": "bootstrap"}
    assert actions(stands(9), ended, ended) == {"n1": "bootstrap", "n2": "restart", "n3": "restart"}


@pytest.mark.parametrize(
    "better",
    [stands(-1), stands(9, doubtful=True), stands(9, history=OTHER), stands(9, history=NOWHERE)],
    ids=["unknown", "half of another's data", "another history", "none"],
)
def test_what_the_most_advanced_is(better: str) -> None:
    """A high number alone means nothing."""
    assert actions(better, stands(5), stands(6)) == {"n3": "bootstrap"}


def test_what_a_running_server_knows_counts() -> None:
    """It was paused and resumed alone: the position of its start is out of date."""
    resumed = stands(5, server="active", status="non-Primary") + "wsrep_last_committed\t9\n"
    assert actions(resumed, stands(7), stands(7)) == {"n1": "bootstrap"}


def test_a_view_that_is_not_restored_is_given_up() -> None:
    assert actions(A, B, C, waited=True) == {"n1": "bootstrap"}


def test_a_part_of_the_nodes_does_not_start_alone() -> None:
    """Those that do not run may have newer data, which would be lost silently."""
    with pytest.raises(NotReady, match="cannot bootstrap from n1") as failure:
        actions(A, all_here=False)
    assert "lab start" in failure.value.hint
    # It was the last one: the others had left before.
    assert actions(stands(me="a", view="a"), all_here=False) == {}


def test_an_order_that_did_not_help_is_given_twice_at_most() -> None:
    """Then a server that only ends is given the data of another node; one alone has no other."""
    ended = stands(server="failed")
    given = {("n2", "restart"): 2}
    both = {"n1": PRIMARY, "n2": ended}
    for count, expected in ((given, ["transfer"]), ({**given, ("n2", "transfer"): 2}, [])):
        found = blueprint("galera").remedies(Situation(both, True, False, count), ENGINES)
        assert [one.action for one in found] == expected
    alone = Situation({"n2": stands(server="failed", me="a", view="a")}, True, False, given)
    assert blueprint("galera").remedies(alone, ENGINES) == []


def test_data_are_not_given_up_before_there_is_a_cluster() -> None:
    """Protects from losing the positions of all nodes while none could be their donor."""
    ended, starts = stands(server="failed"), stands(9, more="bootstraps")
    situation = Situation({"n1": starts, "n2": ended}, True, False, {("n2", "restart"): 2})
    assert blueprint("galera").remedies(situation, ENGINES) == []


def test_remedies_are_programs_of_the_guest() -> None:
    """Protects the unit: it is that of the image, not one that is assumed."""
    torn = {"n1": stands(7, me="a", view="ab"), "n2": stands(9), "n3": stands(server="failed")}
    first, second = blueprint("galera").remedies(Situation(torn, True, False, {}), ENGINES)
    assert (first.node, first.argv[1:]) == ("n2", ("bootstrap", "mariadb.service"))
    assert (second.node, second.argv[1:]) == ("n3", ("restart", "mariadb.service"))

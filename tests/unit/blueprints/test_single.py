"""What a single server boots with, word for word, and when it is ready."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lab.blueprints import Engine, Member, Release, Situation, blueprint, planned
from lab.blueprints.server import without_groups
from lab.blueprints.single import SINGLE
from lab.config.profile import EngineProfile
from lab.errors import InvalidSpec
from lab.guest.network import inner_address
from lab.spec import LabSpec
from lab.units import MIB
from tests import ROOT

CONFIG = (ROOT / "images/mariadb/my.cnf").read_text()
PATH = "/etc/mysql/mariadb.conf.d/99-lab.cnf"
ENGINE = Engine("mariadb", "11.8.6", CONFIG, PATH, "mysql", 100, 101, service="mariadb.service")
NODE = Member("n1", 1, inner_address(1), "server")


def test_config(golden: Callable[[str, str], None]) -> None:
    """Protects every setting of the server: a change must be meant."""
    files = SINGLE.files(NODE, [NODE], ENGINE, 768 * MIB, EngineProfile())
    assert list(files) == [PATH]
    text = files[PATH].content.decode()
    golden("blueprint/single.cnf", text)
    assert "wsrep" not in text


def test_a_group_is_left_out_of_an_option_file() -> None:
    """Protects what is around the group: it may be the first, the last or in the middle."""
    assert without_groups("[a]\nx\n[galera]\ny\n[b]\nz\n", "galera") == "[a]\nx\n[b]\nz\n"
    assert without_groups("[galera]\ny\n", "galera") == ""
    assert without_groups("# z\n[a]\nx", "galera") == "# z\n[a]\nx"
    assert without_groups("[galera]\ny\n[sst]\nz\n[a]\nx\n", "galera", "sst") == "[a]\nx\n"


def test_it_has_one_node() -> None:
    """Protects users from a second server that would be empty: the message names the remedy."""
    (node,) = planned(LabSpec("single", memory=512 * MIB))
    assert (node.name, node.role, node.size.memory) == ("n1", "server", 512 * MIB)
    with pytest.raises(InvalidSpec, match="exactly one node, not 2") as error:
        planned(LabSpec("single", nodes=2))
    assert "pxc or galera" in error.value.hint
    assert blueprint("single") is SINGLE
    assert LabSpec("pxc").node_count == LabSpec("galera").node_count == 3


def test_it_is_ready_when_it_accepts_writes() -> None:
    """Protects users from a lab that is handed out read-only."""
    (writable,) = SINGLE.requirements("server", 1)
    assert "@@GLOBAL.read_only" in SINGLE.question("server", {}, Release())
    assert writable.found({"read_only": "OFF"}) == writable.value
    assert writable.found({"read_only": "ON"}) != writable.value
    assert writable.found({}) != writable.value
    assert "read_only = OFF" in writable.hint


def test_its_account_is_set_on_itself() -> None:
    statements = SINGLE.personalise_statements(NODE, [NODE], ENGINE, "lab", "s3cret", tls=True)
    assert statements[0] == "FLUSH LOCAL SSL"
    assert statements[1].startswith("ALTER USER 'lab'@'%'")
    assert statements[1].endswith("REQUIRE SSL ACCOUNT UNLOCK")
    assert not any("s3cret" in statement for statement in statements)


@pytest.mark.parametrize(
    ("standing", "given", "actions"),
    [
        ("server\tfailed\n", 0, ["restart"]),
        ("server\tinactive\n", 1, ["restart"]),
        ("server\tfailed\n", 2, []),
        ("server\tactivating\nposition\tx:1\n", 0, []),
        ("server\tactive\n", 0, []),
        ("", 0, []),
    ],
)
def test_a_server_that_ended_is_started_again(
    standing: str, given: int, actions: list[str]
) -> None:
    """Twice at most; a server that recovers is left alone, and no data are ever replaced."""
    situation = Situation({"n1": standing}, True, True, {("n1", "restart"): given})
    found = SINGLE.remedies(situation, {"n1": ENGINE})
    assert [remedy.action for remedy in found] == actions
    assert not any(remedy.replaces for remedy in found)
    assert all(remedy.argv[-1] == "mariadb.service" for remedy in found)

"""What the nodes of a Galera cluster boot with, word for word, and when they are ready."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import pytest

from lab.blueprints import Engine, Member, Release, blueprint, planned
from lab.blueprints.galera import GALERA, PXC
from lab.config.profile import PROFILES, EngineProfile
from lab.errors import CommandFailed, InvalidSpec
from lab.guest.network import inner_address
from lab.passwords import native
from lab.spec import LabSpec
from lab.units import MIB
from tests import ROOT

Golden = Callable[[str, str], None]
T = TypeVar("T")

CONFIG = ROOT / "images/mariadb/my.cnf"
CONFIG_PATH = "/etc/mysql/mariadb.conf.d/99-lab.cnf"
VIEW = "/var/lib/mysql/gvwstate.dat"
READY = {
    "wsrep_local_state_comment": "Synced",
    "wsrep_cluster_status": "Primary",
    "wsrep_ready": "ON",
    "wsrep_cluster_size": "3",
}

PLAIN = EngineProfile()


def engine(name: str = "mariadb") -> Engine:
    return Engine(name, "11.8.6", CONFIG.read_text(), CONFIG_PATH, "mysql", 100, 101)


def members(nodes: int) -> list[Member]:
    return [Member(f"n{index}", index, inner_address(index)) for index in range(1, nodes + 1)]


@pytest.mark.parametrize("nodes", [1, 3])
def test_config(golden: Golden, nodes: int) -> None:
    """Protects every setting of the server: a change must be meant."""
    everyone = members(nodes)
    files = GALERA.files(everyone[-1], everyone, engine(), 768 * MIB, PLAIN)
    golden(f"blueprint/galera-n{nodes}-of-{nodes}.cnf", files[CONFIG_PATH].content.decode())


@pytest.mark.parametrize("text", ["[mysqld]\nx = $unheard_of\n", "[mysqld]\nx = $(\n"])
def test_an_option_file_of_another_version(text: str) -> None:
    """Protects labs of imported images: an unknown variable of the option file is reported."""
    other = replace(engine(), config=text)
    with pytest.raises(InvalidSpec, match="this version of lab does not know"):
        GALERA.files(members(1)[0], members(1), other, 768 * MIB, PLAIN)


def test_view(golden: Golden) -> None:
    """Protects the forged view, without which every start is a state transfer."""
    everyone = members(3)
    view = GALERA.files(everyone[1], everyone, engine(), 768 * MIB, PLAIN)[VIEW]
    golden("blueprint/galera-n2-of-3.gvwstate", view.content.decode())
    assert (view.mode, view.user, view.group) == (0o660, 100, 101)


def test_all_nodes_have_the_same_view() -> None:
    """Protects the meeting: nodes that remember different views do not restore one."""
    everyone = members(3)
    views = [
        GALERA.files(member, everyone, engine(), MIB, PLAIN)[VIEW].content.decode()
        for member in everyone
    ]
    owners = [re.search(r"^my_uuid: (\S+)$", view, re.MULTILINE) for view in views]
    assert len({view.partition("#vwbeg")[2] for view in views}) == 1
    assert len({owner[1] for owner in owners if owner}) == 3
    for owner, view in zip(owners, views, strict=True):
        assert owner
        assert f"member: {owner[1]} 0" in view


def test_a_node_alone_has_no_view_and_nobody_to_find() -> None:
    files = GALERA.files(members(1)[0], members(1), engine(), MIB, PLAIN)
    assert VIEW not in files
    assert b"wsrep_cluster_address = gcomm://\n" in files[CONFIG_PATH].content


def test_nodes_differ_only_where_they_must() -> None:
    everyone = members(2)
    first, second = (
        GALERA.files(member, everyone, engine(), 768 * MIB, PLAIN)[CONFIG_PATH].content.decode()
        for member in everyone
    )
    different = [
        line.split(" = ")[0]
        for line, other in zip(first.splitlines(), second.splitlines(), strict=True)
        if line != other
    ]
    assert different == [
        "server_id", "wsrep_provider_options", "wsrep_node_name", "wsrep_node_address",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["mariadb", "percona-xtradb-cluster"])
def test_no_statement_holds_the_password(name: str) -> None:
    """Protects the password: statements end in logs."""
    first, second = both = members(2)
    statements = GALERA.personalise_statements(first, both, engine(name), "lab", "s3cret")
    assert not any("s3cret" in statement for statement in statements)
    assert any(native("s3cret") in statement for statement in statements)
    # Accounts are replicated: only one node may change them.
    others = GALERA.personalise_statements(second, both, engine(name), "lab", "s3cret")
    assert not any("ALTER USER" in statement for statement in others)
    assert any(
        "ALTER USER" in s
        for s in GALERA.personalise_statements(second, [second], engine(name), "lab", "x")
    )
    only = GALERA.personalise_statements(first, both, engine(name), "lab", "s3cret", tls=True)
    assert only[-1] == statements[-1].replace(" ACCOUNT", " REQUIRE SSL ACCOUNT")


def test_a_ready_node_meets_every_check() -> None:
    """What `lab status` lists: nothing that was looked at is left out because it is fine."""
    checks = GALERA.requirements("member", 3)
    assert [check.name for check in checks] == ["Synced", "Primary", "size 3", "wsrep_ready"]
    assert all(check.found(READY) == check.value for check in checks)
    assert {check.what: check.found(READY) for check in checks} == {
        f"{name} is {value}": value for name, value in READY.items()
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("wsrep_local_state_comment", "Joined"),
        ("wsrep_cluster_status", "non-Primary"),
        ("wsrep_ready", "OFF"),
        ("wsrep_cluster_size", "2"),
    ],
)
def test_what_is_unmet_is_named(name: str, value: str) -> None:
    """Protects users from a lab that is handed out too early, and from not knowing why."""
    assert unmet({**READY, name: value}) == [(f"{name} is {READY[name]}", value)]
    missing = {key: found for key, found in READY.items() if key != name}
    assert [found for _, found in unmet(missing)] == ["nothing"]


def unmet(answer: dict[str, str]) -> list[tuple[str, str]]:
    """What a node of three lacks by its answer, and what was found."""
    wanted = GALERA.requirements("member", 3)
    return [(c.what, c.found(answer)) for c in wanted if c.found(answer) != c.value]


def test_the_question_asks_for_all_that_is_wanted() -> None:
    prefix = GALERA.question("member", {}, Release()).partition("'")[2].rstrip("%'")
    assert prefix
    assert all(name.startswith(prefix) for name in READY)


def test_blueprints_are_found_by_name() -> None:
    assert blueprint("pxc") is PXC
    assert blueprint("galera") is GALERA
    nodes = planned(LabSpec("pxc", nodes=3))
    assert [(node.name, node.role) for node in nodes] == [(f"n{n}", "member") for n in (1, 2, 3)]
    with pytest.raises(InvalidSpec) as error:
        blueprint("galero")
    assert "galera" in error.value.hint


def test_a_profile_reaches_the_options() -> None:
    """Protects what was asked for: each option of a profile is in the file, and its log path."""
    node = members(1)[0]
    split = replace(engine(), log_directory="/var/lib/mysqllog")
    loose = PROFILES["disposable"].engine
    text = GALERA.files(node, [node], split, 1000 * MIB, loose)[CONFIG_PATH].content.decode()
    for line in (
        "innodb_doublewrite = OFF",
        "innodb_flush_log_at_trx_commit = 0",
        "innodb_io_capacity = 2000",
        "innodb_flush_method = O_DIRECT",
        "innodb_buffer_pool_size = 400M",
        "innodb_log_group_home_dir = /var/lib/mysqllog",
    ):
        assert f"{line}\n" in text
    assert "gcache.dir=/var/lib/mysqllog;" in text


@dataclass
class Nodes:
    """Nodes whose servers have a scheduler of events, and which note what they do.

    ``executing``: the numbers of events that are executed, by node.
    """

    members: list[Member]
    scheduler: str = "ON"
    executing: dict[str, list[int]] = field(default_factory=dict)
    done: list[str] = field(default_factory=list)

    def run(
        self,
        member: Member,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout: float,  # noqa: ARG002  part of the protocol
    ) -> str:
        """See Cluster."""
        if argv[0] != "/usr/lib/lab/sql":
            self.done.append(f"{member.name} {' '.join(argv)}")
            return f"0fd7f221-e597-11f1-869e-4f5edd524c08:{member.index}\n"
        said = [self._execute(member.name, line) for line in stdin.decode().splitlines()]
        return "".join(said)

    def each(self, step: Callable[[Member], T]) -> list[T]:
        """See Cluster."""
        return [step(member) for member in self.members]

    def _execute(self, node: str, statement: str) -> str:
        self.done.append(f"{node} {statement}")
        here = self.executing.get(node, [])
        if "LIKE 'event_scheduler'" in statement:
            return f"event_scheduler\t{self.scheduler}\n"
        if "PROCESSLIST" in statement:
            return "".join(f"{number}\n" for number in here)
        if statement.startswith("KILL "):
            number = int(statement.removeprefix("KILL "))
            here.remove(number)
            if number == 9:
                raise CommandFailed(["sql"], 255, stderr="Unknown thread id: 9")
        return ""


@pytest.mark.parametrize("scheduler", ["ON", "OFF", "DISABLED"])
def test_all_nodes_have_the_same_data_when_they_stop_for_other_identities(scheduler: str) -> None:
    """They are given one position then: what only some of them had would never reach the others."""
    nodes = Nodes(members(3), scheduler, {"n2": [8, 9]} if scheduler == "ON" else {})
    GALERA.identify(nodes, dict.fromkeys(("n1", "n2", "n3"), engine()), 1 << 21)
    stop = min(at for at, what in enumerate(nodes.done) if " stop " in what)
    before = nodes.done[:stop]
    ended = [at for at, what in enumerate(before) if "event_scheduler = OFF" in what]
    waited = [at for at, what in enumerate(before) if "wsrep_sync_wait" in what]
    assert len(ended) == (3 if scheduler == "ON" else 0)
    assert len(waited) == 3
    assert max(ended, default=-1) < min(waited)
    assert nodes.executing in ({}, {"n2": []})
    assert not any("wsrep_sync_wait" in what for what in nodes.done[stop:])

"""One code for one fact, as docs/cli.md has it, whichever verb meets it; on the fakes."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from lab.cli import main
from lab.lifecycle.core.context import Context
from lab.lifecycle.labs.power import stop
from lab.lifecycle.labs.up import up
from tests.support.lifecycle_world import World, lab_request

NO_LAB = [
    "status none", "env none", "stop none", "start none", "promote none n2",
    "upgrade none --to mariadb:11.8", "extend none 2h",
    "wait none", "wait none --for online", "sql none -e 'SELECT 1'", "exec none -- true",
    "ssh none -- true", "logs none", "console none", "snapshot take none", "snapshot ls none",
    "snapshot rm none x", "snapshot protect none x", "snapshot prune none", "rollback none",
    "branch none", "down none", "snapshot export none x -",
]  # fmt: skip
NO_NODE = [
    "stop on --node n9", "start on --node n9", "promote on n9",
    "upgrade on --to mariadb:11.8 --node n9", "wait on --for primary=n9",
    "sql on --node n9 -e 'SELECT 1'", "exec on --node n9 -- true", "ssh on --node n9 -- true",
    "logs on --node n9", "console on --node n9", "env on --node n9", "rollback on --node n9",
    "wait on --for 'SELECT 1' --node n9 --timeout 1",
]  # fmt: skip
NO_SNAPSHOT = [
    "rollback on --to none", "snapshot rm on none", "snapshot protect on none",
    "branch on --at none",
]  # fmt: skip
NO_OTHER = [
    "image show none", "image rm none", "template rm none", "dataset show none",
    "dataset rm none", "dataset refresh none", "dataset scan none", "up galera --image none",
    "up galera --dataset none", "token revoke none",
]  # fmt: skip
DOES_NOT_RUN = [
    "exec off -- true", "sql off -e 'SELECT 1'", "promote off n2",
    "upgrade off --to mariadb:11.8", "logs off", "console off",
    "ssh off -- true", "wait off --timeout 1", "wait off --for online --timeout 1",
    "status off --exit-code", "ls --exit-code",
]  # fmt: skip
EXISTS = ["up replication --name on", "branch on off", "run replication --name on -- true"]
INVALID = [
    "status ../x", "stop on --node zz", "up none", "up galera --nodes 12", "extend on 5",
    "wait on --for nonsense", "rollback on --timeout x", "promote single n1",
    "upgrade on --to mysql:9.7", "upgrade on --to mariadb:1.0", "up galera --set =",
    "up galera --ttl 5s", "up galera --ttl 5s --dry-run", "snapshot import none.lab --ttl 5s",
    "extend on 5s",
]  # fmt: skip
TABLE = {
    **dict.fromkeys(INVALID, 2),
    **dict.fromkeys([*NO_LAB, *NO_NODE, *NO_SNAPSHOT, *NO_OTHER], 3),
    **dict.fromkeys(EXISTS, 4),
    **dict.fromkeys(DOES_NOT_RUN, 7),
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a lab that runs (``on``), one that does not (``off``) and one of one node."""
    world = World(tmp_path_factory.mktemp("home"))
    with world.open() as ctx:
        _make(ctx)
    return world.root


def _make(ctx: Context) -> None:
    for name in ("on", "off"):
        up(ctx, lab_request("replication", name, nodes=2))
    up(ctx, lab_request("single", "single"))
    stop(ctx, "off")


@pytest.fixture(autouse=True)
def here(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    given = {"HYPERVISOR": "fake", "STORAGE": "fake", "HOME": str(home), "SPACE_FLOOR": "1M",
             "MEMORY_FLOOR": "0", "PORT_RANGE": "31000-31999"}  # fmt: skip
    for name, value in given.items():
        monkeypatch.setenv(f"LAB_{name}", value)


@pytest.mark.parametrize("line", TABLE)
def test_exit_code(line: str, capfd: pytest.CaptureFixture[str]) -> None:
    code = main(shlex.split(line))
    said = capfd.readouterr().err
    assert code == TABLE[line], said
    assert "Traceback" not in said
    assert "internal error" not in said
    if "exit-code" not in line:
        assert said.startswith("lab: error: "), said

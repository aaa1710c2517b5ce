"""What Tab offers."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.blueprints import BLUEPRINTS, blueprint
from lab.cli import main
from lab.cli.backend.local import Lifecycle
from lab.cli.backend.session import Recorded
from lab.config.settings import Settings
from lab.errors import InvalidSpec
from lab.paths import Home
from lab.state.records import LabRecord, NodeRecord
from lab.state.store import Store
from tests.support.vanishing import vanishing
from tests.unit.cli.test_fake_lifecycle import FakeLifecycle


def offered(
    line: str, world: Lifecycle, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> list[str]:
    """The completions that bash gets for a command line; its last word is completed."""
    words = line.split(" ")
    monkeypatch.setenv("_LAB_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    assert main([], lifecycle=world) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out.split()


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("lab st", ["status", "start", "stop", "standby"]),
        ("lab image ", ["build", "ls", "show", "export", "import", "rm"]),
        ("lab status ", ["pxc", "pxc-2", "shop"]),
        ("lab status p", ["pxc", "pxc-2"]),
        ("lab down pxc p", ["pxc-2"]),
        ("lab exec shop --node ", ["n1", "n2", "n3"]),
        ("lab logs --source ", ["engine", "journal", "console"]),
        ("lab ls -o y", ["yaml"]),
        ("lab up ", ["pxc", "galera", "single", "replication", "group", "galera-dr", "pxc-dr"]),
        ("lab up g", ["galera", "group", "galera-dr"]),
        (
            "lab up --engine m",
            [
                "mariadb",
                "mariadb:11.8",
                "mariadb:11.4",
                "mariadb:10.11",
                "mariadb:10.6",
                "mysql",
                "mysql:9.7",
                "mysql:26.10",
                "mysql:8.4",
                "mysql:8.0",
            ],
        ),
        ("lab up --profile d", ["durable", "disposable"]),
        ("lab image build percona-x", ["percona-xtradb-cluster", "percona-xtradb-cluster-8.0"]),
        ("lab image rm ", ["mariadb", "mariadb-0123456789abcdef"]),
        ("lab template rm f", ["feedfacefeedface"]),
        ("lab up --exist", ["--exist-ok"]),
        ("lab branch s", ["shop"]),
        ("lab branch shop --at o", ["origin"]),
        ("lab rollback shop --to ", ["origin"]),
        ("lab snapshot rm shop ", []),
        ("lab branch shop --identity ", ["shared", "new"]),
        ("lab snapshot protect shop o", ["origin"]),
        ("lab ls --home /h -o n", ["name"]),
    ],
)
def test_names_complete(
    line: str,
    names: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Protects Tab: verbs, labs, nodes and values; a lab already named is not offered again."""
    world = FakeLifecycle("pxc", "pxc-2", "shop")
    assert offered(line, world, monkeypatch, capsys) == names
    assert not [call for call in world.calls if call[0] == "open"]


def test_only_what_is_there_is_offered() -> None:
    """Protects from offering what is then refused."""
    assert [blueprint(name).name for name in BLUEPRINTS] == list(BLUEPRINTS)
    with pytest.raises(InvalidSpec) as refused:
        blueprint("zzz")
    assert refused.value.hint == f"blueprints: {', '.join(BLUEPRINTS)}"


def test_nothing_is_offered_when_something_is_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Protects the prompt from tracebacks."""

    class Broken(FakeLifecycle):
        def recorded(self, settings: Settings) -> Recorded:
            raise RuntimeError(settings)

    assert offered("lab status ", Broken(), monkeypatch, capsys) == []


def test_a_directory_that_vanishes_offers_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "dumps").mkdir()
    (tmp_path / "dumps/shop.sql").touch()
    line = f"lab cp {tmp_path}/dumps/"
    with vanishing(tmp_path / "dumps"):
        assert offered(line, FakeLifecycle(), monkeypatch, capsys) == []


def test_names_come_from_the_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Protects the real way to the record, and a home that is not there from being made."""
    home = Home(tmp_path / "home")
    line = f"lab --home {home.root} status "
    assert offered(line, Lifecycle(), monkeypatch, capsys) == []
    assert not home.root.exists()
    with Store(home) as store:
        store.labs.add(
            LabRecord(
                name="shop", blueprint="pxc", engine="mariadb", engine_version="11.8",
                image="key", node_count=1, memory=1, cpus=1, disk=0, state="ready",
                password="x", user="lab", owner="me", created_at=0.0,
            )
        )  # fmt: skip
        store.nodes.add([NodeRecord("shop", "n1", 1, "member", "lab-shop-n1")])
    assert offered(line, Lifecycle(), monkeypatch, capsys) == ["shop"]
    (home.lab("shop") / "captures/mine.20261121t110000").mkdir(parents=True)
    line = f"lab --home {home.root} rollback --to "
    assert offered(line, Lifecycle(), monkeypatch, capsys) == ["origin"]  # that is not complete
    (home.lab("shop") / "captures/mine.20261121t110000/manifest.json").touch()
    there = ["mine.20261121t110000", "origin"]
    assert offered(line, Lifecycle(), monkeypatch, capsys) == there
    line = f"lab --home {home.root} stop shop --node "
    assert offered(line, Lifecycle(), monkeypatch, capsys) == ["n1"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_script_can_be_shown(
    shell: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects `lab --show-completion`, whatever shell (or none) runs this."""
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    assert main(["--show-completion", shell], lifecycle=FakeLifecycle()) == 0
    assert "_LAB_COMPLETE" in capfd.readouterr().out

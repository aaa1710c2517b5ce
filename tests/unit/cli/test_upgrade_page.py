"""The report of an upgrade as HTML."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from lab.cli import main
from lab.cli.terminal.upgrade_page import upgrade_page
from lab.errors import (
    CommandFailed,
    HostUnfit,
    Interrupted,
    InvalidSpec,
    LabError,
    NotReady,
    RecipeFailed,
)
from lab.views.snapshots import SnapshotView
from lab.views.upgrades import (
    OptionView,
    ReplicatedView,
    StatementView,
    Transfer,
    UpgradeStep,
    UpgradeView,
    WorkloadView,
)
from tests.unit.cli.test_fake_lifecycle import FakeLifecycle

HOSTILE = "<script>alert('&')</script>\x1b[31m\ud800"
SHOWN = "<script>alert('&')</script>\\x1b[31m\\ud800"
STATEMENT = StatementView(
    3, HOSTILE, ("plan", "slower"), "", (HOSTILE,), ("x",), 0.1234, 0.5, 1000, 2000
)
STEP = UpgradeStep(
    HOSTILE, HOSTILE, HOSTILE, "failed", HOSTILE, 61.25, 3.5, {HOSTILE: 2.25}, (HOSTILE,),
    (HOSTILE,), (HOSTILE,), (OptionView("o", "unknown", HOSTILE),),
    (STATEMENT, replace(STATEMENT, error=HOSTILE)), 7, HOSTILE,
    (ReplicatedView(HOSTILE, HOSTILE, 4.75), ReplicatedView("n1", "n2", None, HOSTILE)),
    HOSTILE, "26.4.23", (), 10, 11, "sst",
)  # fmt: skip
WORKLOAD = WorkloadView(9, True, 12.75, (HOSTILE,))
VIEW = UpgradeView(HOSTILE, HOSTILE, (STEP,), 100.5, 11, 12, 13, (HOSTILE,), WORKLOAD, (HOSTILE,),
                   (f"foreseen {HOSTILE}",))  # fmt: skip


class Page(HTMLParser):
    """The tags and the texts of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        del attrs
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_what_guests_wrote_is_text() -> None:
    """Protects who opens it: nothing in it runs, whatever a server logs."""
    text = upgrade_page(VIEW)
    page = Page(text)
    assert page.tags <= {"html", "head", "meta", "title", "style", "body", "h1", "h2", "h3", "h4",
                         "p", "table", "tr", "th", "td", "pre"}  # fmt: skip
    assert sum(SHOWN in one for one in page.texts) >= 19
    assert "default-src 'none'" in text
    assert "http" not in text.replace("http-equiv", "")


def test_all_of_the_report_is_there() -> None:
    """Protects from a field that is added to the report and to no page."""
    text = " ".join(Page(upgrade_page(VIEW)).texts)
    for said in ("61.2 s", "3.5 s", "2.2 s", "4.8 s", "not in time", "before, 26.4.23 after",
                 "wsrep protocol: 10 before, 11 after: from this step on", "123.4 ms",
                 "wsrep transfer: SST", "Known before the first step", "foreseen",
                 "500.0 ms", "1000", "2000",
                 "7 statements executed before and after, 2 of them differ",
                 "exit code 9", "12.8 s", "by itself",
                 "11 acknowledged", "13 lost", "12 refused"):  # fmt: skip
        assert said in text
    known = {
        UpgradeView: {"lab", "to", "steps", "seconds", "written", "refused", "lost", "changed",
                      "workload", "unchecked", "foreseen"},
        UpgradeStep: {"node", "before", "after", "state", "snapshot", "seconds", "outage",
                      "unanswered", "log", "locked_out", "rebuild", "options", "statements",
                      "compared", "why", "replicated",
                      "provider_before", "provider_after", "partial",
                      "protocol_before", "protocol_after", "transfer"},
    }  # fmt: skip
    assert {kind: {one.name for one in fields(kind)} for kind in known} == known


def test_it_is_written_though_a_step_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world, path = FakeLifecycle("a"), tmp_path / "upgrade.html"
    world.upgraded = VIEW
    line = ["upgrade", "a", "--to", "mariadb:11.8", "--report", str(path)]
    assert main(line, lifecycle=world) == 7
    assert path.read_text() == upgrade_page(VIEW)
    assert "\x1b" not in capsys.readouterr().out
    world.calls.clear()
    assert main([*line[:-1], str(tmp_path / "none" / "x")], lifecycle=world) == 5
    assert world.calls == [], "an upgrade was made whose report nobody gets"


def test_a_report_that_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Protects the report: it is shown whatever becomes of the file, after hours perhaps."""
    world, full = FakeLifecycle("a"), tmp_path / "full"
    world.upgraded = replace(VIEW, lab="shown")
    line = ["upgrade", "a", "--to", "mariadb:11.8", "-o", "name", "--report"]
    full.symlink_to("/dev/full")
    assert main([*line, str(full)], lifecycle=world) == 5
    assert capsys.readouterr().out == "shown\n"
    world.calls.clear()
    assert main([*line, str(tmp_path)], lifecycle=world) == 5
    assert world.calls == []


@pytest.mark.parametrize(
    ("error", "left"),
    [
        (InvalidSpec("no such engine"), False),
        (HostUnfit("no space"), False),
        (RecipeFailed("the mirror has no such package"), False),
        (CommandFailed(["mmdebstrap"], 1), False),
        (NotReady("n1 does not run"), False),
        (NotReady("the job j has not ended", begun=True), True),
        (Interrupted("cancelled"), True),
    ],
)
def test_a_branch_is_not_left_behind(error: LabError, left: bool) -> None:
    """Protects from guests that nobody asked for: a typing error is found when the branch runs."""
    world = FakeLifecycle("a", "a-try-0")
    world.refused = error
    line = ["upgrade", "a", "--to", "mariadb:11.8", "--branch", "a-try"]
    assert main(line, lifecycle=world) == error.exit_code
    assert ("a-try-0" in world.views) is left
    assert "a" in world.views


def test_a_branch_of_which_a_node_was_begun_is_left() -> None:
    """Protects what an upgrade did before it ended with an error: the way back is its snapshot."""
    world = FakeLifecycle("a", "a-try-0")
    world.refused = HostUnfit("no space")
    world.snapshots.append(SnapshotView("before-n1.20261127t110000", "before-n1", None))
    line = ["upgrade", "a", "--to", "mariadb:11.8", "--branch", "a-try"]
    assert main(line, lifecycle=world) == 5
    assert "a-try-0" in world.views


def test_a_branch_is_upgraded_and_its_lab_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Protects who rehearses: the program itself, on fakes, leaves the lab alone and the branch."""
    given = {
        "LAB_HOME": str(tmp_path / "home"), "LAB_HYPERVISOR": "fake", "LAB_STORAGE": "fake",
        "LAB_SPACE_FLOOR": "1M", "LAB_MEMORY_FLOOR": "1M", "LAB_PORT_RANGE": "33000-33999",
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
    }  # fmt: skip
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)

    def said(*words: str) -> str:
        assert main([*words, "-o", "json"]) == 0
        return capsys.readouterr().out

    said("up", "galera", "--nodes", "2", "--memory", "400M", "--name", "shop",
         "--engine", "mariadb:10.11")  # fmt: skip
    for statement in ("CREATE TABLE t (a INT)", "INSERT INTO t VALUES (1)"):
        said("sql", "shop", "--node", "n1", "-e", statement)
    report = json.loads(said("upgrade", "shop", "--to", "mariadb:11.8", "--branch", "try"))
    assert [(one["node"], one["state"]) for one in report["steps"]] == [
        ("n2", "upgraded"), ("n1", "upgraded"),
    ]  # fmt: skip
    assert (report["lost"], report["changed"]) == (0, [])
    taken = {"shop": ["origin", "branch"], report["lab"]: ["origin", "before-n2", "before-n1"]}
    engines = {"shop": "10.11.6", report["lab"]: "11.8.6"}
    assert {one["name"] for one in json.loads(said("ls"))} == set(engines)
    for name, engine in engines.items():
        nodes = json.loads(said("status", name))["lab"]["nodes"]
        assert [(one["state"], one["engine_version"]) for one in nodes] == [("ready", engine)] * 2
        assert [one["name"] for one in json.loads(said("snapshot", "ls", name))] == taken[name]
        found = json.loads(said("sql", name, "--node", "n1", "-e", "SELECT COUNT(*) FROM t"))
        assert found["rows"] == [[1]]


def test_rows_of_which_nothing_is_known_are_not_good() -> None:
    view = replace(VIEW, steps=(replace(STEP, state="upgraded"),), lost=None)
    assert 'class="good"' not in upgrade_page(view)
    assert 'class="good"' in upgrade_page(replace(view, lost=0))


def test_statements_are_counted_by_what_became_of_them() -> None:
    """Protects from "1 statement of 0 differ", of one that only the older server executed."""
    step = replace(STEP, compared=0, statements=(replace(STATEMENT, differs=("fails",)),))
    said = "0 statements executed before and after, 0 of them differ; 1 statement fail since"
    assert step.summary == said


def test_replication_is_shown_where_it_is_slow(capsys: pytest.CaptureFixture[str]) -> None:
    """Protects the table: a line where a row did not come at once, and none where it did."""
    world = FakeLifecycle("a")
    found = (
        ReplicatedView("n1", "n2", 0.4), ReplicatedView("n2", "n1", 4.75),
        ReplicatedView("n2", "n3", None, "x"),
    )  # fmt: skip
    world.upgraded = replace(VIEW, steps=(replace(STEP, node="n2", replicated=found),))
    main(["upgrade", "a", "--to", "mariadb:11.8"], lifecycle=world)
    said = capsys.readouterr().out.splitlines()
    lines = [one for one in said if "replication" in one or "provider" in one]
    assert lines == [
        "n2: replication from n2 to n1: 4.8 s",
        "n2: replication from n2 to n3: not in time",
        f"n2: wsrep provider: {SHOWN} before, 26.4.23 after",
    ]


def test_what_there_may_be_more_of_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    """Protects from a report whose lists look whole, of which a bound was reached."""
    step = replace(STEP, node="n1", partial=("log", "rebuild"))
    world = FakeLifecycle("a")
    world.upgraded = view = replace(VIEW, steps=(step,))
    assert "There may be more: tables to rebuild, log." in Page(upgrade_page(view)).texts
    main(["upgrade", "a", "--to", "mariadb:11.8"], lifecycle=world)
    assert "n1: there may be more: tables to rebuild, log\n" in capsys.readouterr().out
    assert "may be more" not in upgrade_page(replace(view, steps=(STEP,)))


@pytest.mark.parametrize(
    ("before", "after", "said", "unknown"),
    [
        ("", "", "", False),
        ("", "26.4", "none before, 26.4 after", False),
        ("26.4", None, "26.4 before, unknown after", False),
        (None, None, "", True),
    ],
)
def test_what_is_said_of_a_provider(
    before: str | None, after: str | None, said: str, unknown: bool
) -> None:
    """Protects from "unknown" of a server that has none, and from silence about an unknown one."""
    step = replace(STEP, provider_before=before, provider_after=after)
    assert (step.provider, "wsrep provider" in step.unknown) == (said, unknown)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [(10, 11, True), (10, 10, False), (11, 10, False), (None, 11, False), (10, None, False)],
)
def test_a_protocol_that_rose_is_said(
    capsys: pytest.CaptureFixture[str], before: int | None, after: int | None, said: bool
) -> None:
    """Protects who starts an older server then: its cluster does not take it."""
    world = FakeLifecycle("a")
    step = replace(STEP, node="n1", protocol_before=before, protocol_after=after)
    world.upgraded = replace(VIEW, steps=(step,))
    main(["upgrade", "a", "--to", "mariadb:11.8"], lifecycle=world)
    line = (
        "n1: wsrep protocol: 10 before, 11 after: from this step on a node of the older series"
        " needs the snapshot to go back\n"
    )
    assert (line in capsys.readouterr().out) is said
    assert step.risen is said


@pytest.mark.parametrize(
    ("transfer", "lines"),
    [
        (None, []),
        ("ist", ["n1: wsrep transfer: IST"]),
        ("sst", ["n1: wsrep transfer: SST: its data files are those of another node"]),
    ],
)
def test_how_a_node_came_back_is_said(
    capsys: pytest.CaptureFixture[str], transfer: Transfer | None, lines: list[str]
) -> None:
    """Protects from data files of the older series under a newer server that nobody knows of."""
    world = FakeLifecycle("a")
    world.upgraded = replace(VIEW, steps=(replace(STEP, node="n1", transfer=transfer),))
    main(["upgrade", "a", "--to", "mariadb:11.8"], lifecycle=world)
    said = capsys.readouterr().out.splitlines()
    assert [line for line in said if "transfer" in line] == lines


def test_what_is_foreseen_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    world = FakeLifecycle("a")
    world.upgraded = replace(VIEW, foreseen=("old@% cannot log in", "no option x"))
    main(["upgrade", "a", "--to", "mysql:9.7"], lifecycle=world)
    said = capsys.readouterr().out.splitlines()
    assert [line for line in said if line.startswith("known before the first step: ")] == [
        "known before the first step: old@% cannot log in",
        "known before the first step: no option x",
    ]


def test_what_is_unknown_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    """Protects from a report without a line on accounts that nobody could read."""
    step = replace(STEP, node="n1", log=(), locked_out=None, rebuild=None, statements=None,
                   replicated=None)  # fmt: skip
    world = FakeLifecycle("a")
    world.upgraded = view = replace(VIEW, steps=(step,))
    page = " ".join(Page(upgrade_page(view)).texts)
    assert "Unknown: accounts that cannot log in, tables to rebuild, replication." in page
    assert "what became of the statements is unknown" in page
    main(["upgrade", "a", "--to", "mariadb:11.8"], lifecycle=world)
    said = capsys.readouterr().out
    assert "n1: unknown: accounts that cannot log in, tables to rebuild, replication\n" in said
    assert "n1: what became of the statements is unknown\n" in said
    assert "Unknown" not in upgrade_page(replace(view, steps=(STEP,)))

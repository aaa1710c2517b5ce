"""From words to calls, and from mistakes to messages."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.cli import main
from lab.cli.commands import RootVerbs
from lab.datasets.selection import Selection
from lab.errors import (
    Busy,
    CommandFailed,
    Conflict,
    HostUnfit,
    InvalidSpec,
    LabError,
    NotFound,
    NotReady,
)
from lab.request import Request
from lab.requests.host import CollectGarbage
from lab.requests.images import BuildImage, DeleteImage, DeleteTemplate
from lab.requests.labs import (
    BranchLab,
    ChangeLab,
    CreateLab,
    DeleteLab,
    EnsureLab,
    RollBack,
    StartLab,
    StopLab,
)
from lab.requests.snapshots import ChangeSnapshot, DeleteSnapshots, TakeSnapshot
from lab.spec import LabSpec
from lab.units import GIB
from tests.unit.cli.test_fake_lifecycle import FakeLifecycle

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory without a lab.toml of somebody else's."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_up_passes_on_every_flag() -> None:
    """Protects each flag from being parsed and forgotten."""
    world = FakeLifecycle()
    flags = (
        "--nodes 5 --memory 1G --cpus 2 --disk 8G --engine mariadb --name shop --ttl 2h --image x "
        "--cold --keep-failed --exist-ok --timeout 5m"
    )
    assert main(["up", "galera", *flags.split()], lifecycle=world) == 0
    spec = LabSpec("galera", "shop", 5, "mariadb", GIB, 2, 8 * GIB, 7200.0, image="x")
    asked = EnsureLab.of(spec, cold=True, keep_failed=True)
    assert world.called("EnsureLab") == [asked, {"timeout": 300.0}]
    assert LabSpec.of(asked) == spec


def test_up_has_defaults() -> None:
    """Protects the defaults, the lease of the settings among them."""
    world = FakeLifecycle()
    world.default_ttl = 60.0
    assert main(["up", "pxc"], lifecycle=world) == 0
    assert world.called("CreateLab") == [CreateLab.of(LabSpec("pxc", ttl=60.0))]
    assert main(["up", "pxc", "--ttl", "none"], lifecycle=world) == 0
    assert world.called("CreateLab")[0].ttl is None


def test_up_reads_lab_toml_and_flags_override(elsewhere: Path) -> None:
    """Protects `lab up` alone."""
    (elsewhere / "lab.toml").write_text('blueprint = "pxc"\nnodes = 5\nmemory = "1G"\n')
    world = FakeLifecycle()
    assert main(["up", "--nodes", "1"], lifecycle=world) == 0
    assert world.called("CreateLab") == [CreateLab("pxc", nodes=1, memory=GIB)]
    assert main(["template", "build"], lifecycle=world) == 0
    assert world.called("BuildTemplate")[0].nodes == 5


@pytest.mark.parametrize(
    ("line", "call"),
    [
        ("down a b a", [DeleteLab(lab="b")]),
        ("status a", ["a"]),
        ("wait a --timeout 90", ["a", {"timeout": 90.0}]),
        ("wait a", ["a", {"timeout": 77.0}]),
        ("start a", [StartLab(lab="a"), {"timeout": 77.0}]),
        ("start a --node 2", [StartLab(lab="a", node="n2"), {"timeout": 77.0}]),
        ("stop a --node n2 --force", [StopLab(lab="a", node="n2", force=True)]),
        ("extend a 1d12h", [ChangeLab(lab="a", ttl=129600.0)]),
        ("extend a none", [ChangeLab(lab="a", endless=True)]),
        ("sql a", ["a", None, {"database": ""}]),
        ("sql a --node 3 -D crm", ["a", "n3", {"database": "crm"}]),
        ("console a --node 2", ["a", "n2"]),
        ("logs a", ["a", "n1", "engine", {"follow": False, "lines": 100}]),
        ("logs a --source console -n 5", ["a", "n1", "console", {"follow": False, "lines": 5}]),
        (
            "snapshot take a",
            [TakeSnapshot(lab="a")],
        ),
        (
            "snapshot take a --label mine --disks-only --ttl 2h --protect",
            [TakeSnapshot(lab="a", name="mine", disks_only=True, ttl=7200.0, protected=True)],
        ),
        (
            "snapshot protect a mine",
            [ChangeSnapshot(lab="a", label="mine", protected=True)],
        ),
        (
            "snapshot unprotect a mine",
            [ChangeSnapshot(lab="a", label="mine", protected=False)],
        ),
        (
            "snapshot rm a x y --force",
            [DeleteSnapshots(lab="a", labels=("x", "y"), force=True)],
        ),
        (
            "rollback a --to mine --cold --keep-sessions --timeout 5s",
            [RollBack(lab="a", to="mine", cold=True, keep_sessions=True), {"timeout": 5.0}],
        ),
        ("branch a", [BranchLab(lab="a"), {"timeout": 77.0}]),
        (
            "branch a try --at mine --count 3 --ttl 2h --keep-sessions --identity new --timeout 5m",
            [
                BranchLab(
                    lab="a",
                    name="try",
                    at="mine",
                    count=3,
                    ttl=7200.0,
                    keep_sessions=True,
                    identity="new",
                ),
                {"timeout": 300.0},
            ],
        ),
        ("gc", [CollectGarbage()]),
        (
            "gc --dry-run --orphans --unused --older-than 2h",
            [CollectGarbage(dry_run=True, orphans=True, unused=True, age=7200.0)],
        ),
        ("image build mariadb --rebuild", [BuildImage(recipe="mariadb", rebuild=True)]),
        ("image show mariadb", ["mariadb"]),
        ("image rm mariadb", [DeleteImage(which="mariadb")]),
        ("template rm feed", [DeleteTemplate(key="feed")]),
    ],
)
def test_flags_reach_the_lifecycle(line: str, call: list[object]) -> None:
    """Protects each verb's arguments."""
    world = FakeLifecycle("a", "b")
    main(line.split(), lifecycle=world)
    names = {"sql": "client"}
    words = line.split()
    method = names.get(words[0], words[0])
    if isinstance(call[0], Request):
        method = type(call[0]).__name__
    calls = [list(called[1:]) for called in world.calls if called[0] == method]
    assert calls[-1] == call


def test_down_removes_each_once_and_goes_on_after_a_failure(capsys: Capture) -> None:
    """Protects the rest of a list from the one that is missing."""
    world = FakeLifecycle("a", "b")
    assert main(["down", "a", "lost", "b", "a"], lifecycle=world) == 3
    assert not world.views
    captured = capsys.readouterr()
    assert "lab: error: there is no lab 'lost'\nhint: `lab ls` lists them\n" in captured.err
    assert captured.out == ""


def test_down_all_wants_a_yes(capsys: Capture) -> None:
    """Protects labs from a script that did not mean it."""
    world = FakeLifecycle("a", "b")
    assert main(["down", "--all"], lifecycle=world) == 2
    assert capsys.readouterr().err == (
        "lab: error: --all removes 2 labs, and stdin is not a terminal to confirm it\n"
        "  a\n  b\nhint: add --yes\n"
    )
    assert main(["down", "--all", "--yes"], lifecycle=world) == 0
    assert not world.views
    assert main(["down", "--all"], lifecycle=world) == 0


def test_down_all_removes_what_was_agreed_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects a lab that somebody creates meanwhile."""
    monkeypatch.setenv("FAKE_APPEARS", "precious")
    world = FakeLifecycle("a", "b")
    assert main(["down", "--all", "--yes"], lifecycle=world) == 0
    assert list(world.views) == ["precious"]


def test_down_all_removes_the_labs_of_pools(capsys: Capture) -> None:
    """Protects the host of a service that is gone: its pools run on, and nobody else has them."""
    world = FakeLifecycle("a", "pxc-6e1437")
    world.pooled = {"pxc-6e1437"}
    assert main(["down", "--all", "--yes"], lifecycle=world) == 0
    assert not world.views
    assert "pxc-6e1437" in capsys.readouterr().err


def test_down_all_removes_the_others_where_one_is_being_made(capsys: Capture) -> None:
    """Protects the clean-up: a process that makes a lab ahead may hang."""
    world = FakeLifecycle("a", "b")
    world.fails["DropAhead"] = Busy("state ahead is busy: process 4711 is working on it")
    assert main(["down", "--all", "--yes"], lifecycle=world) == Busy.exit_code
    assert world.views == {}
    assert "process 4711" in capsys.readouterr().err


def test_the_name_may_be_left_out(elsewhere: Path, capsys: Capture) -> None:
    """Protects the choice: lab.toml's lab, else the only one, else no guess."""
    world = FakeLifecycle("a")
    assert main(["env"], lifecycle=world) == 0
    assert world.called("lab") == ["a"]
    world = FakeLifecycle("a", "b")
    assert main(["env"], lifecycle=world) == 2
    assert capsys.readouterr().err == "lab: error: which lab?\nhint: name one of a, b\n"
    (elsewhere / "lab.toml").write_text('blueprint = "pxc"\nname = "b"\n')
    assert main(["env"], lifecycle=world) == 0
    assert world.called("lab") == ["b"]
    (elsewhere / "lab.toml").unlink()
    assert main(["env"], lifecycle=FakeLifecycle()) == 3
    assert "hint: `lab up pxc` creates one" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("upp", "there is no command 'upp'\nhint: did you mean 'up'?"),
        ("stat", "there is no command 'stat'\nhint: did you mean 'status'?"),
        ("sto", "there is no command 'sto'\nhint: did you mean 'stop'?"),
        ("zzz", "there is no command 'zzz'\nhint: `lab --help` lists them"),
        ("image bild", "there is no command 'bild'\nhint: did you mean 'build'?"),
        ("up pxc --memroy 1G", "lab up has no flag '--memroy'\nhint: did you mean '--memory'?"),
        ("--hime /x ls", "lab has no flag '--hime'\nhint: did you mean '--home'?"),
        ("up pxc --nodes x", "--nodes: 'x' is not a whole number"),
        ("up pxc --nodes ٣", "--nodes: '٣' is not a whole number"),
        ("up pxc --nodes 3.5", "--nodes: '3.5' is not a whole number"),
        ("up pxc --nodes 0", "a lab has 1 to 9 nodes, not 0"),
        ("up pxc --nodes -1", "a lab has 1 to 9 nodes, not -1"),
        ("up pxc --nodes 100", "a lab has 1 to 9 nodes, not 100"),
        ("up pxc --memory 12qq", "--memory: '12qq' is not a size\nhint: write sizes like"),
        ("up pxc --memory 1M", "1M of memory is too little"),
        ("up pxc --disk lots", "--disk: 'lots' is not a size"),
        ("up pxc --cpus 0", "a node has 1 to 64 CPUs, not 0"),
        ("up pxc --ttl soon", "--ttl: 'soon' is not a duration\nhint: write durations like"),
        ("up pxc --ttl 0s", "--ttl: the duration must be greater than zero, not '0s'"),
        ("up pxc --ttl 5", "--ttl: '5' has no unit\nhint: write durations like 90s"),
        ("up replication --delay 60", "--delay: '60' has no unit"),
        ("extend shop 5", "TTL: '5' has no unit"),
        ("branch shop --ttl 5", "--ttl: '5' has no unit"),
        ("snapshot take shop --ttl 5", "--ttl: '5' has no unit"),
        ("token create ci --ttl 90", "--ttl: '90' has no unit"),
        ("gc --unused --older-than 30", "--older-than: '30' has no unit"),
        ("up pxc --timeout x", "--timeout: 'x' is not a duration"),
        ("up pxc --name Ünï", "'Ünï' is not a valid name for a lab"),
        ("up pxc --name ../x", "'../x' is not a valid name for a lab"),
        ("up", "no blueprint is named"),
        ("up pxc -o jsn", "'jsn' is not an output format\nhint: did you mean 'json'?"),
        ("up pxc galera", "lab up: unexpected argument 'galera'\nhint: `lab up --help`"),
        ("snapshot take shop s1", "unexpected argument 's1'\nhint: did you mean `--label s1`?"),
        ("rollback shop s1", "unexpected argument 's1'\nhint: did you mean `--to s1`?"),
        ("status ../x", "'../x' is not a valid name for a lab"),
        ("down a ../x", "'../x' is not a valid name for a lab"),
        ("down a --all", "names cannot be combined with --all"),
        ("stop a --node 0", "'0' is not a node\nhint: nodes are n1, n2"),
        ("stop a --node zz", "'zz' is not a node\nhint: nodes are n1, n2"),
        ("extend", "missing argument"),
        ("extend a", "TTL: 'a' is not a duration"),
        ("extend a 2h x", "expected a lab and a time, not 3 words"),
        ("logs --source syslog", "--source: unknown log 'syslog'"),
        ("logs --source journla", "--source: unknown log 'journla'\nhint: did you mean 'jour"),
        ("logs -n -5", "--lines: -5 is negative"),
        (
            "exec a",
            "no command is given\nhint: put it after two dashes: `lab exec shop -- uname -a`",
        ),
        ("exec a --", "no command is given"),
        ("run pxc", "no command is given"),
        (
            "run pxc make test",
            "lab run: unexpected argument 'make test'\nhint: put two dashes before a command",
        ),
        ("env --format jsn", "'jsn' is not a format of lab env"),
        ("image build", "missing argument"),
        ("ls --home", "--home: no directory is given"),
        ("ls --home ", "--home: the value is empty\nhint: leave it out, or give a value"),
        ("--home= ls", "--home: the value is empty"),
        ("up pxc --name ", "--name: the value is empty"),
        ("up  --nodes 3", "BLUEPRINT: the value is empty"),
        ("up pxc --ttl=", "--ttl: the value is empty"),
        ("stop ", "NAME: the value is empty"),
        ("exec  -- id", "NAME: the value is empty"),
        ("down ", "'' is not a valid name for a lab"),
        (
            "-o json ls",
            "-o is not a global option\nhint: put it after the command: `lab ls -o json`",
        ),
    ],
)
def test_a_mistake_is_told_and_nothing_is_done(line: str, error: str, capsys: Capture) -> None:
    """Protects: exit code 2, nothing on stdout, what is wrong and what would be right."""
    world = FakeLifecycle("a")
    assert main(line.split(" "), lifecycle=world) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    shown = captured.err.lower() if error[0].islower() else captured.err
    wanted = error.lower() if error[0].islower() else error
    assert wanted in shown.replace("lab: error: ", "")
    assert captured.err.startswith("lab: error: ")
    done = [call for call in world.calls if call[0] not in ("open", "names", "recorded")]
    assert not done


@pytest.mark.parametrize("name", ["", "x" * 300, "a\nb", "-a-", "\udcff"])
def test_odd_names_are_refused(name: str, capsys: Capture) -> None:
    """Protects against names that would be paths, flags or terminal commands."""
    world = FakeLifecycle()
    assert main(["up", "pxc", f"--name={name}"], lifecycle=world) == 2
    assert "\n\n" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "missing",
    [
        'user = ["env:APP"]',
        'init = "schema.sql"',
        'my_cnf = ["replica=big.cnf"]',
        'profile = "gone"',
        "key_of_another_version = 1",
        "memory = 3.5",
    ],
)
@pytest.mark.parametrize("line", ["down -y", "env", "status", "sql -e SELECT", "stop", "wait"])
def test_what_only_up_needs_stops_no_other_command(
    elsewhere: Path, capsys: Capture, line: str, missing: str
) -> None:
    """Protects a lab that is to be removed in another terminal, where a variable is not set."""
    text = f'blueprint = "pxc"\nname = "a"\n{missing}\n'
    (elsewhere / "lab.toml").write_text(text)
    assert main(["up"], lifecycle=FakeLifecycle("a")) == 2, "up needs it"
    assert missing.partition(" ")[0] in capsys.readouterr().err
    assert main(line.split(), lifecycle=FakeLifecycle("a", "b")) == 0


def test_a_flag_replaces_what_lab_toml_names(elsewhere: Path) -> None:
    """Protects `lab up --user` where the variable that the file names is not set."""
    (elsewhere / "lab.toml").write_text('blueprint = "pxc"\nuser = ["env:NOT_SET"]\n')
    (elsewhere / "accounts").write_text("app:secret@shop\n")
    world = FakeLifecycle()
    assert main(["up", "--user", "accounts"], lifecycle=world) == 0
    assert [user.name for user in world.called("CreateLab")[0].chosen.user] == ["app"]
    assert main(["template", "build"], lifecycle=world) == 0, "no template has accounts of labs"


def test_run_makes_a_name_of_its_own(elsewhere: Path) -> None:
    """Protects the lab that lab.toml names: it is that of `lab up`, and stays."""
    (elsewhere / "lab.toml").write_text('blueprint = "pxc"\nname = "app"\n')
    world = FakeLifecycle("app")
    assert main(["run", "--", "true"], lifecycle=world) == 0
    assert world.called("CreateLab")[0].name.startswith("run-")
    assert main(["run", "--name", "mine", "--", "true"], lifecycle=world) == 0
    assert world.called("CreateLab")[0].name == "mine"
    assert list(world.views) == ["app"]


def test_a_wrong_lab_toml_is_told(elsewhere: Path, capsys: Capture) -> None:
    """Protects from a typo in the file that changes nothing."""
    (elsewhere / "lab.toml").write_text("nodse = 3\n")
    assert main(["up", "pxc"], lifecycle=FakeLifecycle()) == 2
    assert "nodse" in capsys.readouterr().err


LEFT = {
    "stop a": ("StopLab", "nodes of a may still run; `lab stop a` stops them"),
    "start a": ("StartLab", "`lab start a` starts it again"),
    "promote a n2": ("Promote", "`lab promote a n2` again completes the promotion"),
    "upgrade a --to mariadb:11.8": (
        "UpgradeLab",
        "`lab start a` puts back the node whose upgrade was interrupted",
    ),
    "rollback a": ("RollBack", "a is stopped and `lab start a` completes it"),
    "snapshot rm a mine": ("DeleteSnapshots", "`lab snapshot ls a` lists those that are left"),
    "snapshot prune a": ("PruneSnapshots", "`lab snapshot prune a` removes the rest"),
    "dataset rm shop": ("DeleteDataset", "`lab dataset rm shop` again removes the rest"),
    "template rm fee": ("DeleteTemplate", "`lab template rm fee` again removes the rest"),
    "image rm mariadb": ("DeleteImage", "`lab image rm mariadb` again removes the rest"),
    "gc": ("CollectGarbage", "`lab gc` again removes the rest"),
}


@pytest.mark.parametrize("line", LEFT)
def test_an_interrupt_names_what_is_left(line: str, capsys: Capture) -> None:
    """Protects from silence: what an interrupt leaves is said, with the remedy."""
    world = FakeLifecycle("a")
    method, said = LEFT[line]
    world.fails[method] = KeyboardInterrupt()
    assert main(line.split(), lifecycle=world) == 130
    err = capsys.readouterr().err
    assert err.startswith("lab: interrupted: ")
    assert said in err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidSpec("x"), 2),
        (NotFound("x"), 3),
        (Conflict("x"), 4),
        (HostUnfit("x"), 5),
        (CommandFailed(["x"], 1), 6),
        (NotReady("x"), 7),
        (LabError("x"), 1),
        (KeyboardInterrupt(), 130),
        (RuntimeError("x"), 1),
    ],
)
def test_the_class_decides_the_exit_code(error: BaseException, code: int) -> None:
    """Protects the table of docs/cli.md."""
    world = FakeLifecycle("pxc")
    world.fails["labs"] = error
    assert main(["ls"], lifecycle=world) == code


def test_errors_teach(capsys: Capture) -> None:
    """Protects the form: what, details indented, hint; a traceback with --debug only."""
    world = FakeLifecycle("pxc")
    world.fails["labs"] = NotReady(
        "n2 is not ready", hint="look", details=["log one", "two\nthree"]
    )
    main(["ls"], lifecycle=world)
    message = "lab: error: n2 is not ready\n  log one\n  two\n  three\nhint: look\n"
    assert capsys.readouterr().err == message
    main(["ls", "--debug"], lifecycle=world)
    debug = capsys.readouterr().err
    assert debug.startswith("Traceback (most recent call last):")
    assert debug.endswith(message)


def test_the_unexpected_is_one_line_and_a_request(capsys: Capture) -> None:
    """Protects users from tracebacks, and us from never hearing of a bug."""
    world = FakeLifecycle()
    world.fails["labs"] = ValueError("boom")
    assert main(["ls"], lifecycle=world) == 1
    assert capsys.readouterr().err == (
        "lab: error: internal error: ValueError: boom\n"
        "hint: please report it, with the output of the same command with --debug\n"
    )


def test_home_is_taken_anywhere() -> None:
    """Protects the global flags behind a verb, and what follows two dashes from them."""
    for line in ("--home /h ls", "ls --home /h", "ls --home=/h"):
        world = FakeLifecycle("a")
        assert main(line.split(), lifecycle=world) == 0
        assert world.called("open") == [{"home": Path("/h")}]
    world = FakeLifecycle("a")
    argv = ["exec", "--agent", "--", "x", "--home", "/h", "--debug"]
    assert main(argv, lifecycle=world) == 0
    assert world.called("execute")[2] == ["x", "--home", "/h", "--debug"]


def test_exec_by_the_agent_is_the_command(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """Protects bytes, stderr and the exit code of a program in a node without a network."""
    world, agent = FakeLifecycle("a"), ("exec", "--agent")
    assert main([*agent, "a", "--node", "2", "--timeout", "1m", "--", "id"], lifecycle=world) == 0
    assert world.called("execute") == ["a", "n2", ["id"], {"stdin": b"", "timeout": 60.0}]
    assert capfdbinary.readouterr().out == b"said\xff\n"
    assert main([*agent, "--", "false"], lifecycle=world) == 9
    assert capfdbinary.readouterr() == (b"", b"no luck\n")
    world.fails["execute"] = CommandFailed(["virsh"], 1)
    assert main([*agent, "--", "false"], lifecycle=world) == 6


def test_ssh_and_sql_run_their_program(capfd: Capture) -> None:
    """Protects arguments and exit codes, and that the client's password file goes away."""
    world = FakeLifecycle("a")
    assert main(["ssh", "--", "ls", "-l"], lifecycle=world) == 5
    assert capfd.readouterr().out == "ls -l\n"
    assert main(["sql"], lifecycle=world) == 4
    assert [call[1] for call in world.calls if call[0] == "client file"] == ["made", "removed"]


GROUPS = {name: group for name, group in RootVerbs.table.items() if not isinstance(group, str)}


def every_verb() -> list[list[str]]:
    lines = [[], *([verb] for verb in RootVerbs.table)]
    return lines + [[name, verb] for name, group in GROUPS.items() for verb in group.table]


@pytest.mark.parametrize("line", every_verb(), ids=" ".join)
def test_every_verb_has_help(line: list[str], capsys: Capture) -> None:
    """Protects --help: one line that fits the list, then examples of this very verb."""
    assert main([*line, "--help"], lifecycle=FakeLifecycle()) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"Usage: {' '.join(['lab', *line])} ")
    if line and line not in ([verb] for verb in GROUPS):
        assert "\n  Examples:\n    " in text
        assert f"lab {' '.join(line)}" in text.split("Examples:")[1]
    assert "..." not in text.split("Commands:")[-1] if "Commands:" in text else True
    assert main([*line, "-h"], lifecycle=FakeLifecycle()) == 0


def test_groups_alone_show_their_help(capsys: Capture) -> None:
    """Protects the curious."""
    for line in ([], ["image"], ["template"], ["host"]):
        assert main(line, lifecycle=FakeLifecycle()) == 0
        assert "Commands:" in capsys.readouterr().out


def test_what_is_selected_of_a_live_server() -> None:
    """Protects the options of `lab dataset create` from being parsed and forgotten."""
    world = FakeLifecycle()
    words = "--tables a.t,a.u --where a.t:x=1 --where a.u:y --schema-only b.c --defaults-file f"
    argv = ["dataset", "create", "shop", "--from", "mysql://me@db/a", *words.split()]
    assert main(argv, lifecycle=world) == 0
    chosen = Selection(("a.t", "a.u"), ("a.t:x=1", "a.u:y"), ("b.c",), "f")
    (asked,) = world.called("CreateDataset")
    assert (asked.name, asked.source, asked.selection) == ("shop", "mysql://me@db/a", chosen)


def test_an_upgrade_takes_a_command() -> None:
    """Protects who forgets it: nothing is done then, nor with one that there is not."""
    line = ["upgrade", "a", "--to", "mariadb:11.8", "--"]
    world = FakeLifecycle("a")
    assert main(line, lifecycle=world) == 2
    assert main([*line, "/nowhere"], lifecycle=world) == 127
    assert world.calls == []
    world.fails["UpgradeLab"] = NotReady("x")
    assert main([*line, "true", "--to", "x"], lifecycle=world) == 7
    assert world.called("UpgradeLab")[0].workload == ("true", "--to", "x")


def test_an_upgrade_takes_statements(tmp_path: Path) -> None:
    """Protects from a file that writes: it is refused before anything is done."""
    world, path = FakeLifecycle("a"), tmp_path / "app.sql"
    line = ["upgrade", "a", "--to", "mariadb:11.8", "--statements", str(path)]
    path.write_text("DELETE FROM t")
    assert main(line, lifecycle=world) == 2
    assert world.calls == []
    path.write_text("SELECT 1")
    world.fails["UpgradeLab"] = NotReady("x")
    assert main(line, lifecycle=world) == 7
    assert world.called("UpgradeLab")[0].statements == "SELECT 1"

"""``lab up --matrix``: the program itself, on a host of fakes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from lab.cli import flags
from lab.cli.commands import root_command
from lab.cli.terminal.child import run_several
from lab.cli.terminal.signals import Interrupts
from lab.errors import InvalidSpec
from lab.spec import LabSpec
from tests import ROOT
from tests.support.serve_process import environment, serving

FAR = 120.0
TWO = "mariadb:11.8,mariadb:10.11"


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """The environment of a host of fakes."""
    given = {"LAB_HOME": tmp_path / "home", "XDG_CONFIG_HOME": tmp_path / "config",
             "LAB_HYPERVISOR": "fake", "LAB_STORAGE": "fake", "LAB_SPACE_FLOOR": "1M",
             "LAB_MEMORY_FLOOR": "1M", "LAB_PORT_RANGE": "34000-34999",
             "PYTHONPATH": ROOT}  # fmt: skip
    return {**os.environ, **{name: str(value) for name, value in given.items()}}


def lab(env: dict[str, str], cwd: Path, *words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "lab", *words]
    return subprocess.run(
        argv, env=env, cwd=cwd, check=False, capture_output=True, text=True, timeout=FAR,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip


def matrix(
    env: dict[str, str], cwd: Path, engines: str, *words: str
) -> subprocess.CompletedProcess[str]:
    before, after = list(words), ["true"]
    if "--" in before:
        at = before.index("--")
        before, after = before[:at], before[at + 1 :]
    return lab(env, cwd, "up", "--matrix", engines, "--memory", "400M", *before, "--", *after)


def left(env: dict[str, str]) -> list[str]:
    """What there is of labs."""
    return sorted(path.name for path in (Path(env["LAB_HOME"]) / "labs").iterdir())


@pytest.mark.rare
def test_a_command_with_each_engine(env: dict[str, str], tmp_path: Path) -> None:
    """Protects who tests an upgrade: one table, outputs kept apart, and no lab is left."""
    (tmp_path / "lab").mkdir()  # of the working directory, and not this program
    done = matrix(env, tmp_path, TWO, "--", "sh", "-c", "echo at $LAB_NAME; echo err >&2")
    assert (done.returncode, left(env)) == (0, []), done
    head, *rows = done.stdout.splitlines()
    assert head.split() == ["ENGINE", "SERVER", "RESULT", "READY", "COMMAND"]
    assert [row.split()[:4] for row in rows] == [
        ["mariadb:11.8", "mariadb", "11.8.6", "ok"],
        ["mariadb:10.11", "mariadb", "10.11.6", "ok"],
    ]
    for name in ("mariadb:11.8 ", "mariadb:10.11"):
        own = [line for line in done.stderr.splitlines() if line.startswith(f"{name} | ")]
        assert sum("| at run-" in line for line in own) == 1
        assert f"{name} | err" in own


@pytest.mark.rare
def test_one_that_fails_is_a_row(env: dict[str, str], tmp_path: Path) -> None:
    """Its exit code is that of the matrix; the others are not touched by it."""
    failing = "sh", "-c", '[ "$(cat counted 2>/dev/null)" ] && exit 3; echo 1 >counted'
    done = matrix(env, tmp_path, TWO, "-o", "json", "--", *failing)
    found = json.loads(done.stdout)
    assert sorted(one["code"] for one in found) == [0, 3]
    assert done.returncode == 3
    assert [one["engine"] for one in found] == TWO.split(",")
    assert [one["servers"] for one in found] == [["mariadb 11.8.6"], ["mariadb 10.11.6"]]
    assert all(one["seconds"] >= 0 and one["ready_seconds"] > 0 for one in found)
    assert left(env) == []


@pytest.mark.rare
def test_one_without_a_lab_is_a_row_with_the_reason(env: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "lab.toml").write_text('dataset = "shop"\nblueprint = "single"\n')
    done = matrix(env, tmp_path, TWO, "-o", "json")
    assert done.returncode == 3
    assert [(one["code"], one["servers"]) for one in json.loads(done.stdout)] == [(None, [])] * 2
    assert "there is no dataset 'shop'" in json.loads(done.stdout)[0]["error"]
    (tmp_path / "lab.toml").write_text('disk = "1M"\n')
    done = matrix(env, tmp_path, "mariadb:11.8")
    assert "a node's disk cannot be 1M" in done.stdout
    assert done.returncode == 2
    assert left(env) == []


@pytest.mark.rare
@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["up", "--matrix", TWO], "no command is given"),
        (["up", "pxc", "--", "true"], "`lab run` runs one with a lab"),
        (["up", "--matrix", "mysql", "--engine", "mysql", "--", "true"], "--engine exclude"),
        (["up", "--matrix", "mysql", "--name", "a", "--", "true"], "--name exclude"),
        (["up", "--matrix", "mysql", "--dry-run", "--", "true"], "--dry-run exclude"),
        (["up", "--matrix", "mysql,mysql", "--", "true"], "was given twice"),
        (["up", "--matrix", "a,,b", "--", "true"], "'' is not an engine"),
        (["up", "galera", "--matrix", "mysql", "--", "true"], "galera cannot run on the engine"),
        (["up", "--matrix", "mysql:1.0", "--", "true"], "there is no series '1.0' of mysql"),
        (["up", "--matrix", "mysql", "--nodes", "3", "--", "true"], "has exactly one node"),
        (["up", "--matrix", "mysql", "--", "no-such-program"], "'no-such-program' not found"),
    ],
)  # fmt: skip
def test_what_is_refused(
    env: dict[str, str], tmp_path: Path, words: Sequence[str], text: str
) -> None:
    """Before any lab is made."""
    done = lab(env, tmp_path, *words)
    assert text in done.stderr
    assert done.returncode in (2, 127)
    assert not Path(env["LAB_HOME"]).exists() or left(env) == []


@pytest.mark.rare
def test_an_interrupt_ends_all(env: dict[str, str], tmp_path: Path) -> None:
    """Protects Ctrl-C: each lab is removed, and none is made any more."""
    words = ["up", "--matrix", TWO, "--memory", "400M", "--", "sh", "-c", "echo started; sleep 100"]
    process = subprocess.Popen(
        [sys.executable, "-m", "lab", *words], env=env, cwd=tmp_path, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stderr is not None
    for line in process.stderr:
        if "started" in line:
            break
    process.send_signal(signal.SIGINT)
    stdout, _ = process.communicate(timeout=FAR)
    assert process.returncode == 130
    assert "not run" in stdout or "exit" in stdout
    assert left(env) == []


@pytest.mark.rare
def test_labs_of_a_service(env: dict[str, str], tmp_path: Path) -> None:
    """Its engines are its own: one that it does not have is a row with the reason."""
    with serving(environment(tmp_path / "there")) as service:
        there = {**env, "LAB_TOKEN": service.token}
        words = ["--remote", service.url, "up", "--matrix", f"{TWO},mysql:1.0", "-o", "json"]
        done = lab(there, tmp_path, *words, "--memory", "400M", "--", "true")
        found = json.loads(done.stdout)
        assert [one["code"] for one in found] == [0, 0, None]
        assert "there is no series '1.0' of mysql" in found[2]["error"]
        assert done.returncode == 2
        there_home = {**env, "LAB_HOME": str(tmp_path / "there" / "home")}
        assert left(there_home) == []
    assert not (tmp_path / "home").exists()


def test_an_added_engine_is_one_of_a_matrix() -> None:
    """Of this host; what a service elsewhere has is for it to know."""
    spec, there = LabSpec("single"), {"own-build": "mariadb"}
    assert flags.on_engine(spec, "own-build", there).engine == "own-build"
    assert flags.on_engine(spec, "unknown").engine == "unknown"
    with pytest.raises(InvalidSpec, match="cannot run on the engine 'unknown'"):
        flags.on_engine(spec, "unknown", there)


def test_flags_as_words() -> None:
    """Protects the labs of a matrix: they have all that was requested."""
    command: Any = root_command().get_command(None, "up")
    options = {one.name: one.opts for one in command.params}
    for field in (*fields(flags.Cluster), *fields(flags.Creation)):
        if field.name != "blueprint":
            assert f"--{field.name.replace('_', '-')}" in options[field.name]
    cluster = flags.Cluster("galera", nodes="2", set=["a=1", "b=2"], arbiter=True)
    assert flags.words(cluster) == [
        "galera", "--nodes", "2", "--arbiter", "--set", "a=1", "--set", "b=2"
    ]  # fmt: skip


def test_several_programs() -> None:
    """Protects from a program that leaves one behind which keeps its output open."""
    heard: list[tuple[int, str]] = []
    commands = [["sh", "-c", "sleep 9 & echo one; printf two"], ["sh", "-c", "exit 3"]]
    with Interrupts() as interrupts:
        codes = run_several(commands, interrupts, at_once=1, hear=lambda *it: heard.append(it))
    assert codes == [0, 3]
    assert heard == [(0, "one"), (0, "two")]


@pytest.mark.rare
def test_a_report_of_a_run(env: dict[str, str], tmp_path: Path) -> None:
    words = ["run", "single", "--memory", "400M", "--report", "r.json"]
    done = lab(env, tmp_path, *words, "--", "sh", "-c", "exit 4")
    assert done.returncode == 4
    found = json.loads((tmp_path / "r.json").read_text())
    assert (found["code"], found["servers"], found["engine"]) == (4, ["mariadb 11.8.6"], "")
    done = lab(env, tmp_path, *words, "--disk", "1M", "--", "true")
    assert done.returncode == 2
    found = json.loads((tmp_path / "r.json").read_text())
    assert (found["code"], found["error"]) == (
        None,
        "a node's disk cannot be 1M: the image has 8M (set a larger --disk, or leave it out)",
    )
    with pytest.raises(InvalidSpec, match="20 can be"):
        flags.engine_list("--matrix", ",".join(f"e{number}" for number in range(21)))

"""Ctrl-C, SIGTERM, SIGHUP and broken pipes: real processes, real signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO

import pytest

from lab.errors import NotReady
from lab.wait import Deadline, attempts, until
from tests import ROOT
from tests.support.lifecycle_world import World
from tests.unit.cli.test_fake_lifecycle import HERE

FAR = 30.0
"""Seconds; only a test that fails waits so long."""


class Lab:
    """`lab` over the fake, as a process without a terminal."""

    def __init__(
        self, directory: Path, *argv: str, env: Mapping[str, str], stdout: IO[str]
    ) -> None:
        self.log = directory / "log"
        self.log.touch()
        self.process = subprocess.Popen(
            [sys.executable, str(HERE), *argv],
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            cwd=directory,
            env={**os.environ, "PYTHONPATH": str(ROOT), "FAKE_LOG": str(self.log), **env},
        )

    def wait_for(self, line: str) -> None:
        """Wait until the fake has written a line that begins so."""
        for _ in attempts(Deadline.after(FAR), most=0.02):
            if any(found.startswith(line) for found in self.lines()):
                return
        raise AssertionError(f"no {line!r} in {self.lines()}")

    def lines(self) -> list[str]:
        return self.log.read_text().splitlines()

    def send(self, number: int) -> None:
        self.process.send_signal(number)
        time.sleep(0.3)  # two equal signals that wait together are one

    def end(self) -> tuple[int, str]:
        """Exit code and stderr."""
        _, err = self.process.communicate(timeout=FAR)
        return self.process.returncode, err


class Start:
    """Starts `lab`, and ends what a failing test leaves."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._started: list[Lab] = []

    def __call__(self, *argv: str, stdout: int | IO[str] = subprocess.DEVNULL, **env: str) -> Lab:
        lab = Lab(self._directory, *argv, env=env, stdout=stdout)  # type: ignore[arg-type]
        self._started.append(lab)
        return lab

    def kill(self) -> None:
        for lab in self._started:
            lab.process.kill()
        # A command of `lab run` outlives it, and would keep its end of the pipes open.
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if (process / "cwd").resolve() == self._directory and self._started:
                    os.kill(int(process.name), signal.SIGKILL)
        for lab in self._started:
            lab.process.communicate(timeout=FAR)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    starter = Start(tmp_path)
    yield starter
    starter.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_undoes(start: Start, number: int) -> None:
    """Protects from half a lab: any of the three signals undoes, tells, and exits 130."""
    lab = start("up", "pxc", FAKE_UP="60")
    lab.wait_for("making")
    lab.send(number)
    code, err = lab.end()
    assert code == 130
    assert err.endswith("lab: interrupted, removing the lab ... done\n")
    assert lab.lines()[-1] == "undone"


def test_a_second_interrupt_does_not_break_the_undoing(start: Start) -> None:
    """Protects the undoing from an impatient user."""
    lab = start("up", "pxc", FAKE_UP="60", FAKE_UNDO="1")
    lab.wait_for("making")
    lab.send(signal.SIGINT)
    lab.wait_for("undoing")
    lab.send(signal.SIGINT)
    code, err = lab.end()
    assert code == 130
    assert err.splitlines()[-3:] == [
        "lab: interrupted, removing the lab ...",
        "lab: still removing the lab; one more interrupt stops at once and leaves the rest",
        "lab: done",
    ]
    assert lab.lines()[-1] == "undone"


def test_interrupts_do_not_cut_the_removal_of_what_failed(tmp_path: Path) -> None:
    """All or nothing, on the real program: `up` failed by itself and is cleaning up by then.

    The error that is reported, and its exit code, stay those of the failure.
    """
    root, log = tmp_path / "home", tmp_path / "log"
    child = ROOT / "tests/support/failing_up_child.py"
    path = str(ROOT)
    with subprocess.Popen(
        [sys.executable, str(child), str(root), str(log)], stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": path},
    ) as process:  # fmt: skip
        try:
            assert until(log.exists, Deadline.after(FAR))
            # A third one would end the program on the spot, as is documented.
            process.send_signal(signal.SIGINT)
            time.sleep(0.3)
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=FAR)
        finally:
            process.kill()
    assert process.returncode == NotReady.exit_code, err
    assert "still removing the lab" in err
    assert "a node is not ready" in err
    with World(root).open() as ctx:
        assert ctx.store.labs.all() == []
        assert ctx.hypervisor.guests() == {}
        assert not ctx.home.lab("shop").exists()
        assert not [v for v in ctx.storage.volumes() if v.name.owner.kind == "lab"]


def test_a_third_interrupt_exits_and_names_gc(start: Start) -> None:
    """Protects the way out of an undoing that hangs."""
    lab = start("up", "pxc", FAKE_UP="60", FAKE_UNDO="60")
    lab.wait_for("making")
    for _ in range(3):
        lab.send(signal.SIGINT)
    code, err = lab.end()
    assert code == 130
    assert err.endswith(
        "lab: error: stopped while cleaning up\nhint: `lab gc` removes what is left\n"
    )


def test_an_interrupt_during_the_undoing_of_a_failure_waits(start: Start) -> None:
    """Protects an undoing that no interrupt began: the error is still what is reported."""
    lab = start("up", "pxc", FAKE_UP_FAILS="1", FAKE_UNDO="0.5")
    lab.wait_for("undoing")
    lab.send(signal.SIGINT)
    code, err = lab.end()
    assert code == 5
    assert "still removing the lab" in err
    assert err.endswith("lab: error: no memory\nhint: free some\n")
    assert lab.lines()[-1] == "undone"


def test_an_ignored_hangup_stays_ignored(start: Start) -> None:
    """Protects `nohup lab up`."""
    lab = start("up", "pxc", FAKE_UP="0.5", FAKE_IGNORES_HUP="1")
    lab.wait_for("CreateLab")
    lab.send(signal.SIGHUP)
    assert lab.end()[0] == 0


def test_an_interrupt_of_what_makes_nothing_is_silent(start: Start) -> None:
    """Protects `lab logs -f` from talk of removing."""
    lab = start("logs", "-f", FAKE_LABS="a")
    lab.wait_for("logs")
    lab.send(signal.SIGINT)
    assert lab.end() == (130, "")


def test_a_removal_that_has_begun_is_ended(start: Start) -> None:
    """Protects `down`: an interrupt stops between two labs, not within one."""
    lab = start("down", "a", "b", FAKE_LABS="a b", FAKE_DOWN="0.5")
    lab.wait_for("DeleteLab a")
    lab.send(signal.SIGINT)
    assert lab.end()[0] == 130
    assert "is down a" in lab.lines()
    assert "DeleteLab b" not in lab.lines()


def test_a_broken_pipe_is_silent(start: Start) -> None:
    """Protects `lab logs -f | head -1`."""
    lab = start("logs", "-f", FAKE_LABS="a", stdout=subprocess.PIPE)
    assert lab.process.stdout is not None
    assert lab.process.stdout.readline() == "one\n"
    lab.process.stdout.close()
    assert lab.process.stderr is not None
    assert lab.process.stderr.read() == ""
    assert lab.process.wait(FAR) == 141


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_is_reported(start: Start, unbuffered: str) -> None:
    """Protects from output that is lost without a word, whenever it is written."""
    with Path("/dev/full").open("w") as full:
        lab = start("ls", FAKE_LABS="a", PYTHONUNBUFFERED=unbuffered, stdout=full)
        code, err = lab.end()
    assert code == 1
    assert "No space left on device" in err
    assert "Exception ignored" not in err


# -- lab run ---------------------------------------------------------------------------------


def removed(lab: Lab) -> bool:
    """Whether the lab that `run` made is gone."""
    lines = lab.lines()
    made = next(line.split()[-1] for line in lines if line.startswith(("DeleteLab", "is down")))
    return lines[-1] == f"is down {made}"


@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137), ("kill -15 $$", 143)]
)
def test_run_passes_the_exit_code(start: Start, script: str, code: int) -> None:
    """Protects CI: the command's exit code, as a shell would tell it; the lab is gone."""
    lab = start("run", "pxc", "--", "sh", "-c", script)
    assert lab.end()[0] == code
    assert removed(lab)


def test_run_gives_the_address(start: Start) -> None:
    """Protects the environment of the command, and its arguments."""
    lab = start("run", "pxc", "--name", "shop", "--", "sh", "-c", 'echo "$LAB_NAME $LAB_PORTS $1"',
                "-", "--debug", stdout=subprocess.PIPE)  # fmt: skip
    out, _ = lab.process.communicate(timeout=FAR)
    assert out == "shop 23306,23307,23308 --debug\n"
    assert lab.lines()[-1] == "is down shop"


def test_run_without_the_program_makes_no_lab(start: Start) -> None:
    """Protects from a minute's wait for a typo."""
    lab = start("run", "pxc", "--", "no-such-program")
    code, err = lab.end()
    assert code == 127
    assert "program 'no-such-program' not found" in err
    assert lab.lines() == []


def test_run_that_cannot_start_the_program_removes_the_lab(start: Start, tmp_path: Path) -> None:
    """Protects from a lab left by a program that is none."""
    (tmp_path / "tool").write_bytes(b"\x7fELF")
    (tmp_path / "tool").chmod(0o755)
    lab = start("run", "pxc", "--", "./tool")
    code, err = lab.end()
    assert code == 127
    assert "cannot run './tool': Exec format error" in err
    assert removed(lab)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_run_gives_a_signal_to_the_command_first(start: Start, number: int) -> None:
    """Protects the command's own cleaning: it ends in its own way, then the lab goes."""
    trap = "trap 'echo trapped >> log; exit 3' INT TERM HUP"
    script = f"{trap}; echo began >> log; while :; do sleep 0.1; done"
    lab = start("run", "pxc", "--", "sh", "-c", script)
    lab.wait_for("began")
    lab.send(number)
    assert lab.end()[0] == 3
    assert lab.lines().index("trapped") < len(lab.lines()) - 1
    assert removed(lab)


def test_run_ends_a_command_that_ignores_interrupts(start: Start) -> None:
    """Protects from a command that does not listen: the second signal ends it, a third kills."""
    lab = start(
        "run", "pxc", "--", "sh", "-c", "trap '' INT; echo began >> log; sleep 60; sleep 60"
    )
    lab.wait_for("began")
    lab.send(signal.SIGINT)
    lab.send(signal.SIGINT)
    assert lab.end()[0] == 143
    assert removed(lab)
    lab.log.write_text("")
    lab = start(
        "run",
        "pxc",
        "--",
        "sh",
        "-c",
        "trap '' INT TERM; echo began >> log; while :; do sleep 1; done",
    )
    lab.wait_for("began")
    for _ in range(3):
        lab.send(signal.SIGINT)
    assert lab.end()[0] == 137
    assert removed(lab)


def test_run_takes_the_command_s_children_along(start: Start, tmp_path: Path) -> None:
    """Protects the machine from what a test runner started and left."""
    lab = start("run", "pxc", "--", "sh", "-c", "sleep 60 & echo $! > pid; echo began >> log; wait")
    lab.wait_for("began")
    lab.send(signal.SIGTERM)
    assert lab.end()[0] == 143
    child = int((tmp_path / "pid").read_text())
    for _ in attempts(Deadline.after(FAR)):
        argv = ["ps", "-o", "state=", "-p", str(child)]
        state = subprocess.run(argv, check=False, capture_output=True, text=True).stdout
        if not state or state.startswith("Z"):
            return
    raise AssertionError("the command's child still runs")


def test_run_interrupted_while_the_lab_is_made(start: Start) -> None:
    """Protects from a command that runs without a lab, and from the lab left behind."""
    lab = start("run", "pxc", "--", "sh", "-c", "echo began >> log", FAKE_UP="60")
    lab.wait_for("making")
    lab.send(signal.SIGTERM)
    assert lab.end()[0] == 130
    assert "began" not in lab.lines()
    assert "undone" in lab.lines()


@pytest.mark.parametrize("verb", [("up", "pxc"), ("run", "pxc", "--", "touch", "began")])
def test_interrupted_while_a_lab_is_taken(start: Start, verb: tuple[str, ...]) -> None:
    """Protects from a lab that nobody knows of: its name is not known before it is taken."""
    lab = start(*verb, FAKE_AHEAD="pxc-3fa21c", FAKE_TAKE="1")
    lab.wait_for("taking")
    lab.send(signal.SIGINT)
    code, err = lab.end()
    assert code == 130
    assert "still taking a lab that was made ahead" in err
    assert lab.lines()[-1] == "is down pxc-3fa21c"
    assert not (lab.log.parent / "began").exists()


@pytest.mark.parametrize(("more", "code"), [((), 130), (("--exist-ok", "--name", "shop"), 0)])
def test_interrupted_once_the_lab_is_there(start: Start, more: tuple[str, ...], code: int) -> None:
    """Protects a lab that existed before: it is not the command's to remove."""
    lab = start("up", "pxc", *more, FAKE_LATE="1")
    assert lab.end()[0] == code
    assert [line for line in lab.lines() if line.startswith("is down")] == (
        ["is down pxc"] if code else []
    )


def test_interrupted_while_none_can_be_taken(start: Start) -> None:
    """Protects from minutes of a creation that nobody wants any more."""
    lab = start("up", "pxc", FAKE_AHEAD="", FAKE_TAKE="1")
    lab.wait_for("taking")
    lab.send(signal.SIGINT)
    assert lab.end()[0] == 130
    assert not [line for line in lab.lines() if line.startswith("making")]


def test_run_interrupted_twice_while_the_lab_is_removed(start: Start) -> None:
    """Protects the removal: it takes three signals to break it."""
    lab = start("run", "pxc", "--", "sh", "-c", "exit 4", FAKE_DOWN="1")
    lab.wait_for("DeleteLab")
    lab.send(signal.SIGINT)
    lab.send(signal.SIGINT)
    code, err = lab.end()
    assert code == 4
    assert "still removing the lab" in err
    assert removed(lab)


LOST = """
import signal, sys, time, weakref
from lab.cli.terminal.signals import Interrupts

class Thing:
    pass

def printed(_):
    try:
        signal.raise_signal(signal.SIGTERM)
    except BaseException:
        sys.excepthook(*sys.exc_info())

with Interrupts() as interrupts:
    interrupts.doing = "removing the lab"
    thing = Thing()
    kept = weakref.ref(thing, {callback})
    try:
        del thing
        time.sleep(20)
    except KeyboardInterrupt:
        interrupts.finish()
        print(interrupts.came)
"""


@pytest.mark.parametrize(
    "callback",
    ["lambda _: signal.raise_signal(signal.SIGTERM)", "printed"],
    ids=["of Python", "of a library in C"],
)
def test_an_interrupt_within_a_callback_is_not_lost(callback: str) -> None:
    """Protects Ctrl-C: Python prints what is raised in a callback, as in imports, and continues."""
    done = subprocess.run(
        [sys.executable, "-c", LOST.replace("{callback}", callback)],
        check=False, capture_output=True, text=True, timeout=FAR,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "1\n")
    assert done.stderr == "lab: interrupted, removing the lab ... done\n"


GENERATED = """
import signal, time
import msgspec
from lab.cli.terminal.signals import Interrupts
from lab.values import dataclass

class Signals(int):
    @property
    def __class__(self):
        if self.raised < 1:
            Signals.raised += 1
            signal.raise_signal(signal.SIGTERM)
        return int

Signals.raised = 0

@dataclass(frozen=True)
class Made:
    number: int = Signals(1)

with Interrupts() as interrupts:
    interrupts.doing = "removing the lab"
    try:
        print(msgspec.convert({"number": 2}, Made).number)
        time.sleep(20)
    except KeyboardInterrupt:
        interrupts.finish()
        print(interrupts.came, Signals.raised, Made(3).number)
"""


def test_an_interrupt_while_a_class_gets_its_methods_comes_afterwards() -> None:
    """Protects Ctrl-C of a remote client: msgspec would take it for a class that it cannot make."""
    done = subprocess.run(
        [sys.executable, "-c", GENERATED],
        check=False, capture_output=True, text=True, timeout=FAR,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "2\n1 1 3\n"), done.stderr
    assert done.stderr == "lab: interrupted, removing the lab ... done\n"

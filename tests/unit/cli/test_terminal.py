"""On a terminal: the spinner, and who gets what is typed."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path

import pytest

from lab.cli.terminal.progress import CLEAR, Notes, Spinner
from lab.progress import Event
from lab.wait import Deadline
from tests import ROOT
from tests.unit.cli.test_fake_lifecycle import HERE


def on_terminal(directory: Path, *argv: str, type_at: str = "", **env: str) -> tuple[int, str]:
    """Run `lab` over the fake on a new terminal; type Ctrl-C once ``type_at`` is shown.

    Exit code, and all that the terminal showed.
    """
    if not shutil.which("setsid"):
        pytest.skip("needs setsid, of util-linux")
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        # A terminal sends signals only to a session that it controls.
        ["setsid", "--ctty", "--wait", sys.executable, str(HERE), *argv],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", **env},
    )
    os.close(theirs)
    shown = b""
    deadline = Deadline.after(30)
    try:
        while not deadline.passed:
            if select.select([ours], [], [], 0.1)[0]:
                try:
                    shown += os.read(ours, 4096)
                except OSError:
                    break  # the other side is closed
            if type_at and type_at.encode() in shown:
                os.write(ours, b"\x03")
                type_at = ""
        return process.wait(timeout=5), shown.decode().replace("\r\n", "\n")
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def test_the_spinner_shows_the_step_and_leaves_no_trace(tmp_path: Path) -> None:
    """Protects the terminal: notes stay, the spinner goes before the table comes."""
    (tmp_path / "x").touch()
    code, shown = on_terminal(tmp_path, "image", "ls")
    assert code == 0
    assert CLEAR not in shown
    code, shown = on_terminal(tmp_path, "up", "pxc")
    assert code == 0
    assert f"{CLEAR}percona cannot be reached: using mariadb\n" in shown
    assert shown.rpartition(CLEAR)[2].startswith("NODE  ROLE")


def test_errors_are_red_where_that_is_wanted(tmp_path: Path) -> None:
    """Protects NO_COLOR."""
    assert "\x1b[1;31merror:" in on_terminal(tmp_path, "upp")[1]
    assert "\x1b[1;31merror:" in on_terminal(tmp_path, "upp", NO_COLOR="")[1]
    assert "lab: error: there" in on_terminal(tmp_path, "upp", NO_COLOR="1")[1]
    assert "lab: error: there" in on_terminal(tmp_path, "upp", TERM="dumb")[1]


def test_ctrl_c_reaches_the_command_once(tmp_path: Path) -> None:
    """Protects a command on the terminal: it gets Ctrl-C from there, not from us as well."""
    script = (
        "import os, signal, time\n"
        # Not print: the signal may come while it writes what the signal answers.
        "signal.signal(signal.SIGINT, lambda *_: os.write(1, b'got it\\n'))\n"
        "os.write(1, b'began\\n')\n"
        "end = time.monotonic() + 1\n"
        "while time.monotonic() < end: time.sleep(0.05)\n"
        "raise SystemExit(9)\n"
    )
    code, shown = on_terminal(
        tmp_path, "run", "pxc", "--", sys.executable, "-c", script, type_at="began"
    )
    assert code == 9
    assert shown.count("got it") == 1


def test_a_command_can_read_the_terminal(tmp_path: Path) -> None:
    """Protects interactive clients: what is in another process group is stopped instead."""
    assert on_terminal(tmp_path, "run", "pxc", "--", "sh", "-c", "stty size > size")[0] == 0
    assert (tmp_path / "size").read_text() == "0 0\n"


class Terminal(io.StringIO):
    """A stream that remembers, as UTF-8."""

    encoding = "utf-8"


def test_the_spinner_shows_what_takes_long() -> None:
    """Protects the durations: a second or more stays to be read; the last begun is shown."""
    stream = Terminal()
    with Spinner(stream) as spinner:
        spinner(Event("form", "begin", "forming the cluster"))
        spinner(Event("boot", "begin", "booting n1"))
        time.sleep(0.25)
        spinner(Event("boot", "end", "booting n1", 0.2))
        spinner(Event("form", "end", "forming the cluster", 41.2))
    shown = stream.getvalue()
    assert f"{CLEAR}⠋ booting n1  0s" in shown
    assert f"{CLEAR}✓ forming the cluster  41.2 s\n" in shown
    assert "✓ booting" not in shown
    assert shown.endswith(CLEAR)


def test_the_spinner_stays_on_its_line() -> None:
    """Protects narrow terminals, also where stdout is not one: a line that wraps is not cleared."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 30, 0, 0))
    with os.fdopen(theirs, "w") as stream, Spinner(stream) as spinner:
        spinner(Event("form", "begin", "waiting until every node can be used"))
        time.sleep(0.25)
        shown = os.read(ours, 4096).decode()
    os.close(ours)
    drawn = [line for line in shown.split(CLEAR) if "waiting" in line]
    assert drawn
    assert all(len(line) == 29 for line in drawn)


def test_the_spinner_falls_silent() -> None:
    """Protects the last word of an interrupt: nothing is drawn over it."""
    stream = Terminal()
    with Spinner(stream) as spinner:
        spinner(Event("form", "begin", "forming"))
        spinner.silence()
        spinner(Event("form", "note", "late"))
        time.sleep(0.15)
    assert "late" not in stream.getvalue()
    assert not stream.getvalue().endswith(CLEAR)


def test_without_a_terminal_there_are_notes_only() -> None:
    """Protects logs from animation."""
    stream = io.StringIO()
    with Notes(stream) as notes:
        for state in ("begin", "note", "end", "fail"):
            notes(Event("clone", state, f"text of {state}"))
    assert stream.getvalue() == "text of note\n"


def test_without_a_terminal_what_takes_long_has_a_line_now_and_then() -> None:
    """Protects who reads a log of CI: half an hour without a line looks like a hang."""
    stream = io.StringIO()
    with Notes(stream, every=0.05) as notes:
        notes(Event("load", "begin", "loading the data"))
        notes(Event("load", "update", "33M of 187M, 5m left"))
        while stream.getvalue().count("\n") < 2:
            time.sleep(0.01)
        notes(Event("load", "end", "loading the data", 0.2))
        before = stream.getvalue()
        time.sleep(0.15)
    assert before.splitlines()[0] == "loading the data: 33M of 187M, 5m left  0s"
    assert len(stream.getvalue().splitlines()) <= len(before.splitlines()) + 1
    silent = Notes(stream, every=0.01)
    silent.silence()
    with silent:
        silent(Event("load", "begin", "loading"))
        time.sleep(0.05)
    assert "loading  0s" not in stream.getvalue()


@pytest.mark.parametrize("kind", [Notes, Spinner])
def test_an_interrupt_while_the_thread_is_started(
    kind: type[Notes | Spinner], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects the interrupt: a thread that does not run yet cannot be waited for."""

    def interrupted(_: threading.Thread) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt), kind(Terminal()) as heard:
        heard(Event("form", "begin", "forming"))


def test_a_terminal_that_hangs_up_does_not_end_the_work() -> None:
    """Protects the work from the screen."""

    class Gone(Terminal):
        def write(self, _: str) -> int:
            raise OSError(5, "Input/output error")

    with Spinner(Gone()) as spinner:
        spinner(Event("form", "note", "x"))
        spinner(Event("form", "begin", "x"))
        spinner(Event("form", "end", "x", 2.0))


def test_signals_are_as_before_afterwards() -> None:
    """Protects whoever calls main() from within another program."""
    from lab.cli import main
    from tests.unit.cli.test_fake_lifecycle import FakeLifecycle

    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    main(["ls"], lifecycle=FakeLifecycle("a"))
    after = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    assert before == after

"""Programs in nodes over SSH: all of their streams, their signals, their exit codes."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from lab.lifecycle.nodes.ssh import ssh_command
from tests import ROOT
from tests.support.ssh_server import shell_server

pytestmark = [
    pytest.mark.skipif(not shutil.which("ssh"), reason="no ssh"),
    pytest.mark.skipif(not os.access("/run", os.W_OK), reason="programs are noted in /run"),
]

CHILD = """
import sys
from lab.cli.terminal.failure import report
from lab.cli.terminal.in_node import run_in_node
from lab.cli.terminal.signals import Interrupts
from lab.errors import LabError
way, words, timeout, stdin = {way!r}, sys.argv[1:], {timeout!r}, {stdin!r}
with Interrupts() as interrupts:
    try:
        code = run_in_node(way, "n1", words, interrupts, stdin=stdin, timeout=timeout)
    except LabError as error:
        code = report(error, interrupts, debug=False)
sys.exit(code)
"""


@pytest.fixture(scope="module")
def way(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """The ssh command for a server whose commands run here; its keys are at an odd path."""
    private = tmp_path_factory.mktemp('a b"%h')
    with shell_server(private) as port:
        yield ssh_command(private, "127.0.0.1", port)


def argv(way: Sequence[str], *words: str, timeout: float = 60.0, stdin: bool = False) -> list[str]:
    script = CHILD.format(way=list(way), timeout=timeout, stdin=stdin)
    return [sys.executable, "-c", script, *words]


def run(
    way: Sequence[str], *words: str, given: bytes | None = None, timeout: float = 60.0
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        argv(way, *words, timeout=timeout, stdin=given is not None),
        input=given,
        stdin=subprocess.DEVNULL if given is None else None,
        capture_output=True,
        cwd=ROOT,
        timeout=120,
        check=False,
    )


def test_streams_have_no_limit(way: list[str]) -> None:
    """Protects dumps and backups: what is written arrives, in both directions, whatever its size.

    Output of 3 MiB was lost by the guest agent, and input of 512 KiB took a quarter of an hour.
    """
    sent = os.urandom(1 << 20) * 20
    done = run(way, "cat", given=sent)
    assert (done.returncode, done.stderr) == (0, b""), done.stderr
    assert hashlib.sha256(done.stdout).digest() == hashlib.sha256(sent).digest()


def test_words_and_streams_stay_apart(way: list[str]) -> None:
    """Protects what users pass: blanks, quotes, dollars; no word is interpreted by a shell."""
    words = ["a b", "", "'\"$HOME`id`\\", "-x", "ž 🗑", "line\nbreak", "*"]
    done = run(way, sys.executable, "-c", "import sys; print(sys.argv[1:])", *words)
    assert done.stdout.decode() == f"{words}\n"
    done = run(way, "sh", "-c", "echo out; echo err >&2; exit 3")
    assert (done.returncode, done.stdout, done.stderr) == (3, b"out\n", b"err\n")


def test_stdin_is_not_read_unless_asked(way: list[str]) -> None:
    """Protects loops over lines of a file: `lab exec` in them does not take the rest."""
    assert run(way, "wc", "-c").stdout.strip() == b"0"


@pytest.mark.parametrize("code", [0, 1, 127, 254, 255])
def test_the_exit_code_is_the_program_s(way: list[str], code: int) -> None:
    """Protects scripts; 255 is also what ssh exits with when it cannot connect."""
    done = run(way, "sh", "-c", f"exit {code}")
    assert (done.returncode, done.stderr) == (code, b"")


def test_a_signal_that_ends_the_program_is_passed_on(way: list[str]) -> None:
    done = run(way, "sh", "-c", "kill -9 $$")
    assert done.returncode == 128 + 9


def test_a_program_that_is_stopped_has_not_ended(way: list[str]) -> None:
    """Protects from an exit code of a program that still runs."""
    script = "(sleep 1; kill -CONT $$) & sleep 0.3; kill -STOP $$; wait; exit 9"
    assert run(way, "sh", "-c", script).returncode == 9


def test_a_program_that_is_not_there(way: list[str]) -> None:
    """Protects from a message about SSH or an agent: the node answered."""
    done = run(way, "nosuchcmd", "-x")
    assert (done.returncode, done.stdout) == (127, b"")
    assert done.stderr == b"lab: error: n1 has no program nosuchcmd\n"


def test_a_node_that_does_not_answer(way: list[str]) -> None:
    """Protects from ssh's exit code 255 for what has another one here."""
    nobody = [word if not word.startswith("Port=") else "Port=1" for word in way]
    done = run(nobody, "true")
    assert done.returncode == 7
    assert b"n1 does not answer SSH" in done.stderr
    assert b"Connection refused" in done.stderr
    assert b"--agent" in done.stderr


def test_a_command_that_is_too_long(way: list[str]) -> None:
    done = run(way, "echo", "x" * 100_000)
    assert done.returncode == 2
    assert b"--stdin" in done.stderr


def test_a_time_limit(way: list[str]) -> None:
    """Protects from a program that never ends; it does not run on in the node."""
    mark = f"31.{os.getpid()}"
    done = run(way, "sleep", mark, timeout=2.0)
    assert done.returncode == 7
    assert b"sleep in n1 did not end within 2 s" in done.stderr
    assert not _runs(mark)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_are_for_the_program(way: list[str], number: signal.Signals) -> None:
    """Protects Ctrl-C: it is at once, the program's own handler runs, and nothing is left."""
    script = (
        "import signal, sys, time\n"
        f"signal.signal({int(number)}, lambda *_: (print('cleaned', flush=True), sys.exit(5)))\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    with _started(way, sys.executable, "-c", script) as process:
        began = time.monotonic()
        process.send_signal(number)
        out, _ = process.communicate(timeout=30)
        assert (process.returncode, out) == (5, b"cleaned\n")
        assert time.monotonic() - began < 10


def test_a_second_signal_kills(way: list[str]) -> None:
    """Protects from programs that ignore the first."""
    script = "trap '' INT TERM; echo ready; while :; do sleep 0.2; done"
    with _started(way, "sh", "-c", script) as process:
        process.send_signal(signal.SIGINT)
        time.sleep(1.0)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
        assert process.returncode == 128 + 9


def test_a_program_in_the_background(way: list[str]) -> None:
    """Protects what the help says: one that keeps stdout is waited for, another is not."""
    began = time.monotonic()
    done = run(way, "sh", "-c", "sleep 37 >/dev/null 2>&1 & echo started $!")
    assert done.stdout.startswith(b"started ")
    assert time.monotonic() - began < 30
    os.kill(int(done.stdout.split()[1]), signal.SIGKILL)


def test_nothing_is_left_in_the_node(way: list[str]) -> None:
    # The program is started by the script, which has the name of its file as a word.
    done = run(way, "sh", "-c", r"tr '\0' '\n' < /proc/$PPID/cmdline")
    ours = [name for name in done.stdout.decode().split() if re.fullmatch("[0-9a-f]{16}", name)]
    assert not Path(f"/run/lab-exec.{ours[0]}").exists()


def _started(way: Sequence[str], *words: str) -> subprocess.Popen[bytes]:
    """A program in the node that wrote ``ready``."""
    process = subprocess.Popen(
        argv(way, *words), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, cwd=ROOT
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process


def _runs(mark: str) -> bool:
    found = subprocess.run(["pgrep", "-f", f"^sleep {mark}$"], capture_output=True, check=False)
    return found.returncode == 0

"""Protects the one door to other programs: pipes, locks that outlive us, and ends that come."""

from __future__ import annotations

import fcntl
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.errors import CommandFailed, HostUnfit, InvalidSpec, NoProgram
from lab.run import (
    Beside,
    beside,
    conversation,
    feed,
    find,
    lines,
    output,
    require,
    run,
    runs,
    start,
)
from lab.wait import Deadline, until


def test_lines_come_as_they_are_printed() -> None:
    """Protects who follows a log: nothing waits for what is not printed yet, nothing is lost."""
    script = r"printf 'one\ntw'; sleep 0.3; printf 'o\n\377\nend'"
    found = list(lines(["sh", "-c", script], idle=0.1))
    assert [line for line in found if line is not None] == ["one", "two", "\ufffd", "end"]
    assert found.index(None) == 1
    with pytest.raises(CommandFailed) as caught:
        list(lines(["sh", "-c", "echo a; exit 3"], idle=5))
    assert caught.value.status == 3


def test_closed_lines_end_their_command(tmp_path: Path) -> None:
    """Protects the host from programs that print for nobody."""
    pid = tmp_path / "pid"
    found = lines(["sh", "-c", f"echo $$ > {pid}; echo a; exec sleep 60"], idle=0.05)
    assert next(found) == "a"
    assert next(found) is None
    found.close()
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


def test_output_comes_in_whole_pieces() -> None:
    pieces = list(output(["sh", "-c", "printf abc; sleep 0.1; printf defgh"], stall=5, chunk=3))
    assert pieces == [b"abc", b"def", b"gh"]
    assert list(output(["true"], stall=5, chunk=3)) == []


def test_output_tells_how_the_command_failed() -> None:
    pieces = output(["sh", "-c", "printf abc; echo why >&2; exit 3"], stall=5, chunk=3)
    assert next(pieces) == b"abc"
    with pytest.raises(CommandFailed) as caught:
        next(pieces)
    assert (caught.value.status, caught.value.stderr) == (3, "why\n")


def test_output_ends_a_command_that_is_silent_or_no_longer_wanted() -> None:
    start = time.monotonic()
    with pytest.raises(CommandFailed, match="signal 9"):
        list(output(["sleep", "60"], stall=0.2, chunk=1))
    pieces = output(["sh", "-c", "printf abc; sleep 60"], stall=60, chunk=1)
    next(pieces)
    pieces.close()  # type: ignore[attr-defined]  # a generator
    assert time.monotonic() - start < 5


def test_feed_gives_everything(tmp_path: Path) -> None:
    target = tmp_path / "copy"
    data = os.urandom(1 << 20)
    feed(["sh", "-c", f"sleep 0.1; cat > {target}"], [data, b"", data], stall=5)
    assert target.read_bytes() == data + data


def test_feed_reads_on_when_the_command_ends_early() -> None:
    """Protects the better of two explanations: the source's own."""
    seen = []

    def source(*, broken: bool) -> Iterator[bytes]:
        for index in range(10):
            seen.append(index)
            yield bytes(1 << 18)
        if broken:
            raise InvalidSpec("damaged")

    with pytest.raises(CommandFailed, match="status 4"):
        feed(["sh", "-c", "exit 4"], source(broken=False), stall=5)
    assert seen == list(range(10))
    with pytest.raises(InvalidSpec):
        feed(["sh", "-c", "exit 4"], source(broken=True), stall=5)


def test_feed_ends_a_command_that_takes_nothing(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match="signal 9"):
        feed(["sleep", "60"], [bytes(1 << 20)], stall=0.2)
    with pytest.raises(CommandFailed, match="signal 9"):
        feed(["sleep", "60"], [b"x"], stall=0.2)
    with pytest.raises(HostUnfit):
        feed([str(tmp_path / "absent")], [], stall=1)


def test_a_kept_lock_lasts_as_long_as_the_command(tmp_path: Path) -> None:
    """Protects what cleans up after a killed process: it can wait for its last command."""
    path = tmp_path / "lock"
    handle = os.open(path, os.O_RDWR | os.O_CREAT)
    fcntl.flock(handle, fcntl.LOCK_EX)
    # the shell ends at once, its child still runs
    run(["sh", "-c", "sleep 0.5 >/dev/null 2>&1 &"], timeout=5, keep=[handle])
    os.close(handle)
    with path.open() as file:
        with pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(file, fcntl.LOCK_EX)


def test_run_has_an_end_in_spite_of_children() -> None:
    start = time.monotonic()
    with pytest.raises(CommandFailed, match="signal 9") as caught:
        run(["sh", "-c", "sleep 60 & sleep 60"], timeout=0.2)
    assert "timed out after 0.2 s" in caught.value.stderr
    assert time.monotonic() - start < 4


def test_programs_of_administrators_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects ordinary users of Debian, whose PATH has no sbin: builds need sgdisk and mke2fs.

    What is looked for, what is started and what that starts again are found alike.
    """
    monkeypatch.setenv("PATH", "/usr/local/bin:/usr/bin:/bin")
    assert find("mke2fs") == require("mke2fs") == "/usr/sbin/mke2fs"
    script = ["sh", "-c", "command -v mke2fs"]
    assert run(["mke2fs", "-V"], timeout=10).stderr.startswith("mke2fs ")
    assert run(script, timeout=10).stdout == "/usr/sbin/mke2fs\n"
    assert run(script, timeout=10, env={"PATH": "/bin"}).stdout.endswith("sbin/mke2fs\n")
    assert list(lines(script, idle=10)) == ["/usr/sbin/mke2fs"]
    assert b"".join(output(script, stall=10, chunk=99)) == b"/usr/sbin/mke2fs\n"
    feed(["sh", "-c", "command -v mke2fs"], [], stall=10)
    with conversation(script, stall=10) as talk:
        assert talk.line(99) == b"/usr/sbin/mke2fs\n"


def test_path_of_the_user_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects programs that somebody put into their own PATH on purpose."""
    own = tmp_path / "mke2fs"
    own.write_text("#!/bin/sh\n")
    own.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert find("mke2fs") == str(own)


def test_programs_inherit_nothing_that_changes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects what we parse, and files that programs make, from our caller's surroundings."""
    monkeypatch.setenv("LC_ALL", "de_DE.ISO-8859-1")
    monkeypatch.setenv("LC_NUMERIC", "de_DE")
    monkeypatch.setenv("LANGUAGE", "de")
    monkeypatch.setenv("TZ", "Pacific/Kiritimati")
    monkeypatch.setenv("TAR_OPTIONS", "--help")
    monkeypatch.setenv("PATH", "")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "date").write_text("#!/bin/sh\necho ours\n")
    (tmp_path / "date").chmod(0o755)
    script = (
        'echo "$LC_ALL $TZ ${LANGUAGE-none} ${LC_NUMERIC-none}"; umask; date -d @0 +%H; : >made;'
        " tar --version | head -1; ls /proc/self/fd"
    )
    before = os.umask(0)
    extra = os.dup(0)
    os.set_inheritable(extra, True)
    try:
        printed = run(["sh", "-c", script], timeout=30).stdout.splitlines()
    finally:
        os.umask(before)
        os.close(extra)
    assert printed[:3] == ["C.UTF-8 UTC none none", "0022", "00"]
    assert "tar" in printed[3]
    assert printed[4:] == ["0", "1", "2", "3"]  # 3: the directory that ls reads
    assert (tmp_path / "made").stat().st_mode & 0o777 == 0o644


def test_a_program_is_not_looked_for_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects root in others' directories: an empty entry of PATH is the working directory."""
    (tmp_path / "nosuchprogram").write_text("#!/bin/sh\n")
    (tmp_path / "nosuchprogram").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    for path in ("", ":/usr/bin", "/usr/bin::/bin", "/usr/bin:"):
        monkeypatch.setenv("PATH", path)
        assert find("nosuchprogram") is None
        assert find("sh") is not None


def started(tmp_path: Path, script: str) -> Beside:
    """A shell beside us, once its script has made the file ``begun``; its last three lines."""
    begun = tmp_path / "begun"
    program = beside(["sh", "-c", script], env={**os.environ, "BEGUN": str(begun)}, lines=3)
    assert until(begun.exists, Deadline.after(20))
    return program


def test_whether_a_program_that_outlives_us_runs(tmp_path: Path) -> None:
    """Protects who waits for what it makes: also from one that was killed."""
    log = tmp_path / "log"
    assert not runs(log)
    ended = start(["echo", "early"], log=log, cwd=tmp_path, env={})
    os.waitpid(ended, 0)
    assert (runs(log), log.read_text()) == (False, "early\n")
    pid = start(["sleep", "300"], log=log, cwd=tmp_path, env={})
    assert runs(log)
    again = start(["true"], log=log, cwd=tmp_path, env={})  # while the one before still ends
    os.waitpid(again, 0)
    assert runs(log)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert not runs(log)


def test_a_program_beside_us_is_ended_with_its_children(tmp_path: Path) -> None:
    """Protects the host: also what the program itself does not wait for."""
    found = started(tmp_path, 'sleep 300 & echo $! >"$BEGUN.new"; mv "$BEGUN.new" "$BEGUN"; wait')
    ended = found.end()
    assert (ended.code, ended.by_itself) == (128 + 15, False)
    child = Path("/proc") / (tmp_path / "begun").read_text().strip() / "stat"

    def gone() -> bool:
        return not child.exists() or child.read_text().split()[2] == "Z"

    assert until(gone, Deadline.after(10))


def test_a_program_beside_us_may_end_in_its_own_way(tmp_path: Path) -> None:
    script = "trap 'echo bye; exit 3' TERM; echo a; echo b; echo c; : >$BEGUN; sleep 300 & wait"
    found = started(tmp_path, script).end()
    assert (found.code, found.by_itself, found.lines) == (3, False, ("b", "c", "bye"))


def test_a_program_beside_us_that_ended_by_itself(tmp_path: Path) -> None:
    program = started(tmp_path, "echo out; echo err >&2; : >$BEGUN; exit 4")
    assert until(lambda: program.over, Deadline.after(20))
    found = program.end()
    assert (found.code, found.by_itself, found.lines) == (4, True, ("out", "err"))


def test_a_program_beside_us_whose_start_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects the host: nobody else knows that it runs."""

    def interrupted(_: threading.Thread) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    name = f"left-{os.getpid()}"
    with pytest.raises(KeyboardInterrupt):
        beside(["sh", "-c", "sleep 300; :", name], env=os.environ, lines=1)

    def gone() -> bool:  # the kernel takes its time for a child that was forked just then
        return f" {name}\n" not in run(["ps", "-A", "-o", "args="], timeout=20).stdout

    assert until(gone, Deadline.after(10))


def test_a_program_beside_us_that_cannot_run() -> None:
    with pytest.raises(NoProgram, match="cannot run '/nowhere': No such file"):
        beside(["/nowhere"], env={}, lines=1)

"""Protects the protocol between two hosts: invalid lines are refused, errors are reported."""

from __future__ import annotations

import io
import json
import sys
import time

import pytest

from lab import run
from lab.errors import CommandFailed, Conflict, HostUnfit, InvalidSpec
from lab.exchange import talk
from lab.progress import Event, Progress
from tests.support.exchange_archives import image_header


@pytest.mark.parametrize(
    "host",
    ["db2", "admin@db2", "db2.example.org", "10.0.0.7", "root@fe80::1", "::1", "a_b@x-1", "h" * 63],
)
def test_hosts(host: str) -> None:
    argv = talk.ssh_argv(host, ["image", "import", "-"], command="lab")
    assert argv[-6:] == ["--", host, "lab", "image", "import", "-"]
    assert argv[0] == "ssh"


@pytest.mark.parametrize(
    "host",
    [
        "", "-oProxyCommand=reboot", "-l", "a@-x", "@db2", "db2;reboot", "db2 reboot", "db2\nx",
        "$(reboot)", "`reboot`", "a@b@c", "db2/", "ssh://db2", "db2-", "x" * 400, "db2|x", "db2&",
    ],
)  # fmt: skip
def test_what_is_no_host(host: str) -> None:
    """Protects against options and commands in the place of a host."""
    with pytest.raises(InvalidSpec, match="is not a host name"):
        talk.ssh_argv(host, [], command="lab")


@pytest.mark.parametrize("command", ["", "lab; reboot", "$(x)", "lab\nx", "a|b", "-x", "'lab'"])
def test_what_is_no_command(command: str) -> None:
    with pytest.raises(InvalidSpec, match="is not a command"):
        talk.ssh_argv("db2", [], command=command)


def test_a_command_may_have_words() -> None:
    argv = talk.ssh_argv("db2", ["-q"], command="sudo lab --home=/srv/lab")
    assert argv[-4:] == ["sudo", "lab", "--home=/srv/lab", "-q"]


def _remote(script: str, heard: list[Event]) -> tuple[list[str], Progress]:
    return [sys.executable, "-c", script], Progress(heard.append)


def _say(*lines: object) -> str:
    text = "".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines)
    return f"import sys; sys.stdout.write({text!r}); sys.stdout.flush(); sys.stdin.read()"


HELLO = {"hello": {"archive": 1, "storage": "qcow2"}}


def _greet(script: str) -> tuple[dict[str, object], list[Event]]:
    heard: list[Event] = []
    argv, progress = _remote(script, heard)
    with run.conversation(argv, stall=20) as conversation:
        return talk.Remote(conversation, "db2", progress).greet(), heard


def test_a_greeting_behind_what_a_shell_prints() -> None:
    hello, _ = _greet(_say("Welcome!", "", '{"x": 1, "y": 2}', "[1]", HELLO))
    assert hello == HELLO["hello"]


@pytest.mark.parametrize("hello", [{"archive": 2, "storage": "zfs"}, "hello", None, {}])
def test_another_protocol_is_reported(hello: object) -> None:
    with pytest.raises(InvalidSpec, match="db2 has another version of lab"):
        _greet(_say({"hello": hello}))


def test_endless_banners_are_no_greeting() -> None:
    with pytest.raises(InvalidSpec, match="unexpected line: 'la'"):
        _greet("while True: print('la')")


def test_steps_and_notes_are_passed_on_as_text() -> None:
    """Protects the terminal: the other side cannot draw on it."""
    lines = [{"doing": "unpacking"}, {"note": "cold \x1b[2J\x07 because"}, HELLO]
    _, heard = _greet(_say(*lines))
    assert [(e.state, e.text) for e in heard] == [
        ("begin", "db2: unpacking"),
        ("note", "db2: cold  [2J  because"),
        ("end", "db2: unpacking"),
    ]


def test_the_speaker_says_what_the_remote_hears() -> None:
    heard: list[Event] = []
    to = io.BytesIO()
    speaker = talk.Speaker(to)
    hear = speaker.retell(heard.append)
    for event in (Event("a", "begin", "doing"), Event("a", "end", "x"), Event("b", "note", "this")):
        hear(event)
    assert [json.loads(line) for line in to.getvalue().splitlines()] == [
        {"doing": "doing"},
        {"note": "this"},
    ]
    assert len(heard) == 3


def test_parts_that_nobody_has_are_not_wanted() -> None:
    with run.conversation(["cat"], stall=5) as conversation:
        remote = talk.Remote(conversation, "db2", Progress())
        assert remote.wanted({"image/os": 3}, image_header()) == {"image/os": 3}
        odd: list[object] = [{"x": 0}, {"image/os": -1}, {"image/os": True}, ["image/os"], None]
        for what in odd:
            with pytest.raises(InvalidSpec, match="parts that do not exist"):
                remote.wanted(what, image_header())
        assert remote.done({"outcome": "exists"}) == talk.Done("exists")
        assert remote.done({"outcome": "imported", "lab": "shop"}) == talk.Done("imported", "shop")
        assert remote.done({"lab": "\x1b[2J"}) == talk.Done("imported")
        assert remote.done(["?"]) == talk.Done("imported")


def _fails(status: int, stderr: str = "") -> str:
    return f"import sys; sys.stderr.write({stderr!r}); sys.exit({status})"


def test_the_other_sides_error_is_reported_unchanged() -> None:
    said = "lab: error: no space on /srv: 2G needed, 1G free\n  a detail\nhint: free some\n"
    argv, progress = _remote(_fails(5, said), [])
    with run.conversation(argv, stall=20) as conversation:
        remote = talk.Remote(conversation, "db2", progress)
        with pytest.raises(CommandFailed) as caught:
            remote.greet()
    error = talk.failure("db2", caught.value)
    assert isinstance(error, HostUnfit)
    assert str(error) == "db2: no space on /srv: 2G needed, 1G free"
    assert (error.hint, error.details) == ("free some", ("  a detail",))
    conflict = CommandFailed(["ssh"], 4, stderr="lab: error: busy\n")
    assert isinstance(talk.failure("db2", conflict), Conflict)


@pytest.mark.parametrize(
    ("status", "hint"), [(255, "ssh db2 true"), (127, "--remote-lab"), (1, "")]
)
def test_errors_of_ssh_are_reported(status: int, hint: str) -> None:
    error = talk.failure("db2", CommandFailed(["ssh"], status, stderr="Permission denied\n"))
    assert isinstance(error, CommandFailed)
    assert error.details == ("Permission denied",)
    assert hint in error.hint
    assert "ssh db2" in str(error)
    assert "same command again" in talk.failure("db2", error, begun=True).hint


def test_a_remote_that_ends_while_it_is_written_to() -> None:
    """Protects the cause: not that the pipe broke, but what the other side said."""
    with run.conversation([sys.executable, "-c", _fails(3, "lab: error: gone\n")], stall=20) as it:
        with pytest.raises(CommandFailed) as caught:
            it.write(bytes(1 << 23))
        assert caught.value.status == 3
        assert caught.value.stderr == "lab: error: gone\n"


@pytest.mark.rare
def test_a_remote_that_hangs() -> None:
    began = time.monotonic()
    with run.conversation(["sleep", "60"], stall=0.2) as it:
        with pytest.raises(CommandFailed, match="signal 9"):
            it.write(bytes(1 << 20))
        with pytest.raises(CommandFailed, match="signal 9"):
            it.line(100)
    assert time.monotonic() - began < 20


def test_a_long_line_has_an_end() -> None:
    with run.conversation(["cat"], stall=5) as it:
        it.write(b"x" * 100)
        it.flush()
        it.close()
        assert it.line(10) == b"x" * 10

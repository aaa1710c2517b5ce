"""What is asked of a node, with the real shell."""

from __future__ import annotations

import secrets

from lab.bundle import questions
from lab.run import run


def test_each_answer_has_its_name() -> None:
    """Protects readers from an answer under another's name, also where a command fails."""
    mark = secrets.token_hex(16)
    commands = {
        "one": "echo it is one; echo 'and more'",
        "two": "echo broken >&2; exit 3",
        "three": "head -c 200000 /dev/zero | tr '\\0' x",
        "four": "cat; echo $((1 + 1))",
    }
    done = run(["/bin/sh", "-s"], stdin=questions.script(commands, mark).encode(), timeout=30)
    found = questions.parts(done.stdout, mark, commands)
    assert list(found) == list(commands)
    assert found["one"] == "it is one\nand more\n"
    assert found["two"] == "broken\n"
    assert found["three"].strip() == "x" * (64 << 10), "the last bytes"
    assert found["four"] == "2\n"


def test_the_questions_are_shell() -> None:
    """Protects bundles from a command whose quotes do not close."""
    mark = secrets.token_hex(16)
    for number in range(questions.ROUNDS):
        commands = questions.commands(number, server=True)
        script = questions.script(commands, mark)
        run(["/bin/sh", "-n"], stdin=script.encode(), timeout=10)
        done = run(["/bin/sh", "-s"], stdin=script.encode(), timeout=120)
        found = questions.parts(done.stdout, mark, commands)
        assert list(found) == list(commands)
        assert "MemTotal" in found["meminfo"]
    assert "hostname" not in questions.commands(1, server=False)


def test_a_guest_names_no_files() -> None:
    """Protects who unpacks a bundle: whoever is root in a guest knows the mark."""
    answer = "\nM one\nfirst\nM ../../../etc/cron.d/x\n* * * * * root id\nM /abs\nx"
    assert questions.parts(answer, "M", {"one"}) == {"one": "first"}

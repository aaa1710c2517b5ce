"""Image builds of ordinary users: the ids that are mapped, and the errors where that is impossible.

The namespace itself is made by tests/e2e/test_user.py, as a user of this machine.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

import pytest

from lab.imagebuild import userns
from lab.imagebuild.userns import Host, as_root, confined, mapping, problem, subordinate

TOOLS = ("newuidmap", "newgidmap", "aa-exec")
SYSCTL = "proc/sys/kernel/apparmor_restrict_unprivileged_userns"
RANGE = "root:100000:65536\nann:165536:65536\n1001:300000:65536\n"


def machine(root: Path, *, tools: Collection[str] = TOOLS, **files: str) -> Host:
    """A machine with these programs; ``files``: subuid, subgid, restricted, profile."""
    places = {
        "subuid": "etc/subuid",
        "subgid": "etc/subgid",
        "restricted": SYSCTL,
        "profile": "etc/apparmor.d/mmdebstrap",
    }
    for name, text in ({"subuid": RANGE, "subgid": RANGE} | files).items():
        path = root / places[name]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Host(root, lambda tool: tool if tool in tools else None)


def test_ids_of_a_user_by_name_and_number() -> None:
    text = RANGE + "ann:400000:1000\nann:bad:1\nanna:1:1\nann\n\n"
    assert subordinate(text, "ann", 7) == [(165536, 65536), (400000, 1000)]
    assert subordinate(text, "bob", 1001) == [(300000, 65536)]
    assert subordinate("", "ann", 7) == []


@pytest.mark.parametrize(
    "more", ["1001:165536:65536", "ann:200000:65536", "ann:100000:65537", "ann:900000:0"]
)
def test_no_id_is_mapped_twice(more: str) -> None:
    """Protects a user with a line for the name and one for the number: newuidmap refuses both."""
    assert subordinate(f"ann:165536:65536\n{more}\n", "ann", 1001) == [(165536, 65536)]


def test_mapping_has_no_holes() -> None:
    """Protects ``nobody`` and all accounts of a guest: ids from 1 on, whatever the ranges."""
    assert mapping(1001, [(165536, 60000), (400000, 5536)]) == [
        *("0", "1001", "1"),
        *("1", "165536", "60000"),
        *("60001", "400000", "5536"),
    ]


def test_a_prepared_host_has_no_problem(tmp_path: Path) -> None:
    host = machine(tmp_path)
    assert problem("ann", 7, host) is None
    assert problem("bob", 1001, host) is None
    assert confined(host) == []


@pytest.mark.parametrize("absent", ["newuidmap", "newgidmap"])
def test_uidmap_is_asked_for(tmp_path: Path, absent: str) -> None:
    """Protects users of a host that root prepared before uidmap was part of that."""
    found = problem("ann", 7, machine(tmp_path, tools=set(TOOLS) - {absent}))
    assert found is not None
    assert found.what.startswith(f"{absent} not found")
    assert "the package uidmap" in found.hint


def test_missing_ids_come_with_the_command_that_gives_them(tmp_path: Path) -> None:
    """Protects other users: the ranges in the hint are free."""
    found = problem("eve", 1005, machine(tmp_path))
    assert found is not None
    assert found.what.startswith("eve has 0 subordinate ids in /etc/subuid")
    assert found.hint == (
        "as root: usermod --add-subuids 365536-431071 --add-subgids 365536-431071 eve"
    )
    host = machine(tmp_path, subgid="ann:100000:1000\n")
    found = problem("ann", 7, host)
    assert found is not None
    assert "ann has 1000 subordinate ids in /etc/subgid" in found.what
    assert found.hint == "as root: usermod --add-subgids 101000-166535 ann"


def test_a_user_without_any_file(tmp_path: Path) -> None:
    host = Host(tmp_path, lambda tool: tool)
    found = problem("ann", 7, host)
    assert found is not None
    assert "100000-165535" in found.hint


def test_apparmor_of_ubuntu_24_04(tmp_path: Path) -> None:
    """Protects users there: a profile that Ubuntu ships allows it, or the refusal comes at once."""
    host = machine(tmp_path / "a", restricted="1\n", profile="profile mmdebstrap")
    assert problem("ann", 7, host) is None
    assert confined(host) == ["aa-exec", "-p", "mmdebstrap", "--"]
    for case, host in {
        "no profile": machine(tmp_path / "b", restricted="1\n"),
        "no aa-exec": machine(tmp_path / "c", tools=TOOLS[:2], restricted="1\n", profile="x"),
    }.items():
        found = problem("ann", 7, host, "mysql-8.4")
        assert found is not None, case
        assert "apparmor_restrict_unprivileged_userns" in found.what
        assert found.hint == as_root("mysql-8.4")
        assert "lab image build mysql-8.4 &&" in found.hint
        assert confined(host) == []
    assert confined(machine(tmp_path / "d", restricted="0\n", profile="x")) == []


def test_the_program_says_what_is_missing() -> None:
    """Protects scripts/setup-host, which asks this before anything is installed."""
    argv = [sys.executable, "-I", "-S", userns.__file__, "--check"]
    # An id without an account has no subordinate ids.
    done = subprocess.run(
        ["setpriv", "--reuid", "54321", "--clear-groups", *argv],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    if "setresuid failed" in done.stderr or "setgroups failed" in done.stderr:
        pytest.skip("needs root to become another user")
    assert done.returncode == 1, done
    what, hint = done.stderr.splitlines()
    assert ("54321 has 0 subordinate ids" in what) or ("not found" in what)
    assert "as root" in hint

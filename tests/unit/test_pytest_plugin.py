"""The pytest plugin, in pytest: labs for tests, here and of a service."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from serve_world import Site, site

from lab.paths import Home
from lab.state.store import Store

pytest_plugins = ["pytester"]

TESTS = """
    def note(lab):
        with open("names", "a") as file:
            file.write(f"{lab.name} {len(lab.nodes)} {lab.memory >> 20}\\n")

    def test_one(lab, lab_dsn):
        assert lab.state == "ready"
        assert lab_dsn == lab.dsn and lab_dsn.startswith("mysql://lab:")
        note(lab)

    def test_two(lab):
        note(lab)
"""


@pytest.fixture
def here(
    pytester: pytest.Pytester, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> pytest.Pytester:
    """A project with two tests that want labs, on a host of fakes."""
    env = {"LAB_HOME": tmp_path / "home", "XDG_CONFIG_HOME": tmp_path / "config",
           "LAB_HYPERVISOR": "fake", "LAB_STORAGE": "fake", "LAB_SPACE_FLOOR": "1M",
           "LAB_MEMORY_FLOOR": "1M", "LAB_PORT_RANGE": "33000-33999"}  # fmt: skip
    for name, value in env.items():
        monkeypatch.setenv(name, str(value))
    pytester.makepyfile(TESTS)
    (pytester.path / "lab.toml").write_text('blueprint = "pxc"\nmemory = "400M"\nname = "mine"\n')
    return pytester


def run(pytester: pytest.Pytester, *words: str) -> pytest.RunResult:
    return pytester.runpytest_inprocess("-p", "no:cacheprovider", *words)


def names(pytester: pytest.Pytester) -> list[list[str]]:
    return [line.split() for line in (pytester.path / "names").read_text().splitlines()]


def labs(home: Path) -> list[str]:
    """What there is of labs in a home."""
    with Store(Home(home)) as store:
        recorded = [lab.name for lab in store.labs.all()]
    return recorded + [path.name for path in (home / "labs").iterdir()]


def test_a_lab_for_each_test(here: pytest.Pytester, tmp_path: Path) -> None:
    """Protects tests from each other, and the host from labs that outlive them."""
    result = run(here, "--lab", "galera", "--lab-nodes", "2")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["lab: galera, 2 nodes, by this host"])
    (one, *size), (two, *_) = names(here)
    assert one != two
    assert one.startswith("test-")  # not the one name of lab.toml, for which many would fight
    assert size == ["2", "400"]
    assert labs(tmp_path / "home") == []


def test_one_lab_for_all(here: pytest.Pytester, tmp_path: Path) -> None:
    """Protects suites that are in a hurry; and the lab goes although a test fails."""
    here.makepyfile(test_z="def test_fails(lab_dsn):\n    assert lab_dsn == 0\n")
    result = run(here, "--lab", "galera", "--lab-nodes=1", "--lab-scope=session", "--lab-ttl=5m")
    result.assert_outcomes(passed=2, failed=1)
    (one, *_), (two, *_) = names(here)
    assert one == two
    assert labs(tmp_path / "home") == []
    result.stdout.fnmatch_lines(["lab_dsn = 'mysql://lab:[*][*][*]@127.0.0.1:*/'"])


def test_without_the_flag_nothing_is_made(here: pytest.Pytester) -> None:
    """Protects who runs the other tests of such a project: no lab, no wait, no import."""
    result = run(here, "-rs")
    result.assert_outcomes(skipped=2)
    result.stdout.fnmatch_lines(["*it needs a lab: pytest --lab BLUEPRINT*"])
    code = "import sys, lab.pytest_plugin; print([m for m in sys.modules if m.startswith('lab.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "['lab.pytest_plugin']\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--lab", "galora"], "*there is no blueprint 'galora'*"),
        (["--lab", "galera", "--lab-nodes", "12"], "*a lab has 1 to 9 nodes, not 12*"),
        (["--lab", "galera", "--lab-ttl", "soon"], "*--lab-ttl: 'soon' is not a duration*"),
    ],
)
def test_a_wrong_flag_is_told_first(here: pytest.Pytester, words: list[str], said: str) -> None:
    """Protects who mistypes from one error for each test."""
    result = run(here, *words)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([said])


@pytest.fixture
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site(tmp_path_factory.mktemp("plugin")) as found:
        yield found


def test_labs_of_a_service(
    here: pytest.Pytester,
    service: Site,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Protects CI machines that run no guests; and a refusal is told in one piece."""
    url = str(service.client.base_url)
    monkeypatch.setenv("LAB_URL", url)
    monkeypatch.setenv("LAB_TOKEN", service.token())
    result = run(here, "--lab", "galera", "--lab-nodes", "1")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines([f"lab: galera, 1 nodes, by {url.rstrip('/')}*"])
    assert labs(service.service.settings.home.root) == []
    assert len({name for name, *_ in names(here)}) == 2
    monkeypatch.setenv("LAB_TOKEN", service.token("poor", project="poor", labs=0))
    refused = run(here, "--lab", "galera", "--lab-nodes", "1")
    refused.assert_outcomes(errors=2)
    refused.stdout.fnmatch_lines(["lab: error: the project poor may have 0 of labs*"])
    refused.stdout.no_fnmatch_line("*Traceback*")

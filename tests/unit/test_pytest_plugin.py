"""The pytest plugin, in pytest: labs for tests, here and of a service."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.support.serve_process import environment, serving

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


RESETS = """
    import pytest
    from lab.cli import main

    def sql(lab, statement):
        assert main(["sql", lab.name, "-e", statement]) == 0

    @pytest.fixture(scope="session")
    def loaded(lab):
        if LOADED:
            sql(lab, "CREATE TABLE loaded (a INT)")
        return lab

    @pytest.fixture(autouse=True)
    def clean(loaded):
        dsn = loaded.dsn
        loaded.reset()
        assert (loaded.state, loaded.dsn, loaded.started) == ("ready", dsn, "warm")

    @pytest.mark.parametrize("number", range(3))
    def test_each_starts_from_the_same(lab, number, capsys):
        sql(lab, "CREATE TABLE mine (a INT)")
        capsys.readouterr()
        assert main(["snapshot", "ls", lab.name, "-o", "json"]) == 0
        import json
        found = json.loads(capsys.readouterr().out)
        assert [(one["name"], one["warm"]) for one in found] == [
            ("origin", False), ("pytest", True)]
        if LOADED:
            sql(lab, "SELECT * FROM loaded")
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
    # Not in this process, nor a service in it: pytester makes it forget what it imports meanwhile,
    # and other tests would then meet two of each class.
    return pytester.runpytest_subprocess("-p", "no:cacheprovider", *words)


def names(pytester: pytest.Pytester) -> list[list[str]]:
    return [line.split() for line in (pytester.path / "names").read_text().splitlines()]


def labs(home: Path) -> list[str]:
    """What there is of labs in a home."""
    return [path.name for path in (home / "labs").iterdir()]


def test_a_lab_for_each_test(here: pytest.Pytester, tmp_path: Path) -> None:
    """Protects tests from each other, and the host from labs that outlive them."""
    result = run(here, "--lab", "galera", "--lab-nodes", "2")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["lab: galera, nodes: 2, by this host"])
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


FAILING = """
    import pytest

    def test_passes(lab):
        note(lab)

    def test_fails(lab):
        note(lab)
        assert 0

    def note(lab):
        with open("names", "a") as file:
            file.write(f"{lab.name}\\n")
"""


@pytest.mark.parametrize("scope", ["function", pytest.param("session", marks=pytest.mark.rare)])
def test_a_lab_whose_test_failed(here: pytest.Pytester, tmp_path: Path, scope: str) -> None:
    """Protects the evidence of a failure in CI; labs of tests that passed go as always."""
    here.makepyfile(FAILING)
    words = ["--lab", "galera", "--lab-nodes=1", f"--lab-scope={scope}", "--lab-on-failure"]
    here.mkdir("out")
    result = run(here, *words, "bundle=out")
    result.assert_outcomes(passed=1, failed=1)
    ((one,), (two,)) = names(here)
    (path,) = (here.path / "out").iterdir()
    assert path.name.startswith(f"{two}-")
    result.stdout.fnmatch_lines([f"lab: {path}: * failed)"])
    assert labs(tmp_path / "home") == []
    (here.path / "names").unlink()
    run(here, *words, "keep=2h").assert_outcomes(passed=1, failed=1)
    ((one,), (two,)) = names(here)
    assert (one == two) == (scope == "session")
    assert labs(tmp_path / "home") == [two]
    assert run(here, *words, "burn").ret == pytest.ExitCode.USAGE_ERROR


MATRIX = """
    import pytest

    @pytest.fixture(scope="session")
    def schema(lab_session):
        return lab_session.engines

    def test_all(lab, schema, lab_engine):
        with open("names", "a") as file:
            file.write(f"all {lab_engine} {lab.engines[0]} {schema == lab.engines}\\n")

    @pytest.mark.parametrize("lab_engine", ["mariadb:10.11"], indirect=True)
    def test_its_own(lab_dsn, lab):
        with open("names", "a") as file:
            file.write(f"own {lab.engines[0]}\\n")

    def test_without():
        pass
"""


@pytest.mark.parametrize("scope", ["function", pytest.param("session", marks=pytest.mark.rare)])
def test_each_test_with_each_engine(here: pytest.Pytester, tmp_path: Path, scope: str) -> None:
    """Protects who tests an upgrade: the engine is a parameter of the fixture."""
    here.makepyfile(MATRIX)
    (here.path / "lab.toml").write_text('memory = "400M"\n')
    result = run(
        here,
        "--lab=single",
        "--lab-matrix=mariadb:11.8,mariadb:10.11",
        f"--lab-scope={scope}",
        "-v",
    )
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines(["lab: single, nodes: 1, on mariadb:11.8, mariadb:10.11, by *"])
    result.stdout.fnmatch_lines(["*test_all?mariadb:10.11? PASSED*"])
    assert sorted(" ".join(words) for words in names(here)) == [
        "all mariadb:10.11 mariadb 10.11.6 True",
        "all mariadb:11.8 mariadb 11.8.6 True",
        "own mariadb 10.11.6",
    ]
    assert labs(tmp_path / "home") == []


@pytest.mark.rare
def test_a_matrix_that_cannot_be(here: pytest.Pytester) -> None:
    for words, text in (
        (["--lab=galera", "--lab-matrix=mysql"], "*galera cannot run on the engine 'mysql'*"),
        (["--lab=galera", "--lab-matrix=a,"], "*'' is not an engine*"),
        (["--lab=galera", "--lab-matrix=mariadb", "--lab-engine=mariadb"], "*leave out any other*"),
    ):
        run(here, *words).stderr.fnmatch_lines([text])


SESSION = """
    import pytest

    @pytest.fixture(scope="session")
    def schema({fixture}):
        return {fixture}.name

    def test_loaded(schema):
        assert schema.startswith("test-")

    def test_loaded_again(schema, lab):
        assert (schema == lab.name) == {same}

    def test_alone():
        pass
"""


@pytest.mark.rare
@pytest.mark.parametrize("scope", ["function", "session"])
def test_a_fixture_of_the_session_can_have_a_lab(
    here: pytest.Pytester, tmp_path: Path, scope: str
) -> None:
    """Protects suites from a flag that must always be given; tests without labs run in any case."""
    here.makepyfile(SESSION.format(fixture="lab_session", same=scope == "session"))
    run(here).assert_outcomes(passed=1, skipped=2)
    result = run(here, "--lab", "galera", "--lab-nodes=1", f"--lab-scope={scope}")
    result.assert_outcomes(passed=3)
    assert labs(tmp_path / "home") == []


@pytest.mark.rare
def test_the_scope_can_be_set_once_for_a_project(here: pytest.Pytester) -> None:
    """Protects a project whose session fixtures use `lab`: it needs no flag for that."""
    here.makepyfile(SESSION.format(fixture="lab", same=True))
    here.makeini("[pytest]\nlab_scope = session\n")
    run(here).assert_outcomes(passed=1, skipped=2)
    run(here, "--lab", "galera", "--lab-nodes=1").assert_outcomes(passed=3)
    here.makeini("[pytest]\nlab_scope = module\n")
    run(here).stderr.fnmatch_lines(["*lab_scope is one of function, session*"])


def test_a_lab_is_reset_between_tests(here: pytest.Pytester) -> None:
    """Protects tests from what earlier ones wrote, and what was loaded before the first reset."""
    here.makepyfile("LOADED = True\n" + textwrap.dedent(RESETS))
    result = run(here, "--lab", "galera", "--lab-nodes=1", "--lab-scope=session")
    result.assert_outcomes(passed=3)


@pytest.mark.rare
def test_a_reset_uses_the_snapshot_of_that_name(here: pytest.Pytester) -> None:
    """Protects who takes the snapshot `pytest` himself, at the moment of his choice."""
    here.makepyfile("""
        from lab.cli import main

        def test_one(lab):
            assert main(["snapshot", "take", lab.name, "--label", "pytest"]) == 0
            assert main(["sql", lab.name, "-e", "CREATE TABLE later (a INT)"]) == 0
            lab.reset()
            assert main(["sql", lab.name, "-e", "CREATE TABLE later (a INT)"]) == 0
            assert main(["snapshot", "rm", lab.name, "pytest"]) == 0
            lab.reset()
    """)
    result = run(here, "--lab", "galera", "--lab-nodes=1")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["lab: error: the lab test-* has no snapshot 'pytest.*'"])
    result.stdout.no_fnmatch_line("*Traceback*")


def test_without_the_flag_nothing_is_made(here: pytest.Pytester) -> None:
    """Protects who runs the other tests of such a project: no lab, no wait, no import."""
    result = run(here, "-rs")
    result.assert_outcomes(skipped=2)
    result.stdout.fnmatch_lines(["*needs a lab: pytest --lab BLUEPRINT*"])
    code = "import sys, lab.pytest_plugin; print([m for m in sys.modules if m.startswith('lab.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "['lab.pytest_plugin']\n"


def test_a_wrong_flag_is_reported_first(here: pytest.Pytester) -> None:
    """Protects who mistypes from one error for each test."""
    result = run(here, "--lab", "galora")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*there is no blueprint 'galora'*"])


@pytest.mark.rare
def test_labs_of_a_service(
    here: pytest.Pytester, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects CI machines that run no guests; and an error is one message."""
    with serving(environment(tmp_path / "there")) as service:
        monkeypatch.setenv("LAB_URL", service.url)
        monkeypatch.setenv("LAB_TOKEN", service.token)
        result = run(here, "--lab", "galera", "--lab-nodes", "1")
        result.assert_outcomes(passed=2)
        result.stdout.fnmatch_lines([f"lab: galera, nodes: 1, by {service.url}"])
        assert len({name for name, *_ in names(here)}) == 2
        resets = here.makepyfile(
            test_resets="""
            def test_resets(lab):
                for _ in range(3):
                    lab.reset()
                    assert lab.state == "ready"
            """
        )
        run(here, "--lab", "galera", "--lab-nodes=1", str(resets)).assert_outcomes(passed=1)
        resets.unlink()
        assert labs(tmp_path / "there" / "home") == []
        assert not (tmp_path / "home").exists()
        monkeypatch.setenv("LAB_TOKEN", "lab_nobody")
        refused = run(here, "--lab", "galera", "--lab-nodes", "1")
        refused.assert_outcomes(errors=2)
        refused.stdout.fnmatch_lines(["lab: error: *token*"])
        refused.stdout.no_fnmatch_line("*Traceback*")


@pytest.mark.rare
def test_labs_begin_with_a_dataset(here: pytest.Pytester) -> None:
    here.makefile(".sql", shop="CREATE TABLE loaded (a INT); INSERT INTO loaded VALUES (7);")
    create = ("dataset", "create", "shop", "--from", str(here.path / "shop.sql"))
    subprocess.run([sys.executable, "-m", "lab", *create], check=True, timeout=120)
    here.makepyfile("""
        from lab.cli import main

        def test_data(lab, capsys):
            assert main(["sql", lab.name, "-e", "SELECT a FROM loaded"]) == 0
            assert "7" in capsys.readouterr().out
    """)
    run(here, "--lab", "galera", "--lab-dataset", "shop@1").assert_outcomes(passed=1)
    refused = run(here, "--lab", "galera", "--lab-dataset", "sohp")
    refused.stdout.fnmatch_lines(["*there is no dataset ?sohp*", "*did you mean*shop*"])


@pytest.mark.rare
def test_labs_of_a_series(here: pytest.Pytester) -> None:
    here.makepyfile("""
        def test_series(lab):
            assert lab.nodes[0].image.startswith("mariadb-10.11-")
    """)
    run(here, "--lab", "single", "--lab-engine", "mariadb:10.11").assert_outcomes(passed=1)
    refused = run(here, "--lab", "single", "--lab-engine", "mariadb:10.1")
    refused.stdout.fnmatch_lines(["*there is no series '10.1' of mariadb for single*"])

"""pytest's plugin: labs as fixtures.

::

    pytest --lab pxc                       # a lab for each test that asks for one
    pytest --lab pxc --lab-scope session   # one for all of them
    pytest --lab single --lab-matrix mysql:9.7,mariadb:11.8   # each test on each engine

    def test_orders(lab_dsn): ...

    @pytest.fixture(scope="session")
    def schema(lab_session): ...           # one for all tests, whatever the flags are

    @pytest.fixture(autouse=True)
    def clean(lab):
        lab.reset()                        # as it was at the first reset, in seconds

Labs are created on this host, or by the service of LAB_URL. Values without a flag are those of
``lab.toml`` in pytest's root directory. Without ``--lab``, tests with these fixtures are skipped.
This file is loaded at each start of pytest, so it imports the rest of lab only when it is used.
"""

from __future__ import annotations

import re
import secrets
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, cast

import pytest

if TYPE_CHECKING:
    from lab.cli.app import App
    from lab.cli.verbs.on_failure import OnFailure
    from lab.config.labfile import LabValues
    from lab.errors import LabError
    from lab.spec import LabSpec
    from lab.views.labs import LabView

_LEASE = 3600.0
"""Seconds of a lab's lease by default: pytest may be killed before it removes the lab."""
_SCOPES = ("function", "session")
_SNAPSHOT = "pytest"
"""The name of the snapshot that ``reset`` takes, and goes back to."""
_PASSWORD = re.compile(r"(?<=:)[^:@/]+(?=@)")

SPEC = pytest.StashKey["LabSpec | None"]()
MATRIX = pytest.StashKey["list[str]"]()
"""The engines of ``--lab-matrix``."""
ON_FAILURE = pytest.StashKey["OnFailure | None"]()
"""What becomes of the lab of a test that failed."""
FAILED = pytest.StashKey[str]()
"""The last test that failed: of a test, it if that failed; of the session, with one lab for all."""


class Dsn(str):
    """A DSN whose password is not in its ``repr``, and so not in the report of a failed test."""

    __slots__ = ()

    def __repr__(self) -> str:
        return repr(_PASSWORD.sub("***", str(self)))


class TestLab:
    """A ready lab: its nodes, its DSN, its account and the other fields of ``LabView``."""

    __test__ = False

    def __init__(self, view: LabView) -> None:
        self._view = view
        self._label = ""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # such as those that copy and pickle look for
            raise AttributeError(name)
        return getattr(self._view, name)

    def __repr__(self) -> str:
        return f"TestLab({self._view.name!r})"

    def reset(self) -> None:
        """Put the lab back to its snapshot ``pytest``; the first call takes that if it is missing.

        A standby takes over, in a fraction of a second, and the next one is made in the
        background; where there is none yet, nodes resume from RAM. Address and account stay. Fails
        the test if that is not possible.
        """
        from lab.requests.labs import ResetLab
        from lab.requests.snapshots import TakeSnapshot

        with _failing(), _app().open() as session:
            name = self._view.name
            if not self._label:
                found = [one.label for one in session.snapshots(name) if one.name == _SNAPSHOT]
                if not found:
                    self._label = session.run(TakeSnapshot(lab=name, name=_SNAPSHOT)).label
                    return
                self._label = found[-1]
            self._view = session.run(
                ResetLab(lab=name, to=self._label),
                timeout=_app().settings().ready_timeout,
            )


def pytest_addoption(parser: pytest.Parser) -> None:
    """The flags."""
    group = parser.getgroup("lab", "labs of MySQL-family clusters")
    group.addoption("--lab", metavar="BLUEPRINT", help="create labs, such as pxc, for the fixtures")
    group.addoption(
        "--lab-nodes", metavar="N", type=int, help="nodes of a lab; default: the blueprint's"
    )
    group.addoption(
        "--lab-engine",
        metavar="ENGINE[:SERIES]",
        help="the engine of a lab, such as mariadb:10.11, see `lab engine ls`",
    )
    group.addoption(
        "--lab-matrix",
        metavar="ENGINE,...",
        help="run each test that needs a lab once with each engine",
    )
    group.addoption(
        "--lab-dataset",
        metavar="NAME[@VERSION]",
        help="the data that labs begin with, see `lab dataset ls`",
    )
    group.addoption("--lab-ttl", metavar="TIME", help="the lease of a lab, default 1h")
    group.addoption(
        "--lab-scope",
        choices=_SCOPES,
        default=None,
        help="a lab for each test that asks for one (default), or one for all",
    )
    group.addoption(
        "--lab-on-failure",
        metavar="bundle|capture|keep",
        help="if a test fails that has a lab: write a bundle of the lab, one with the lab in it"
        " (each also =DIRECTORY), or keep the lab for 30m (or keep=TIME)",
    )
    parser.addini("lab_scope", "function or session: the same, where no flag says it")


def pytest_configure(config: pytest.Config) -> None:
    """Parse the flags, so that an error is reported before any test runs."""
    config.stash[SPEC], config.stash[MATRIX], config.stash[ON_FAILURE] = None, [], None
    if _scope("", config) not in _SCOPES:
        raise pytest.UsageError(f"lab_scope is one of {', '.join(_SCOPES)}")
    if config.getoption("lab") is None:
        return
    from lab.errors import LabError

    try:
        config.stash[SPEC] = spec = _spec(config)
        if matrix := config.getoption("lab_matrix"):
            config.stash[MATRIX] = _engines(spec, matrix)
        if wanted := config.getoption("lab_on_failure"):
            from lab.cli.verbs import on_failure

            url = _app().settings().url
            config.stash[ON_FAILURE] = on_failure.parse("--lab-on-failure", wanted, url=url)
    except LabError as error:
        raise pytest.UsageError(_message(error)) from None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests that need a lab with each engine of ``--lab-matrix``, unless they name theirs."""
    engines: list[str] = metafunc.config.stash[MATRIX]
    own = [
        name.strip()
        for mark in metafunc.definition.iter_markers("parametrize")
        for names in (*mark.args[:1], *filter(None, [mark.kwargs.get("argnames")]))
        for name in (names.split(",") if isinstance(names, str) else names)
    ]
    if engines and "lab_engine" in metafunc.fixturenames and "lab_engine" not in own:
        metafunc.parametrize("lab_engine", engines, indirect=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note which tests with a lab failed, before their fixtures end."""
    report = yield
    if report.failed:
        item.stash[FAILED] = item.nodeid
        names = set(getattr(item, "fixturenames", ()))
        for_all = _scope("", item.config) == "session" and "lab" in names
        if for_all or "lab_session" in names:
            item.session.stash[FAILED] = item.nodeid
    return report


def pytest_report_header(config: pytest.Config) -> str | None:
    """The blueprint of the labs, and where they run."""
    spec = config.stash[SPEC]
    if spec is None:
        return None
    where = _app().settings().url or "this host"
    engines: list[str] = config.stash[MATRIX]
    on = f", on {', '.join(engines)}" if engines else ""
    return f"lab: {spec.blueprint}, nodes: {spec.node_count}{on}, by {where}"


def _scope(fixture_name: str, config: pytest.Config) -> Literal["function", "session"]:
    del fixture_name
    found = config.getoption("lab_scope") or config.getini("lab_scope") or _SCOPES[0]
    return cast("Literal['function', 'session']", found)


@pytest.fixture(scope="session")
def lab_engine(request: pytest.FixtureRequest) -> str:
    """The engine of the lab, which tests may parametrize; empty: that of the flags."""
    return str(getattr(request, "param", ""))


@pytest.fixture(scope="session")
def lab_session(request: pytest.FixtureRequest, lab_engine: str) -> Iterator[TestLab]:
    """As ``lab``, one for all tests: for fixtures of the scope ``session``."""
    request.session.stash[FAILED] = ""  # what failed with a former lab, of another engine
    yield from _made(request, lab_engine)


@pytest.fixture(scope=_scope)
def lab(
    request: pytest.FixtureRequest, pytestconfig: pytest.Config, lab_engine: str
) -> Iterator[TestLab]:
    """A ready lab: its nodes, its DSN, its account, and ``reset``."""
    if _scope("", pytestconfig) == "session":
        yield request.getfixturevalue("lab_session")
    else:
        yield from _made(request, lab_engine)


def _made(request: pytest.FixtureRequest, engine: str) -> Iterator[TestLab]:
    from lab.cli import flags
    from lab.requests.labs import CreateLab

    spec = request.config.stash[SPEC]
    if spec is None:
        pytest.skip("needs a lab: pytest --lab BLUEPRINT")
    # A unique name, as other test runs may use the same host.
    name = f"test-{secrets.token_hex(4)}"
    with _failing(), _app().open() as session:
        if engine:
            spec = flags.on_engine(spec, engine, flags.added_here(_app().settings()))
        asked = CreateLab.of(spec, name=name, accept_pooled_name=True)
        view = session.take(asked) or session.run(asked)
        try:
            session.make_ahead(asked)
        except BaseException:  # Ctrl-C
            _remove(view.name)
            raise
    try:
        yield TestLab(view)
        kept = _kept(request, view.name)
    except BaseException:
        _remove(view.name)
        raise
    if not kept:
        _remove(view.name)


def _kept(request: pytest.FixtureRequest, name: str) -> bool:
    """Do with the lab what ``--lab-on-failure`` says if a test failed; whether it is kept."""
    wanted: OnFailure | None = request.config.stash[ON_FAILURE]
    failed: str = request.node.stash.get(FAILED, "")
    if wanted is None or not failed:
        return False
    from lab.cli.verbs import on_failure

    def say(text: str) -> None:
        line = f"lab: {text} ({failed} failed)"
        reporter = request.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            reporter.ensure_newline()
            reporter.write_line(line)
        elif sys.__stderr__ is not None:  # in a process of xdist, which passes no lines on
            sys.__stderr__.write(f"\n{line}\n")

    with _failing(), _app().open() as session:
        return on_failure.apply(session, name, wanted, f"{failed} failed", say)


@pytest.fixture(scope=_scope)
def lab_dsn(lab: TestLab) -> str:
    """``mysql://USER:PASSWORD@HOST:PORT/`` of the first node of a lab."""
    return Dsn(lab.dsn)


def _remove(name: str) -> None:
    from lab.errors import NotFound
    from lab.requests.labs import DeleteLab

    with _failing(), _app().open() as session, suppress(NotFound):  # its lease expired
        session.run(DeleteLab(lab=name, force=True))


def _spec(config: pytest.Config) -> LabSpec:
    """The lab that flags and lab.toml describe; raises InvalidSpec."""
    from msgspec import structs

    from lab.blueprints import planned
    from lab.cli import flags
    from lab.config import labfile

    settings = _app().settings()
    given: dict[str, Any] = {"blueprint": config.getoption("lab")}
    if config.getoption("lab_nodes") is not None:
        given["nodes"] = config.getoption("lab_nodes")
    if engine := config.getoption("lab_engine"):
        given["engine"] = engine
    if dataset := config.getoption("lab_dataset"):
        given["dataset"] = dataset
    if ttl := config.getoption("lab_ttl"):
        given["ttl"] = flags.duration("--lab-ttl", ttl)
    lease = settings.default_ttl or _LEASE
    values = labfile.read(config.rootpath, set(given))
    spec = labfile.merge(values, cast("LabValues", given), default_ttl=lease)
    there, known = flags.added_here(settings), spec
    if there is None:  # a service knows engines of its own
        known = structs.replace(spec, options=replace(spec.chosen, node=()).said)
    planned(known, there or {})
    return spec


def _engines(spec: LabSpec, matrix: str) -> list[str]:
    """The engines of ``--lab-matrix``; raises InvalidSpec."""
    from lab.cli import flags
    from lab.errors import InvalidSpec

    if spec.engine or spec.image:
        raise InvalidSpec("--lab-matrix names the engines: leave out any other, and the image")
    engines = flags.engine_list("--lab-matrix", matrix)
    there = flags.added_here(_app().settings())
    for engine in engines:
        flags.on_engine(spec, engine, there)
    return engines


def _app() -> App:
    from lab.cli.app import App
    from lab.cli.backend.local import Lifecycle

    return App(Lifecycle(), quiet=True)


@contextmanager
def _failing() -> Iterator[None]:
    """An error in the block fails the test with the program's message."""
    from lab.errors import LabError

    try:
        yield
    except LabError as error:
        pytest.fail(_message(error), pytrace=False)


def _message(error: LabError) -> str:
    from lab.cli.terminal.failure import describe

    return describe(error).rstrip()

"""Upgrades of labs beside other commands, and with servers that do not answer, on the fakes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from lab.errors import Busy, HostUnfit, LabError, NotReady
from lab.fake.servers import FakeServers
from lab.lifecycle.core.context import Context
from lab.lifecycle.labs.query import query
from lab.lifecycle.labs.rollback import rollback
from lab.lifecycle.labs.start import start
from lab.lifecycle.labs.up import up
from lab.lifecycle.labs.upgrade import upgrade
from lab.lifecycle.nodes import inspect
from lab.locks.named import held, lock
from lab.observe.account import Account
from lab.observe.ways import Rows, SqlAll
from lab.requests.labs import RollBack, UpgradeLab
from tests.support.lifecycle_world import World, count, lab_request

OLDER, NEWER = "mariadb:10.11", "mariadb:11.8"


def older(ctx: Context) -> None:
    up(ctx, lab_request("single", "shop", engine=OLDER))
    query(ctx, "shop", None, "CREATE TABLE t (a INT)")
    query(ctx, "shop", None, "INSERT INTO t VALUES (1)")


def first(wanted: str, do: Callable[[], object]) -> Callable[[str], None]:
    done: list[str] = []

    def hook(step: str) -> None:
        if step == wanted and not done:
            done.append(step)
            do()

    return hook


def test_two_upgrades_of_a_lab(tmp_path: Path) -> None:
    world = World(tmp_path)
    with world.open() as ctx:
        older(ctx)
    refused: list[LabError] = []

    def again() -> None:
        with world.open() as ctx, pytest.raises(LabError) as found:
            upgrade(ctx, UpgradeLab(lab="shop", to=NEWER), timeout=20)
        refused.append(found.value)

    with world.open(first("snapshot.begin", again)) as ctx:
        view = upgrade(ctx, UpgradeLab(lab="shop", to=NEWER), timeout=20)
    assert isinstance(refused[0], Busy), refused
    assert (view.failed, view.lost) == (False, 0)


def test_nothing_goes_back_if_nothing_was_done(tmp_path: Path) -> None:
    """Protects what was written since the snapshot: another command came before the node's turn."""
    world, by_others = World(tmp_path), ExitStack()
    with world.open() as ctx:
        older(ctx)

    def hear(statements: Sequence[str], _: float) -> None:
        taken = len(world.home.captures("shop")) > 0
        by_probe = statements[0] == "SELECT 1" or "lab_upgrade" in statements[0]
        if taken and not by_probe and not held(world.home, "lab", "shop"):
            by_others.enter_context(lock(world.home, "lab", "shop"))

    with by_others, world.open() as ctx:
        asked = replace(ctx, sql_all=heard(ctx.sql_all, hear))
        view = upgrade(asked, UpgradeLab(lab="shop", to=NEWER), timeout=20)
    [step] = view.steps
    assert (step.state, step.after) == ("failed", "")
    assert "lab shop is busy" in step.why
    assert step.snapshot
    with world.open() as ctx:
        assert inspect.lab(ctx, "shop").state == "ready"
        upgrade(ctx, UpgradeLab(lab="shop", to=NEWER), timeout=20)


def test_a_rollback_that_fails_is_reported(tmp_path: Path) -> None:
    """Protects the report: why the step failed is not lost with it."""
    world = World(tmp_path)
    with world.open() as ctx:
        older(ctx)

    def hook(step: str) -> None:
        if step == "carry.begin":
            raise NotReady("the server does not start")
        if step == "rollback.begin":
            raise HostUnfit("no space")

    with world.open(hook) as ctx:
        view = upgrade(ctx, UpgradeLab(lab="shop", to=NEWER), timeout=20)
    [step] = view.steps
    assert (step.state, view.lost) == ("failed", None)
    assert step.why == "the server does not start; the rollback failed: no space"
    assert view.failure is not None
    assert step.snapshot in (view.failure.hint or "")
    with world.open() as ctx:
        assert start(ctx, "shop", timeout=20).state == "ready"
        assert count(ctx) == 1


def test_checksums_that_are_not_known(tmp_path: Path) -> None:
    """Protects from a change that is none: a server gave no checksums before, or does not after."""
    with World(tmp_path).open() as ctx:
        older(ctx)
        for wanted in (1, 2):
            view = upgrade(
                replace(ctx, sql_all=slow(ctx.sql_all, wanted)),
                UpgradeLab(lab="shop", to=NEWER), timeout=20,
            )  # fmt: skip
            assert (view.failed, view.lost, view.changed) == (False, 0, None)
            rollback(ctx, RollBack(lab="shop", to=view.steps[0].snapshot), timeout=20)


def slow(usual: SqlAll, wanted: int) -> SqlAll:
    """As usual, but the question for checksums of that number is not answered."""
    asked: list[str] = []

    def hear(statements: Sequence[str], _: float) -> None:
        if statements[0].startswith("CHECKSUM"):
            asked.append(statements[0])
            if len(asked) == wanted:
                raise NotReady("it takes too long")

    return heard(usual, hear)


def heard(usual: SqlAll, hear: Callable[[Sequence[str], float], None]) -> SqlAll:
    """As usual, after ``hear`` had the statements and their time limit; it may raise."""

    def ask(
        account: Account,
        port: int,
        statements: Sequence[str],
        *,
        timeout: float,
        whole: bool = False,
    ) -> list[Rows]:
        hear(statements, timeout)
        return usual(account, port, statements, timeout=timeout, whole=whole)

    return ask


def test_a_server_that_takes_long_for_its_catalogue(tmp_path: Path) -> None:
    """Protects the report on a busy host: it needs each of these answers, once."""

    def hear(statements: Sequence[str], timeout: float) -> None:
        of_report = "information_schema" in statements[0] or "lab_upgrade" in statements[0]
        if of_report and not statements[0].startswith("INSERT") and timeout < 20:
            raise NotReady("no SQL", begun=True)

    with World(tmp_path).open() as ctx:
        older(ctx)
        asked = replace(ctx, sql_all=heard(ctx.sql_all, hear))
        view = upgrade(asked, UpgradeLab(lab="shop", to=NEWER), timeout=20)
    assert (view.failed, view.lost, view.changed) == (False, 0, ())


@pytest.mark.parametrize(
    ("number", "unknown"), [(1, ("log", "options")), (2, ("locked_out",))], ids=str
)
def test_what_a_guest_does_not_answer_is_unknown(
    tmp_path: Path, number: int, unknown: tuple[str, ...]
) -> None:
    """Protects from "nothing found" where nothing was read: the log, the accounts."""
    world, questions = World(tmp_path), list[str]()
    with world.open() as ctx:
        older(ctx)

    def hook(step: str) -> None:
        if step == "upgrade.end" or (questions and step == "hypervisor.run"):
            questions.append(step)
            if len(questions) == number + 1:
                raise NotReady("the guest agent of n1 does not answer")

    with world.open(hook) as ctx:
        [step] = upgrade(ctx, UpgradeLab(lab="shop", to=NEWER), timeout=20).steps
    found = {name: getattr(step, name) for name in ("log", "options", "locked_out", "rebuild")}
    assert step.state == "upgraded"
    assert found == {name: None if name in unknown else () for name in found}


def test_a_log_that_is_elsewhere_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects from "no warnings" of a server whose lines the journal does not have."""
    with World(tmp_path).open() as ctx:
        older(ctx)
        monkeypatch.setattr(FakeServers, "log", lambda *_: "-- No entries --\n")
        [step] = upgrade(ctx, UpgradeLab(lab="shop", to=NEWER), timeout=20).steps
    assert (step.state, step.log, step.options) == ("upgraded", None, None)


def test_options_of_a_log_that_begins_later_are_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects who brings an option file: a server says so at its start, before all other lines."""
    with World(tmp_path).open() as ctx:
        older(ctx)
        monkeypatch.setattr(FakeServers, "log", lambda *_: "[Note] aborted connection\n" * 500)
        [step] = upgrade(ctx, UpgradeLab(lab="shop", to=NEWER), timeout=20).steps
    assert (step.state, step.log, step.options) == ("upgraded", (), None)

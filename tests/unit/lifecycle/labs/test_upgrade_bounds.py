"""What an upgrade reports of a new server: all that was found, or that there may be more."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest

from lab.errors import NotReady
from lab.fake import channel
from lab.fake.servers import FakeServers
from lab.lifecycle.core.context import Context
from lab.lifecycle.labs.up import up
from lab.lifecycle.labs.upgrade import LOCKED_OUT, upgrade
from lab.lifecycle.labs.upgrade_messages import rebuilt_tables
from lab.requests.labs import UpgradeLab
from lab.views.upgrades import UpgradeStep
from tests.support.lifecycle_world import World, at, lab_request, raising

ASKED = UpgradeLab(lab="shop", to="mariadb:11.8")


def wanted(table: str) -> str:
    """What a check prints of a table."""
    said = f'Table rebuild required. Please do "ALTER TABLE `{table}` FORCE"'
    return f"shop.{table}\nerror    : {said} or dump/reload to fix it!\n"


@pytest.fixture
def ctx(tmp_path: Path) -> Iterator[Context]:
    with World(tmp_path).open() as opened:
        up(opened, lab_request("single", "shop", engine="mariadb:10.11"))
        yield opened


def upgraded(ctx: Context) -> UpgradeStep:
    [step] = upgrade(ctx, ASKED, timeout=20).steps
    assert step.state == "upgraded"
    return step


def test_errors_before_what_is_read(ctx: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects from "no errors" of a log whose end alone was read."""
    lines = ["[ERROR] broken", *["[Note] connection"] * 600]
    monkeypatch.setattr(FakeServers, "log", lambda *_: "\n".join(lines[-500:]))
    step = upgraded(ctx)
    assert (step.log, step.options) == ((), None)
    assert (step.partial, step.incomplete) == (("log",), ("log",))


def test_more_than_is_kept(ctx: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = "\n".join(f"[ERROR] number {n}" for n in range(30))
    monkeypatch.setattr(FakeServers, "log", lambda *_: lines)
    check = "".join(wanted(f"t{n}") for n in range(30))
    monkeypatch.setitem(channel._SAID, "mariadb-upgrade", check.encode())
    step = upgraded(ctx)
    assert [len(one or ()) for one in (step.log, step.rebuild)] == [20, 20]
    assert step.log is not None
    assert step.log[-1] == "[ERROR] number 29"
    assert step.partial == ("log", "rebuild")


@pytest.mark.parametrize(("number", "partial"), [(100, ()), (101, ("locked_out",))])
def test_accounts_that_cannot_log_in(
    ctx: Context, monkeypatch: pytest.MonkeyPatch, number: int, partial: tuple[str, ...]
) -> None:
    real = channel.FakeChannel._statements

    def statements(guest: channel.FakeChannel, argv: Sequence[str], asked: Iterable[str]) -> str:
        asked = list(asked)
        found = real(guest, argv, asked)
        accounts = "".join(f"a{n}@% (gone)\n" for n in range(number))
        return accounts if asked == [LOCKED_OUT] else found

    monkeypatch.setattr(channel.FakeChannel, "_statements", statements)
    step = upgraded(ctx)
    assert (len(step.locked_out or ()), step.partial) == (100, partial)


def test_what_is_whole_is_not_said_to_be_a_part(
    ctx: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeServers, "log", lambda *_: "[ERROR] x\n" * 20)
    step = upgraded(ctx)
    assert (len(step.log or ()), step.partial) == (20, ())


def test_more_lines_of_an_error_than_are_kept(tmp_path: Path) -> None:
    world = World(tmp_path)
    with world.open() as ctx:
        up(ctx, lab_request("single", "shop", engine="mariadb:10.11"))
    lines = [f"[ERROR] number {n}" for n in range(21)]
    with world.open(at("boot.begin", raising(NotReady("it does not start", details=lines)))) as ctx:
        [step] = upgrade(ctx, ASKED, timeout=20).steps
    assert (len(step.log or ()), step.partial) == (20, ("log",))


BEGIN = """Phase 1/8: Checking and upgrading mysql database
Processing databases
mysql
mysql.db                                           OK
Phase 6/8: Checking and upgrading tables
Processing databases
shop
shop.rebuild_queue                                 OK
"""
END = "Phase 8/8: Running 'FLUSH PRIVILEGES'\nOK\n"
REPAIRS = "other.t    OK\n\nRepairing tables\n"
FAILED = "Failed to ALTER TABLE `shop`.`b` FORCE\nError: The table 'b' is full\n"
OLD = "shop.old                                           "


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ("", []),
        # Then the program ended before it repaired.
        (wanted("orders"), [wanted("orders").replace("\nerror    ", "").strip()]),
        (wanted("orders") + REPAIRS, ["shop.orders: rebuilt"]),
        (  # mysqlcheck.c, rebuild_table: it prints failures only
            f"{wanted('a')}{wanted('b')}{REPAIRS}{FAILED}",
            ["shop.a: rebuilt", "shop.b: not rebuilt: The table 'b' is full"],
        ),
        (f"{OLD}Needs upgrade\n{REPAIRS}{OLD}OK\n", ["shop.old: rebuilt"]),
        (
            f"{OLD}Needs upgrade\n{REPAIRS}shop.old\nerror    : Corrupt\n",
            ["shop.old: not rebuilt: Corrupt"],
        ),
    ],
)
def test_tables_that_were_to_be_rebuilt(
    ctx: Context, monkeypatch: pytest.MonkeyPatch, said: str, found: list[str]
) -> None:
    """Protects from work that was done already, and from a table that only has such a name."""
    assert rebuilt_tables(BEGIN + said + END) == found
    monkeypatch.setitem(channel._SAID, "mariadb-upgrade", (BEGIN + said + END).encode())
    assert upgraded(ctx).rebuild == tuple(found)

"""What is known of an upgrade before its first step: accounts and options, on fakes and servers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from lab.blueprints import Release
from lab.blueprints.dialects import locks_out, removed
from lab.errors import NotReady
from lab.fake.channel import FakeChannel
from lab.lifecycle.images import image as images
from lab.lifecycle.labs.foreseen import WHO, foreseen
from lab.lifecycle.labs.up import up
from lab.lifecycle.labs.upgrade import upgrade
from lab.lifecycle.nodes import inspect
from lab.passwords import NATIVE
from lab.progress import Event, Progress
from lab.requests.labs import UpgradeLab
from lab.views.upgrades import UpgradeView
from tests.support import mysql_server, upstream_builds
from tests.support.lifecycle_world import World, lab_request
from tests.support.mariadb_server import NoServer
from tests.unit.lifecycle.labs import test_upgrade_messages as messages

QUESTION = WHO.format(plugins=f"'{NATIVE}'")


def asked(monkeypatch: pytest.MonkeyPatch, answer: str | None) -> list[str]:
    """Has servers answer the question for accounts, None: not at all; how often they were asked."""
    real, questions = FakeChannel._statements, list[str]()

    def statements(guest: FakeChannel, argv: Sequence[str], asked: Iterable[str]) -> str:
        said = list(asked)
        if said != [QUESTION]:
            return real(guest, argv, said)
        questions.append(QUESTION)
        if answer is None:
            raise NotReady("the server does not answer")
        return answer

    monkeypatch.setattr(FakeChannel, "_statements", statements)
    return questions


def upgraded(tmp_path: Path, older: str, newer: str) -> UpgradeView:
    with World(tmp_path).open() as ctx:
        up(ctx, lab_request("single", "shop", engine=older))
        return upgrade(ctx, UpgradeLab(lab="shop", to=newer), timeout=20)


def test_accounts_and_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects who would be locked out: it is said before anything is done, and nothing stops."""
    questions = asked(monkeypatch, f"app@% ({NATIVE})\nold@% ({NATIVE})\n")
    heard: list[Event] = []
    with World(tmp_path).open() as ctx:
        options = ["mysql-native-password=ON", "master_info_repository=TABLE"]
        up(ctx, lab_request("single", "shop", engine="mysql:8.4", set=options))
        heard_by = replace(ctx, progress=Progress(heard.append))
        view = upgrade(heard_by, UpgradeLab(lab="shop", to="mysql:9.7"), timeout=20)
    assert view.foreseen == (
        "MySQL 9.7.6 does not know the option mysql_native_password",
        f"app@% ({NATIVE}) cannot log in to MySQL 9.7.6",
        f"old@% ({NATIVE}) cannot log in to MySQL 9.7.6",
    )
    assert (view.failed, len(view.steps), len(questions)) == (False, 1, 1)
    notes = [at for at, event in enumerate(heard) if event.text in view.foreseen]
    assert len(notes) == 3
    assert max(notes) < min(at for at, event in enumerate(heard) if event.step == "snapshot")


def test_what_nobody_can_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked(monkeypatch, None)
    [line] = upgraded(tmp_path, "mysql:8.4", "mysql:9.7").foreseen
    assert line.startswith("it is not known which accounts cannot log in to MySQL 9.7")
    assert line.endswith(": the server does not answer")


def test_more_accounts_than_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked(monkeypatch, "".join(f"a{n}@% ({NATIVE})\n" for n in range(101)))
    view = upgraded(tmp_path, "mysql:8.4", "mysql:9.7")
    assert (len(view.foreseen), view.foreseen[-1]) == (101, "there are more such accounts")


def test_what_took_the_place_of_an_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is asked for accounts where the option is there that lets them in."""
    questions = asked(monkeypatch, "a@% (x)\n")
    options = ["default-authentication-plugin=x", "loose_master_info_repository=TABLE",
               "skip-host-cache", "max_connections=50", "mysql-native-password=ON"]  # fmt: skip
    with World(tmp_path).open() as ctx:
        up(ctx, lab_request("single", "shop", engine="mysql:8.4", set=options))
        record = inspect.record_of(ctx, "shop")
        older = [
            replace(node, release=Release("mysql", "8.0.46"))
            for node in inspect.nodes_of(ctx, "shop")
        ]
        found = foreseen(ctx, record, older, images.find(ctx, record.image))
    assert [one.removeprefix("MySQL 8.4.6 does not know the option ") for one in found] == [
        "default_authentication_plugin: authentication_policy took its place",
        "master_info_repository",
        "skip_host_cache: host_cache_size = 0 took its place",
    ]
    assert questions == []


def test_nobody_is_asked_where_nobody_is_locked_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    questions = asked(monkeypatch, "a@% (x)\n")
    assert upgraded(tmp_path, "mariadb:10.11", "mariadb:11.8").foreseen == ()
    assert questions == []


@pytest.mark.parametrize(
    ("name", "version", "text", "found"),
    [
        ("mysql", "8.0.46", "", False),
        ("mysql", "8.4.0", "", True),
        ("mysql", "8.4.0", "[mysqld]\nloose_mysql_native_password = ON\n", False),
        ("mysql", "8.4.0", "mysql-native-password\n", False),
        ("mysql", "8.4.0", "mysql_native_password=OFF\n", True),
        ("mysql", "8.4.0", "# mysql_native_password = ON\n", True),
        ("mysql", "9.7.0", "mysql_native_password=ON\n", True),
        ("mysql", "26.7.0", "", True),
        ("mariadb", "11.8.6", "", False),
    ],
)
def test_versions_without_a_plugin(name: str, version: str, text: str, found: bool) -> None:
    assert locks_out(Release(name, version), text) == ([NATIVE] if found else [])


def test_options_between_two_versions() -> None:
    """Protects from a warning of what an older server did not know either."""
    changes = removed(Release("mysql", "8.4.2"), Release("mysql", "9.7.0"))
    assert changes == {"mysql_native_password": ""}
    assert removed(Release("mysql", "9.1.0"), Release("mysql", "9.7.0")) == {}
    assert removed(Release("mariadb", "10.6.27"), Release("mariadb", "10.11.6")) == {}
    assert removed(Release("mariadb", "11.0.6"), Release("mariadb", "11.4.5")) == {}
    assert removed(Release("mariadb", "10.11.6"), Release("mariadb", "11.8")) != {}


def test_a_real_server_does_not_know_them() -> None:
    """Protects the table: each of its options is refused, and what took its place is not."""
    options = removed(Release("mysql", "8.0.40"), Release("mysql", "9.7.0"))
    assert len(options) > 10
    try:
        for name, instead in options.items():
            said = "\n".join(messages.mysql(f"[mysqld]\n{name}\n"))
            assert f"unknown option '--{name}'" in said or f"unknown variable '{name}'" in said
            if instead and not name.startswith("group_replication"):  # of a plugin
                text = instead if " = " in instead else f"{instead} = 1"
                said = "\n".join(messages.mysql(f"[mysqld]\n{text}\n"))
                assert "unknown" not in said
        with mysql_server.server() as server:
            plugins = [row[0] for row in server.ask("SELECT plugin_name FROM"
                                                    " information_schema.plugins")]  # fmt: skip
            assert "caching_sha2_password" in plugins
            assert NATIVE not in plugins
            server.ask("CREATE USER a@'%' IDENTIFIED WITH caching_sha2_password BY 'x'")
            question = QUESTION.replace(NATIVE, "caching_sha2_password")
            assert "a@% (caching_sha2_password)" in [row[0] for row in server.ask(question)]
    except NoServer as why:
        pytest.skip(str(why))


@pytest.mark.rare
def test_a_newer_mariadb_does_not_know_them() -> None:
    """Protects the table from what an older one does not know either, and from what is left."""
    options = removed(Release("mariadb", "10.11.5"), Release("mariadb", "11.4.5"))
    unknown: dict[str, set[str]] = {}
    try:
        for name in ("mariadb-10.11.5", "mariadb-11.4.5"):
            root = upstream_builds.unpacked(upstream_builds.builds()[name])
            program = next(one for one in root.rglob("mariadbd") if one.is_file())
            share = next(root.rglob("errmsg.sys")).parents[1]
            words = ("--help", "--verbose", "--user=root", f"--lc-messages-dir={share}")
            unknown[name] = {
                option
                for option in options
                if f"unknown variable '{option}=0'"
                in "\n".join(messages.log([str(program)], f"[mysqld]\n{option}=0\n", *words))
            }
    except NoServer as why:
        pytest.skip(str(why))
    assert unknown == {"mariadb-10.11.5": set(), "mariadb-11.4.5": set(options)}

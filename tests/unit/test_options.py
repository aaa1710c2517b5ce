"""Options of blueprints: read from files and flags, kept as JSON, refused where they are wrong."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lab import options, users
from lab.cli.flags import Cluster, wanted
from lab.config.labfile import KEYS, read, spec_of
from lab.config.settings import Settings
from lab.errors import InvalidSpec
from lab.options import NONE, OptionFile, Options
from lab.paths import Home

FULL = Options(
    topology="chain",
    semi_sync=True,
    delay=3600.0,
    on=("n3",),
    multi_primary=True,
    proxy="haproxy",
    arbiter=True,
    client=True,
    replicas=2,
    set=("max_connections=50", "skip-name-resolve"),
    my_cnf=(OptionFile("[mysqld]\n"), OptionFile("[mysqld]\nsync_binlog=0\n", "replica")),
    init="SELECT 1;\n",
    user=users.parse("app:s3cret@shop", "here"),
    node=("n2=mysql:9.7", "n3=mysql"),
)


def unsalted(found: Options) -> Options:
    """``found`` without the hashes that have a salt."""
    same = FULL.user[0].caching_sha2
    return replace(found, user=tuple(replace(user, caching_sha2=same) for user in found.user))


_KEPT = FULL.said["user"][0]


def test_options_in_a_line() -> None:
    """Protects who compares templates: two that differ only in options differ in the list."""
    found = Options(semi_sync=True, delay=3600.0, on=("n3",), set=("a=1", "b=2"),
                    my_cnf=(OptionFile("[mysqld]", "replica"),), init="SELECT 1")  # fmt: skip
    text = options.described(found.shown)
    assert text.startswith("semi-sync, delay 1h on n3, set a=1, set b=2, my-cnf replica (8 bytes,")
    assert "init 8 bytes, SHA-256 " in text
    assert options.described(Options(node=("n2=mysql",)).shown) == "node n2=mysql"
    assert options.described(NONE.shown) == ""
    assert options.described(options.shown({"later": 1})) == "later unknown to this version of lab"


def test_json_says_what_differs() -> None:
    assert NONE.said == {}
    assert Options(delay=5.0).said == {"delay": 5.0}
    assert list(FULL.said) == [*vars(FULL)]
    assert options.of(json.loads(json.dumps(FULL.said))) == FULL
    assert options.of({}) is NONE


def test_what_is_shown_has_no_files() -> None:
    """Protects what `--init` may hold: an account's password."""
    shown = json.dumps(FULL.shown)
    assert "SELECT" not in shown
    assert "sync_binlog" not in shown
    assert FULL.shown["init"].startswith("10 bytes, SHA-256 ")
    assert FULL.shown["topology"] == "chain"
    assert FULL.shown["user"] == ["app@shop"]
    assert "native" not in shown
    assert "s3cret" not in json.dumps(FULL.said) + repr(FULL)
    assert FULL.user[0].native not in repr(FULL)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"topologi": "star"}, "unknown option 'topologi'"),
        ({"topology": "mesh"}, "topology"),
        ({"semi_sync": "yes"}, "semi_sync"),
        ({"delay": -1.0}, "30 days at most"),
        ({"delay": 0.5}, "whole seconds"),
        ({"delay": 1e9}, "30 days at most"),
        ({"on": ["../n1"], "delay": 1.0}, "is not a node"),
        ({"set": ["a=1\n[client]"]}, "is not an option"),
        ({"set": ["= 1"]}, "is not an option"),
        ({"set": ["a=1"] * 101}, "101 settings"),
        ({"my_cnf": [{"text": "x" * (options.FILE_LIMIT + 1)}]}, "256 KiB"),
        ({"my_cnf": [{"text": "", "role": "A;B"}]}, "is not a role"),
        ({"my_cnf": [{"text": ""}] * 17}, "17 option files"),
        ({"user": [_KEPT] * 2}, "app was given twice"),
        ({"user": [_KEPT | {"name": f"u{number}"} for number in range(17)]}, "17 accounts"),
        ({"user": [_KEPT | {"native": "' OR 1"}]}, "not as servers keep it"),
        ({"user": [_KEPT | {"caching_sha2": "$A$005$'"}]}, "not as servers keep it"),
        ({"user": [_KEPT | {"scope": "a`b"}]}, "its scope is not a database"),
        ({"user": [_KEPT | {"name": "a'b"}]}, "its name is invalid"),
        ({"init": "\0"}, "256 KiB"),
        ({"node": ["n2"]}, "'n2' is not the engine of a node"),
        ({"node": ["n2="]}, "'n2=' is not the engine of a node"),
        ({"node": ["n10=mysql"]}, "is not the engine of a node"),
        ({"node": ["n2=mysql\n"]}, "is not the engine of a node"),
        ({"node": ["n2=../mysql"]}, "is not the engine of a node"),
        ({"node": ["n2=mysql", "n2=mariadb"]}, "a node has one engine"),
        ({"node": {"n2": "mysql"}}, "Expected `array`"),
    ],
)
def test_what_is_refused(said: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidSpec, match=message):
        options.of(said)


def test_option_files_are_for_roles_and_settings_come_last() -> None:
    assert NONE.option_file("replica") == ""
    text = FULL.option_file("replica")
    assert text.index("sync_binlog=0") < text.index("[mysqld]\nmax_connections=50\nskip")
    assert "sync_binlog" not in FULL.option_file("source")


def test_flags_and_files_say_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("all.cnf").write_text("[mysqld]\n")
    Path("replica.cnf").write_text("[mysqld]\nsync_binlog=0\n")
    Path("init.sql").write_text("SELECT 1;\n")
    Path("users.txt").write_text("# ours\n\napp:s3cret@shop\n")
    flags = Cluster(
        blueprint="replication",
        topology="chain",
        semi_sync=True,
        delay="1h",
        on="3",
        multi_primary=True,
        proxy="haproxy",
        arbiter=True,
        client=True,
        replicas="2",
        set=["max_connections=50", "skip-name-resolve"],
        my_cnf=["all.cnf", "replica=replica.cnf"],
        init="init.sql",
        user=["users.txt"],
        node=["3=mysql", "n2=mysql:9.7"],
    )
    settings = Settings(home=Home(tmp_path), owner="me")
    assert unsalted(wanted(settings, flags).chosen) == unsalted(FULL)
    Path("lab.toml").write_text(
        """
        blueprint = "replication"
        topology = "chain"
        semi_sync = true
        delay = "1h"
        on = ["n3"]
        multi_primary = true
        proxy = "haproxy"
        arbiter = true
        client = true
        replicas = 2
        set = ["max_connections=50", "skip-name-resolve"]
        my_cnf = ["all.cnf", "replica=replica.cnf"]
        init = "init.sql"
        user = ["users.txt"]
        node = ["n2=mysql:9.7", "n3=mysql"]
        """
    )
    assert unsalted(spec_of(read(tmp_path)).chosen) == unsalted(FULL)
    assert wanted(settings, Cluster(topology="star")).chosen.semi_sync


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("init", "nowhere.sql", "nowhere.sql cannot be read: No such file"),
        ("my_cnf", "big", "more than 256K"),
        ("my_cnf", "replica=latin", "is not a text in UTF-8"),
        ("on", "x", "is not a node"),
        ("delay", "soon", "is not a duration"),
        ("proxy", "haprox", "did you mean 'haproxy'|'haprox' is unknown"),
        ("user", "nowhere.txt", "nowhere.txt cannot be read: No such file"),
        ("user", "env:NOWHERE", "environment variable 'NOWHERE' is not set"),
        ("user", "app:s3cret@shop", "not given as an argument"),
        ("user", "big", "more than 256K"),
        ("topology", "stra", "did you mean 'star'|'stra' is unknown"),
        ("node", "x=mysql", "'x' is not a node"),
    ],
)
def test_what_flags_refuse(
    key: str, value: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("big").write_bytes(b"#" * (options.FILE_LIMIT + 1))
    Path("latin").write_bytes("# \u00e9".encode("latin-1"))
    with pytest.raises(InvalidSpec, match=message):
        KEYS[key].parse(value)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("app", "has no name, password or scope"),
        ("app:@shop", "has no name, password or scope"),
        ("app:s3cret", "has no name, password or scope"),
        ("s3cret@shop", "has no name, password or scope"),
        ("app:s3cret@", "scope is not a database"),
        ("app:x@s3cret/", "scope is not a database"),
        ("s3 cret:x@shop", "name is invalid"),
        ("root:s3cret@*", "the account root is reserved"),
        ("app:s3cret\x01@shop", "printable"),
        ("app:" + "s3cret" * 50 + "@shop", "200 printable"),
        ("app:" + "é" * 150 + "@shop", "200 printable bytes"),
    ],
)
def test_what_is_no_account(line: str, message: str) -> None:
    """Protects what may be a password from terminals and logs."""
    with pytest.raises(InvalidSpec, match=f"users.txt, line 2: .*{message}") as raised:
        users.parse(f"ok:x@*\n{line}\n", "users.txt")
    assert "s3cret" not in f"{raised.value.what}{raised.value.hint}"
    with pytest.raises(InvalidSpec, match="describes no account"):
        users.parse("# nobody\n", "users.txt")


def test_many_accounts_are_refused_before_they_are_hashed() -> None:
    """Protects from minutes of hashing for a file of some other kind."""
    with pytest.raises(InvalidSpec, match="big has more than 16 accounts"):
        users.parse("".join(f"u{number}:x@*\n" for number in range(20_000)), "big")


def test_an_argument_with_a_password_is_not_repeated() -> None:
    with pytest.raises(InvalidSpec) as raised:
        spec_of({"blueprint": "single", "user": KEYS["user"].parse(["app:s3cret@shop"])})
    assert "s3cret" not in f"{raised.value.what}{raised.value.hint}"

"""Options of blueprints: read from files and flags, kept as JSON, refused where they are wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lab import options
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
    replicas=2,
    set=("max_connections=50", "skip-name-resolve"),
    my_cnf=(OptionFile("[mysqld]\n"), OptionFile("[mysqld]\nsync_binlog=0\n", "replica")),
    init="SELECT 1;\n",
)


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
        ({"init": "\0"}, "256 KiB"),
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
    flags = Cluster(
        blueprint="replication",
        topology="chain",
        semi_sync=True,
        delay="1h",
        on="3",
        multi_primary=True,
        proxy="haproxy",
        arbiter=True,
        replicas="2",
        set=["max_connections=50", "skip-name-resolve"],
        my_cnf=["all.cnf", "replica=replica.cnf"],
        init="init.sql",
    )
    settings = Settings(home=Home(tmp_path), owner="me")
    assert wanted(settings, flags).options == FULL
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
        replicas = 2
        set = ["max_connections=50", "skip-name-resolve"]
        my_cnf = ["all.cnf", "replica=replica.cnf"]
        init = "init.sql"
        """
    )
    assert spec_of(read(tmp_path)).options == FULL
    assert wanted(settings, Cluster(topology="star")).options.semi_sync


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("init", "nowhere.sql", "nowhere.sql cannot be read: No such file"),
        ("my_cnf", "big", "more than 256 KiB"),
        ("my_cnf", "replica=latin", "is not a text in UTF-8"),
        ("on", "x", "is not a node"),
        ("delay", "soon", "is not a duration"),
        ("proxy", "haprox", "did you mean 'haproxy'|'haprox' is unknown"),
        ("topology", "stra", "did you mean 'star'|'stra' is unknown"),
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

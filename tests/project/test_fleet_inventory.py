"""What ``packaging/fleet/deploy`` reads and writes; tests/service/test_fleet_deploy.py runs it."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from lab.config import tomlfile
from lab.config.settings import load
from lab.errors import InvalidSpec, LabError
from lab.fleet.database import parse
from tests import ROOT

EXAMPLE = ROOT / "packaging/fleet/inventory.toml"


@pytest.fixture(scope="module")
def deploy() -> Iterator[ModuleType]:
    """The program, as a module."""
    loader = SourceFileLoader("deploy", str(ROOT / "packaging/fleet/deploy"))
    spec = importlib.util.spec_from_loader("deploy", loader)
    assert spec is not None
    found = importlib.util.module_from_spec(spec)
    sys.modules["deploy"] = found  # types of fields are looked up there
    try:
        loader.exec_module(found)
        yield found
    finally:
        del sys.modules["deploy"]


def test_the_example_of_an_inventory_is_one(deploy: ModuleType, tmp_path: Path) -> None:
    """Protects who copies it: the hosts' config files are those that the service reads."""
    inventory = deploy.read(EXAMPLE)
    assert [one.name for one in inventory.host] == ["h1", "h2", "h3"]
    url = parse(inventory.database.url).set(password="p/w@1")
    path = tmp_path / "config.toml"
    path.write_text(deploy.config_of(inventory.host[0], inventory.settings, url))
    settings = load(env={}, files=[path])
    serve = settings.serve
    assert (settings.publish, serve.address, serve.port) == ("10.0.0.1", "10.0.0.1", 8443)
    assert (serve.host_name, serve.host_labels) == ("h1", ("nvme",))
    assert parse(serve.database) == url
    assert deploy.unit_of(inventory.host[0]) == (ROOT / "packaging/systemd/lab.service").read_text()


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ('name = "h2"', 'name = "h1"', "two hosts have the name 'h1'"),
        ('name = "h2"', 'name = "H2"', "a name such as h1"),
        ('ssh = "root@h1.example"', 'ssh = "-oProxyCommand=true"', "ssh"),
        ('address = "10.0.0.1"', 'address = "10.0.0.1; reboot"', "address"),
        ('labels = ["nvme"]', 'program = "/opt/$(reboot)/lab"', "an absolute path"),
        ("postgresql://lab@", "postgresql://lab:secret@", "and no password"),
        ("postgresql://lab@db.example/lab", "mysql://lab@db.example/lab", "PostgreSQL"),
        ("[database]", "[databases]", "unknown key 'databases'"),
    ],
)  # fmt: skip
def test_what_is_no_inventory(
    deploy: ModuleType, tmp_path: Path, before: str, after: str, words: str
) -> None:
    """Protects hosts from commands, and the password from a file that is shown around."""
    text = EXAMPLE.read_text()
    assert before in text
    path = tmp_path / "inventory.toml"
    path.write_text(text.replace(before, after))
    with pytest.raises(LabError) as refused:
        deploy.read(path)
    assert words in str(refused.value)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"serve": {"host_name": "h9"}}, "host_name follows from the rest of the inventory"),
        ({"serve": {"ports": 1}}, "unknown key 'ports'"),
        ({"owner": ""}, "owner is ''"),
        ({"serve": {"default_ttl": "9d"}}, "default_ttl exceeds max_ttl"),
        ({"storage": "zfs"}, "no pool is set"),
    ],
)
def test_settings_that_a_host_would_refuse(
    deploy: ModuleType, settings: dict[str, Any], words: str
) -> None:
    """Protects the hosts that run: what is wrong is refused before any of them is changed."""
    machine = deploy.read(EXAMPLE).host[0]
    with pytest.raises(InvalidSpec, match=words):
        deploy.check(deploy.config_of(machine, settings, parse("postgresql://lab@db/lab")))


def test_tables_are_written_as_toml(deploy: ModuleType) -> None:
    """Protects settings from being read otherwise than they were written down."""
    table = {
        "text": 'a "quoted" \\ text\n\twith é and 😀 and \x01', "number": 3, "part": 0.5,
        "on": True, "list": ["a", 1], "empty": [], "none": {},
        "pools": [{"name": "a", "options": {"x": {"y": 1}}}, {"name": "b", "last": False}],
        "a key": {"b.c": {"d": ["e"]}}, "last": {"value": 1},
    }  # fmt: skip
    assert tomlfile.loads("\n".join(deploy.toml(table)).encode(), "here") == table

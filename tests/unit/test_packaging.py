"""What is to be copied to a host that serves labs."""

from __future__ import annotations

from configparser import ConfigParser
from pathlib import Path

from lab.cli.verbs import RootVerbs
from lab.settings import load

PACKAGING = Path(__file__).parents[2] / "packaging"
DOCS = PACKAGING.parent / "docs"


def test_the_example_of_a_config_file_is_one() -> None:
    """Protects who copies it: every key is known, and has the value that it shows."""
    settings = load(env={}, files=[PACKAGING / "config.toml"])
    assert settings.published_as == "labs.example"
    assert (settings.serve.port, settings.serve.memory) == (8443, 48 << 30)
    (pool,) = settings.serve.pool
    assert (pool.spec.blueprint, pool.spec.nodes, pool.count) == ("pxc", 3, 2)


def test_the_unit_of_systemd_names_what_there_is() -> None:
    """Protects from a unit that starts nothing, or that takes guests down with the service."""
    unit = ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]  # keys are as they are written
    unit.read(PACKAGING / "systemd/lab.service")
    program, verb = unit["Service"]["ExecStart"].split()
    assert Path(program).is_absolute()
    assert verb in RootVerbs.table
    assert unit["Service"]["KillMode"] == "process"
    assert int(unit["Service"]["TimeoutStopSec"]) > 13
    documentation = Path(unit["Unit"]["Documentation"].removeprefix("file://"))
    assert (DOCS / documentation.name).exists()

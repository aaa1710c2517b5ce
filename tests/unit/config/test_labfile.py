"""Protects: what lab.toml may say, and that flags win over it key by key."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.config.labfile import LabValues, merge, read
from lab.errors import InvalidSpec
from lab.spec import LabSpec
from lab.units import GIB, MIB


def write(tmp_path: Path, text: str) -> Path:
    (tmp_path / "lab.toml").write_text(text)
    return tmp_path


def test_a_full_file(tmp_path: Path) -> None:
    values = read(
        write(
            tmp_path,
            """
            blueprint = "pxc"
            name = "shop"
            nodes = 5
            engine = "pxc"
            memory = "1G"
            cpus = 2
            disk = "8G"
            ttl = "1d12h"
            """,
        )
    )
    spec = LabSpec("pxc", "shop", 5, "pxc", GIB, 2, 8 * GIB, 36 * 3600.0)
    assert merge(values, {}) == spec


def test_no_file_says_nothing(tmp_path: Path) -> None:
    assert read(tmp_path) == {}
    assert merge({}, {"blueprint": "single"}) == LabSpec("single")


def test_flags_win_key_by_key() -> None:
    file: LabValues = {"blueprint": "pxc", "nodes": 5, "memory": GIB, "ttl": 60.0}
    spec = merge(file, {"nodes": 3, "cpus": 4})
    assert spec == LabSpec("pxc", nodes=3, memory=GIB, cpus=4, ttl=60.0)


def test_none_is_a_lease_that_was_said() -> None:
    file: LabValues = {"blueprint": "pxc", "ttl": 60.0}
    assert merge(file, {"ttl": None}, default_ttl=5.0).ttl is None
    assert merge({"blueprint": "pxc"}, {}, default_ttl=5.0).ttl == 5.0


def test_no_blueprint_is_told() -> None:
    with pytest.raises(InvalidSpec, match="no blueprint"):
        merge({"nodes": 3}, {})


@pytest.mark.parametrize(
    ("text", "says", "hint"),
    [
        ("memroy = 1", "unknown key 'memroy'", "did you mean 'memory'"),
        ("[settings]\nhome = 'x'", "unknown key 'settings'", "known keys"),
        ("nodes = '3x'", "nodes is '3x', expected a whole number", ""),
        ("nodes = '3'", "nodes is '3', expected a whole number", ""),
        ("cpus = '2'", "cpus is '2', expected a whole number", ""),
        ("nodes = 3.5", "nodes is 3.5", ""),
        ("nodes = true", "nodes is True", ""),
        ("nodes = 12", "nodes: a lab has 1 to 9 nodes", "majority"),
        ("blueprint = 3", "blueprint is 3, expected a text", ""),
        ("name = 'UPPER'", "name: 'UPPER' is not a valid name", "lower-case"),
        ("memory = '1M'", "memory: 1M of memory is too little", "384M"),
        ("ttl = 5", "ttl is 5, expected a duration", ""),
        ("ttl = '5'", "ttl: '5' has no unit", "90s"),
        ("delay = '60'", "delay: '60' has no unit", "90s"),
        ("ttl = '0s'", "ttl: the duration must be greater than zero, not '0s'", ""),
    ],
)
def test_a_mistake_names_file_and_key(tmp_path: Path, text: str, says: str, hint: str) -> None:
    with pytest.raises(InvalidSpec) as caught:
        read(write(tmp_path, text))
    assert str(tmp_path / "lab.toml") in caught.value.what
    assert says in caught.value.what
    assert hint in caught.value.hint


def test_bytes_are_fine_too(tmp_path: Path) -> None:
    assert read(write(tmp_path, f"memory = {512 * MIB}")) == {"memory": 512 * MIB}

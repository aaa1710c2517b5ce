"""Small files of values that can be found out again."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.errors import HostUnfit
from lab.remembered import forget, recall, remember


def test_values_are_kept_and_forgotten(tmp_path: Path) -> None:
    memory = tmp_path / "memory.json"
    remember(memory, "one", {"a": 1})
    remember(memory, "two", value=True)
    assert {key: value for key, (_, value) in recall(memory).items()} == {
        "one": {"a": 1}, "two": True}  # fmt: skip
    forget(memory, "one")
    assert list(recall(memory)) == ["two"]
    assert [path.name for path in tmp_path.iterdir()] == ["memory.json"]


@pytest.mark.parametrize("text", ["", "[]", '{"a": 1}', "\x00", "[" * 100_000])
def test_a_damaged_file_holds_nothing(tmp_path: Path, text: str) -> None:
    """Protects every command that looks whether a repository answered."""
    memory = tmp_path / "memory.json"
    memory.write_text(text)
    assert recall(memory) == {}


def test_what_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    """Protects a home whose disk is full from a file for each thread that tried."""
    memory = tmp_path / "memory.json"
    (memory / "in the way").mkdir(parents=True)
    with pytest.raises(HostUnfit, match="memory"):
        remember(memory, "one", 1)
    assert [path.name for path in tmp_path.iterdir()] == ["memory.json"]

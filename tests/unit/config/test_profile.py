"""Profiles mean what they say, and those of users are read, and every mistake is reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.config.profile import PROFILES, VOLUMES, risks
from lab.config.settings import Settings, load
from lab.errors import InvalidSpec


def settings(tmp_path: Path, text: str) -> Settings:
    path = tmp_path / "config.toml"
    path.write_text(text)
    return load(env={}, files=[path])


def test_only_disposable_risks_anything() -> None:
    """Protects durability: the default and ``durable`` lose no commit."""
    assert risks(PROFILES["durable"]) == risks(PROFILES["balanced"]) == []
    assert len(risks(PROFILES["disposable"])) == 3


def test_data_and_logs_have_the_blocks_that_innodb_writes() -> None:
    for profile in PROFILES.values():
        sizes = [profile.volume(name).block_size for name in VOLUMES["split"]]
        assert sizes == [16384, 16384, 131072]


def test_a_profile_of_a_user(tmp_path: Path) -> None:
    found = settings(
        tmp_path,
        """
        profile = "fast"
        [profiles.fast]
        base = "durable"
        engine = { flush_log = 2, buffer_pool = 50 }
        data = { compression = "zstd-3", block_size = "8K" }
        """,
    ).profile_of("")
    assert found.name == "fast"
    assert (found.engine.flush_log, found.engine.buffer_pool) == (2, 50)
    assert (found.data.compression, found.data.block_size) == ("zstd-3", 8192)
    assert found.data.sync == PROFILES["durable"].data.sync == "always"
    assert risks(found) == ["a guest that dies loses up to a second of its commits"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[profiles.balanced]", "built-in profile"),
        ("[profiles.Fast]", "not a name"),
        ("[profiles.fast]\nbase = 'fats'", "no profile 'fats'"),
        ("[profiles.fast]\nsink = 1", "unknown key 'sink'"),
        ("[profiles.fast]\ndata = { sync = 'never' }", "'never' is unknown"),
        ("[profiles.fast]\ndata = { block_size = 5000 }", "power of two"),
        ("[profiles.fast]\ndata = { compression = 'lz4 -o x=y' }", "expected on, off"),
        ("[profiles.fast]\nengine = { flush_log = 3 }", "from 0 to 2"),
        ("[profiles.fast]\nengine = { doublewrite = 'no' }", "true or false"),
        ("profiles = 3", "expected tables"),
        ("[profiles]\nfast = 3", "not a table"),
    ],
)
def test_mistakes_are_told(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InvalidSpec) as caught:
        settings(tmp_path, text)
    assert said in f"{caught.value.what} {caught.value.hint}"


def test_an_unknown_profile_is_told(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec, match="'balancedd'") as caught:
        settings(tmp_path, "").profile_of("balancedd")
    assert "balanced" in caught.value.hint

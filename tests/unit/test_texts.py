"""Protects what users write: it is read as their editors save it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lab import options, texts
from lab.cli.backend import remote_data
from lab.client import credentials
from lab.config import labfile, tomlfile
from lab.datasets import queries, rules
from lab.errors import InvalidSpec
from lab.keys import Key, text

CODECS = ("utf-8", "utf-8-sig", "utf-16")
"""As Notepad and PowerShell save: ``utf-16`` has a mark."""


def _users(path: Path) -> object:
    return options.Options(user=options._users([str(path)])).user[0].name


READERS: dict[str, tuple[Callable[[Path], object], str]] = {
    "an option file": (lambda path: options.read_file(str(path)), "[mysqld]\nmax_connections=7\n"),
    "accounts": (_users, "desk:Sommer2026@desk\n"),
    "masking rules": (lambda path: rules.read(path).tables, '[tables."desk.people"]\nid="keep"\n'),
    "queries": (queries.read, "SELECT 1;\n"),
    "lab.toml": (lambda path: labfile.read(path.parent), 'blueprint = "single"\n'),
    "text for a service": (remote_data.text, "CREATE TABLE ž (id INT);\n"),
}


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("name", READERS)
def test_a_mark_says_nothing(name: str, codec: str, tmp_path: Path) -> None:
    read, text = READERS[name]
    path = tmp_path / "lab.toml"
    path.write_bytes(text.encode())
    plain = read(path)
    path.write_bytes(text.encode(codec))
    assert read(path) == plain
    assert "\ufeff" not in str(plain)


def test_a_token_after_a_mark(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.touch(0o600)
    path.write_bytes(b"\xef\xbb\xbfsecret\n")
    assert credentials.find_token({"LAB_TOKEN_FILE": str(path)}) == "secret"


def test_a_file_with_a_mark_can_be_changed(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    keys = {"a": tomlfile_key(), "b": tomlfile_key()}
    path.write_bytes('a = "1"\n'.encode("utf-8-sig"))
    tomlfile.put(path, keys, "b", "2")
    assert tomlfile.read(path, keys) == {"a": "1", "b": "2"}


def tomlfile_key() -> Key:
    return Key("a text", text)


def test_what_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "latin"
    path.write_bytes(b"\xe4\n")
    with pytest.raises(InvalidSpec, match="is not a text in UTF-8") as failure:
        texts.read(path, 10)
    assert "iconv" in failure.value.hint
    with pytest.raises(InvalidSpec, match="has more than 1B"):
        texts.read(path, 1)
    with pytest.raises(InvalidSpec, match="cannot be read"):
        texts.read(Path(os.devnull) / "x", 10)


@pytest.mark.parametrize(
    "text",
    [
        "a." * 500_000 + "a = 1", "a . " * 250_000 + "a = 1", "[" + "a." * 500_000 + "a]",
        "a = " + "[" * 100_000, "a = " + "{a = " * 100_000, "a = {" + "b." * 100_000 + "c = 1}",
        "\"a\".'b'." * 100_000 + "c = 1",
    ],
)  # fmt: skip
def test_toml_that_is_nested_without_end(text: str) -> None:
    """Protects the service: 64 KB of a key's parts took seconds, lists ended a request with 500."""
    began = time.process_time()
    with pytest.raises(InvalidSpec):
        tomlfile.loads(text.encode(), "rules.toml")
    assert time.process_time() - began < 5

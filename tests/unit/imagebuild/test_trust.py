"""Images are built from what Debian signed, also on a host that is older than the suite."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

from lab.imagebuild import bootstrap
from lab.imagebuild.recipe import load, recipes
from lab.imagebuild.trust import KEYS, keyrings

ROWS = dict(re.findall(r"\| `([\w.-]+)` \| ([0-9A-F]{40}) \|", (KEYS / "README.md").read_text()))


def fingerprint(keyring: bytes) -> str:
    """Of the first key in a binary keyring (RFC 4880: 4.2 for headers, 12.2 for fingerprints)."""
    head = keyring[0]
    assert head & 0x80, "not a binary keyring, which is all that older mmdebstraps read"
    if head & 0x40:
        tag, first = head & 0x3F, keyring[1]
        short = first < 192
        length = first if short else ((first - 192) << 8) + keyring[2] + 192
        start = 2 if short else 3
    else:
        tag, size = head >> 2 & 0xF, 1 << (head & 3)
        length, start = int.from_bytes(keyring[1 : 1 + size], "big"), 1 + size
    body = keyring[start : start + length]
    assert tag == 6
    assert body[0] == 4, "a version 4 public key"
    packet = b"\x99" + length.to_bytes(2, "big") + body
    return hashlib.sha1(packet, usedforsecurity=False).hexdigest().upper()


def test_the_keys_are_those_that_are_written_down() -> None:
    """A key that was swapped would let somebody else sign the packages of every image."""
    assert {path.name: fingerprint(path.read_bytes()) for path in KEYS.glob("*.gpg")} == ROWS


@pytest.mark.parametrize("recipe", recipes())
def test_every_recipe_has_the_keys_of_its_suite(recipe: str) -> None:
    suite = load(recipe).suite
    if suite == "sid":  # signed by the key of the newest release, and never released
        assert "debian-archive-trixie-automatic.gpg" in ROWS
        return
    for kind in ("automatic", "security-automatic", "stable"):
        assert f"debian-archive-{suite}-{kind}.gpg" in ROWS


def test_everyone_can_read_the_copies(tmp_path: Path) -> None:
    """apt checks signatures as the user _apt, who cannot enter a checkout in /root."""
    (found,) = keyrings(tmp_path, host=tmp_path / "none")
    assert found.is_relative_to(tmp_path)
    assert found.stat().st_mode & 0o777 == 0o755
    assert {path.name for path in found.iterdir()} == set(ROWS)
    assert {path.stat().st_mode & 0o777 for path in found.iterdir()} == {0o644}


def test_the_keys_of_the_host_count_too(tmp_path: Path) -> None:
    """They may be newer than ours; and mmdebstrap would trust them alone if they were left out."""
    host = tmp_path / "host.gpg"
    host.touch()
    found = keyrings(tmp_path, host=host)
    argv = bootstrap.command(Path("/x"), "trixie", ["a"], keyrings=found)
    assert [word for word in argv if "--keyring" in word] == [
        f"--keyring={tmp_path / 'keys'}",
        f"--keyring={host}",
    ]

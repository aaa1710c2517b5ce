"""Protects tags as user properties: any text survives, and nothing else counts as one."""

from __future__ import annotations

import pytest

from lab.errors import InvalidSpec
from lab.storage.zfs.properties import decode, encode, options, tag_properties, tags_of

TEXTS = [
    "", "-", "--", "%", "%2D", "%zz", " ", "  a  b  ", "a b", "tab\there", "line\nbreak", "\r\n",
    "ü", "日本語", "\U0001f600", "\udc80", "\0", "\x7f", "a=b,c@d#e'f\"g", "lab:pxc", "x" * 8191,
]  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
def test_any_text_survives(text: str) -> None:
    written = encode(text)
    assert decode(written) == text
    assert written.isascii()
    assert written.isprintable()
    assert written not in ("", "-")
    assert written == written.strip()


def test_plain_texts_stay_readable() -> None:
    assert encode("lab:pxc") == "lab:pxc"
    assert encode("two words, and more") == "two words, and more"


@pytest.mark.parametrize("text", ["", "%", "%f", "%FF", "%C3", "%zz", "100%", "ü"])
def test_what_others_wrote_is_read_without_a_fall(text: str) -> None:
    assert isinstance(decode(text), str)


def test_tags_are_separated_from_other_properties() -> None:
    tags = {"owner": "lab:pxc", "node": "n1", "home": "not the one"}
    written = tag_properties(tags)
    assert written["lab.tag:owner"] == "lab:pxc"
    assert tags_of({**written, "lab:home": "h", "compression": "lz4", "x:lab.tag:y": "z"}) == tags
    assert list(options({"a": "b=c", "lab:x": "y z"})) == ["-o", "a=b=c", "-o", "lab:x=y z"]


def test_what_zfs_cannot_hold_is_refused() -> None:
    with pytest.raises(InvalidSpec, match="tag note is too long"):
        tag_properties({"note": "x" * 8192})
    with pytest.raises(InvalidSpec, match="tag note is too long"):
        tag_properties({"note": "ü" * 2000})
    with pytest.raises(InvalidSpec, match="too long a key"):
        tag_properties({"k" * 248: "x"})
    tag_properties({"k" * 247: "x" * 8191})

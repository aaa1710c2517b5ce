"""Tags as user properties: any text can be stored, and properties of others are ignored.

A value is written in printable ASCII, all else as %XX of its UTF-8 bytes, because ``zfs``
prints values between tabs and newlines and a lone hyphen for none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from lab.errors import InvalidSpec
from lab.storage import Tags

HOME = "lab:home"
"""The installation that a dataset or snapshot belongs to."""
VOLUME = "lab:volume"
"""The name of the volume that a dataset was created for."""
RECEIVED = "lab:received"
"""The snapshot of a received dataset, which ``zfs receive`` cannot tag."""
FOLDER = "lab:folder"
"""Marks the file systems that are folders of volumes."""
DROPPED = "lab:dropped"
"""Marks a removed snapshot that ZFS still needs: a rollback created a clone of it."""
SPARE = "lab:spare"
"""Marks a dataset of a volume that becomes the current one when this is removed."""
TAG = "lab.tag:"
"""The prefix of each tag's key."""

KEY_LIMIT, VALUE_LIMIT = 255, 8191
"""The maximum length of a user property's name and value, in bytes."""

_ESCAPED = re.compile(rb"%([0-9A-F]{2})")
_PLAIN = frozenset(range(0x21, 0x7F)) - {0x25}


def encode(value: str) -> str:
    """``value`` encoded for a property."""
    if value in ("", "-"):
        return {"": "%", "-": "%2D"}[value]
    data = value.encode("utf-8", "surrogatepass")
    last = len(data) - 1
    # inner spaces are kept readable; leading and trailing ones would be lost
    return "".join(
        chr(byte) if byte in _PLAIN or (byte == 0x20 and 0 < at < last) else f"%{byte:02X}"
        for at, byte in enumerate(data)
    )


def decode(text: str) -> str:
    """The reverse of ``encode``; other texts are returned unchanged."""
    if text == "%":
        return ""
    data = _ESCAPED.sub(lambda found: bytes([int(found[1], 16)]), text.encode())
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return text


def tag_properties(tags: Tags) -> dict[str, str]:
    """The user properties for ``tags``; raises InvalidSpec if they are too long for ZFS."""
    found = {TAG + key: encode(value) for key, value in tags.items()}
    for name, value in found.items():
        key = name.removeprefix(TAG)
        if len(name) > KEY_LIMIT:
            raise InvalidSpec(f"the tag {key[:40]}... has too long a key for ZFS")
        if len(value) > VALUE_LIMIT:
            raise InvalidSpec(
                f"the tag {key} is too long for ZFS: {len(value)} bytes, at most {VALUE_LIMIT}"
            )
    return found


def tags_of(local: Mapping[str, str]) -> dict[str, str]:
    """The tags among the properties set on a dataset itself."""
    return {
        name.removeprefix(TAG): decode(value)
        for name, value in local.items()
        if name.startswith(TAG)
    }


def options(properties: Mapping[str, str]) -> Iterator[str]:
    """``properties`` as arguments for ``zfs``."""
    for name, value in properties.items():
        yield "-o"
        yield f"{name}={value}"

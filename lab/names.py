"""Every name: what is valid, and how one name is made from others.

Lengths follow the tightest consumer: a bhyve guest on older FreeBSD may have 32
characters, and ``lab-<lab>-n9`` must fit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, NewType, get_args

from lab.errors import InvalidSpec
from lab.values import dataclass

LAB_NAME_LIMIT = 24
"""Characters in a lab's name, at most."""

ENGINE_LIMIT = 32
"""Characters of the name of an added engine, at most; names of its images have it in them."""

DATASET_LIMIT = 100
"""Characters of the dataset that volumes are below, at most; ZFS has 255 for a snapshot's name."""

GuestName = NewType("GuestName", str)
"""The name under which the hypervisor knows a node: ``lab-<lab>-<node>``."""

LOOPBACK = "127.0.0.1"
EVERYWHERE = "0.0.0.0"  # noqa: S104  # only its name
"""All IPv4 addresses of a host, as sockets are bound to them."""

OwnerKind = Literal["lab", "template", "image"]

FORMED = "formed"
"""The label of the one capture that a template is."""

ByKey = Literal["image", "template"]
"""What hosts keep by key, and export by that."""
ArchiveKind = Literal["image", "template", "snapshot", "dataset"]
"""What is in an archive; a snapshot is a template that was captured from a lab in use, a dataset an
image with data."""
Identity = Literal["shared", "new"]
"""Whose server ids and UUIDs a branch has: those of what it is a clone of, or its own."""
IDENTITIES: tuple[Identity, ...] = get_args(Identity)
LAB_NAME = rf"^[a-z]([a-z0-9-]{{0,{LAB_NAME_LIMIT - 2}}}[a-z0-9])?$"
SNAPSHOT_LABEL = r"^[a-z0-9][a-z0-9_.-]{0,79}$"
NODE_NAME = r"^n[1-9]$"
DATASET = r"^[a-z]([a-z0-9-]*[a-z0-9])?(@[1-9][0-9]{0,8})?$"
WORD = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
FLEET_HOST = r"^[a-z0-9][a-z0-9-]{0,62}$"
ON_HOST = r"^@?[a-z0-9][a-z0-9._-]{0,62}$"
ENGINE = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}(:[0-9][0-9.]{0,15})?$"
ARGUMENT = r"^[^\x00]+$"
PROJECT_NAME = r"^[A-Za-z0-9]([A-Za-z0-9._@-]{0,62}[A-Za-z0-9])?$"
FORMS: Mapping[str, str] = {
    LAB_NAME: "a lower-case letter, then letters, digits and hyphens, at most"
    f" {LAB_NAME_LIMIT} in all, such as shop-2",
    SNAPSHOT_LABEL: "a label, as in `lab snapshot ls`, or the name in it",
    NODE_NAME: "n1 to n9",
    DATASET: "a dataset such as shop, or a version such as shop@2",
    ON_HOST: "the name of a host, or @ and a label: lower-case letters, digits, dots, hyphens and"
    " underscores",
    WORD: "letters, digits, dots, hyphens and underscores, at most 64",
    ENGINE: "a name such as mariadb, or a series such as mariadb:10.11",
    ARGUMENT: "not empty, without a NUL",
    PROJECT_NAME: "up to 64 letters, digits, dots, hyphens, underscores and @",
}
"""The patterns in the limits of requests, and what they mean."""

_LAB = re.compile(r"[a-z](?:[a-z0-9-]*[a-z0-9])?")
_ENGINE = re.compile(r"[a-z](?:[a-z0-9.-]*[a-z0-9])?")
_PART = re.compile(r"[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?")
_NODE = re.compile(r"n[1-9]")
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_POOL = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")
_DATASET = re.compile(r"(?!\.\.?(?:/|$))[A-Za-z0-9_.-]+")
_HOST = re.compile(
    r"(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.)*[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
)
_HOST_LIMIT = 253
_LAB_GUEST = re.compile(r"lab-([a-z][a-z0-9-]*)(?:\.[0-9a-f]{4})?-n[1-9]")


@dataclass(frozen=True, order=True)
class Owner:
    """What a resource (volume, guest, port, file) belongs to."""

    kind: OwnerKind
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"

    @staticmethod
    def parse(text: str) -> Owner:
        """The reverse of ``str(owner)``; raises InvalidSpec."""
        kind, colon, name = text.partition(":")
        if not colon or kind not in ("lab", "template", "image") or not _PART.fullmatch(name):
            raise InvalidSpec(f"{text!r} names no owner")
        return Owner(kind, name)  # type: ignore[arg-type]  # narrowed by the test above


@dataclass(frozen=True, order=True)
class CaptureRef:
    """Names a capture: its owner, and the label of the snapshots of all volumes in it."""

    owner: Owner
    label: str

    def __str__(self) -> str:
        return f"{self.owner}@{self.label}"

    @staticmethod
    def parse(text: str) -> CaptureRef:
        """The reverse of ``str(capture_ref)``; raises InvalidSpec."""
        owner, at, label = text.partition("@")
        if not at or not _LABEL.fullmatch(label):
            raise InvalidSpec(f"{text!r} names no capture")
        return CaptureRef(Owner.parse(owner), label)


def template_ref(key: str) -> CaptureRef:
    """The capture that the template of this key is."""
    return CaptureRef(Owner("template", key), FORMED)


@dataclass(frozen=True, order=True)
class VolumeName:
    """One disk of one node of a lab, a template or an image.

    ``str()`` is its path below the storage's root: ``labs/pxc/n1/os``.
    """

    owner: Owner
    node: str
    volume: str

    def __post_init__(self) -> None:
        for part in (self.owner.name, self.node, self.volume):
            if not _PART.fullmatch(part) or len(part) > 80:
                raise InvalidSpec(f"{part!r} cannot be part of a volume's name")

    def __str__(self) -> str:
        return f"{self.owner.kind}s/{self.owner.name}/{self.node}/{self.volume}"

    @staticmethod
    def parse(text: str) -> VolumeName:
        """The reverse of ``str(volume_name)``; raises InvalidSpec."""
        parts = text.split("/")
        if len(parts) != 4 or not parts[0].endswith("s"):
            raise InvalidSpec(f"{text!r} names no volume")
        return VolumeName(Owner.parse(f"{parts[0][:-1]}:{parts[1]}"), parts[2], parts[3])


def branch_names(name: str, count: int) -> list[str]:
    """The names of ``count`` branches: numbered if there are several, empty if ``name`` is.

    Empty ones are chosen when the branches are created. Raises InvalidSpec.
    """
    if not name or count == 1:
        return [check_lab_name(name) if name else ""] * count
    return [check_lab_name(f"{name}-{number}") for number in range(1, count + 1)]


def check_lab_name(name: str) -> str:
    """``name`` if it is a valid lab name; raises InvalidSpec."""
    if len(name) > LAB_NAME_LIMIT:
        raise InvalidSpec(
            f"a lab's name has at most {LAB_NAME_LIMIT} characters, this one has {len(name)}"
        )
    if not _LAB.fullmatch(name):
        raise InvalidSpec(
            f"{name!r} is not a valid name for a lab",
            hint="a lower-case letter, then letters, digits and hyphens, such as pxc-2",
        )
    return name


def node_name(index: int) -> str:
    """The name of the ``index``-th node, counted from 1."""
    return f"n{index}"


def parse_node(text: str) -> str:
    """A node as a person writes it (``2`` or ``n2``), as its name; raises InvalidSpec."""
    name = text if text.startswith("n") else f"n{text}"
    if not _NODE.fullmatch(name):
        raise InvalidSpec(f"{text!r} is not a node", hint="nodes are n1, n2, ... or 1, 2, ...")
    return name


def guest_name(owner: Owner, node: str, mark: str = "") -> GuestName:
    """The hypervisor's name for a node of a lab, or of what becomes a template or an image.

    ``mark``: 4 hexadecimal digits that a node of a standby has in it.
    """
    if owner.kind == "template":
        return GuestName(f"lab-t.{owner.name[:16]}-{node}")
    if owner.kind == "image":  # the names of two versions differ at their ends
        from hashlib import sha256

        return GuestName(f"lab-i.{sha256(owner.name.encode()).hexdigest()[:16]}-{node}")
    marked = f".{mark}" if mark else ""
    return GuestName(f"lab-{owner.name}{marked}-{node}")


def check_address(text: str) -> str:
    """``text`` if it is an IPv4 address that ports can be published at; raises InvalidSpec."""
    from ipaddress import IPv4Address

    try:
        return str(IPv4Address(text))
    except ValueError:
        raise InvalidSpec(
            f"{text!r} is not an IPv4 address",
            hint="such as 10.0.0.5; QEMU forwards no IPv6 ports, and a name goes into publish_name",
        ) from None


def check_host(text: str) -> str:
    """``text`` if it can be the name of a host, or its IPv4 address; raises InvalidSpec."""
    # Numbers with dots are an address or a mistake.
    if re.fullmatch(r"[0-9.]+", text):
        return check_address(text)
    if len(text) > _HOST_LIMIT or not _HOST.fullmatch(text):
        raise InvalidSpec(f"{text!r} is not a host name", hint="such as labs.example")
    return text.lower()


def dataset_key(recipe: str, name: str, version: int) -> str:
    """The key of the image that is a version of a dataset; the last part of others has no dot."""
    return f"{recipe}-{name.replace('-', '.')}.{version}"


def is_engine_name(name: str) -> bool:
    """Whether an engine that was added to a home can have the name."""
    return len(name) <= ENGINE_LIMIT and _ENGINE.fullmatch(name) is not None


def check_engine_name(name: str) -> str:
    """``name`` if it is a valid name of an added engine; raises InvalidSpec."""
    if not is_engine_name(name):
        raise InvalidSpec(
            f"{name!r} is not a valid name for an engine",
            hint="a lower-case letter, then letters, digits, dots and hyphens, at most"
            f" {ENGINE_LIMIT} in all, such as mariadb-11.4.5",
        )
    return name


def check_dataset_name(name: str) -> str:
    """``name`` if it is a valid name of a set of data; raises InvalidSpec."""
    if len(name) > LAB_NAME_LIMIT or not _LAB.fullmatch(name):
        raise InvalidSpec(
            f"{name!r} is not a valid name for a dataset",
            hint="a lower-case letter, then letters, digits and hyphens, at most"
            f" {LAB_NAME_LIMIT} in all, such as shop-small",
        )
    return name


def parse_dataset(text: str) -> tuple[str, int]:
    """Name and version from ``shop@2``, or ``shop``: version 0; raises InvalidSpec."""
    name, at, version = text.partition("@")
    if at and not re.fullmatch(r"[1-9][0-9]{0,8}", version):
        raise InvalidSpec(
            f"{text!r} names no version of a dataset", hint="such as shop@2, or shop: the latest"
        )
    return check_dataset_name(name), int(version or 0)


def is_loopback(address: str) -> bool:
    """Whether only the host itself can reach ``address``."""
    return address.startswith("127.")


def check_dataset(name: str) -> str:
    """``name`` if ZFS takes it for a dataset that volumes can be below; raises InvalidSpec.

    A space, a colon and a percent sign would do for ZFS, but not for paths of devices.
    """
    pool, *parts = name.split("/")
    if not parts:
        raise InvalidSpec(
            f"{name!r} is a whole pool", hint=f"name a dataset in it, such as {name or 'tank'}/lab"
        )
    if not _POOL.fullmatch(pool) or not all(_DATASET.fullmatch(part) for part in parts):
        raise InvalidSpec(
            f"{name!r} cannot be a ZFS dataset",
            hint="a pool and names, with slashes between, of letters, digits and . _ -: tank/lab",
        )
    if len(name) > DATASET_LIMIT:
        raise InvalidSpec(
            f"the dataset's name has {len(name)} characters, at most {DATASET_LIMIT} leave room"
            " for those of volumes"
        )
    return name


def lab_of(guest: str) -> str:
    """The lab that a guest of this name is a node of, in whatever home; empty if of none."""
    match = _LAB_GUEST.fullmatch(guest)
    return match[1] if match else ""

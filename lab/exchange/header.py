"""What an archive says of itself before anything else; ``trust`` is what reads it.

Whoever wrote an archive may mean harm, so each field says here which values it may have, and
``trust`` how fields have to fit together. No name in a header is ever used as a path.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import field, replace
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from lab.errors import InvalidSpec
from lab.exchange.frames import LIMIT, Version
from lab.names import ArchiveKind
from lab.sizes import NODES_LIMIT, NodeSize
from lab.values import dataclass

Form = Literal["sparse", "changes", "stream"]
"""Bytes, zeros left out; what a volume changed of its image's; a stream of the storage."""


def _whole(pattern: str) -> Meta:
    """A text that is the pattern from its first to its last character."""
    return Meta(pattern=rf"\A(?:{pattern})\Z")  # msgspec searches, and `$` allows a newline


_Word = Annotated[str, _whole(r"[a-z][a-z0-9-]{0,63}")]
_FINGERPRINT = r"[A-Za-z0-9.:-]{1,128}"
_Shown = Annotated[str, Meta(max_length=200)]
_Account = Annotated[int, Meta(ge=0, lt=1 << 32)]
_Seconds = Annotated[float, Meta(ge=0)]


@dataclass(frozen=True)
class Content:
    """``size`` in bytes and digest of a file or disk, as its kind's manifest has it."""

    size: Annotated[int, Meta(ge=0)]
    digest: Annotated[str, _whole(r"[0-9a-f]{32}|[0-9a-f]{64}")]


@dataclass(frozen=True)
class DatasetFacts:
    """Whose version an image with data is; ``info``: the file with its tables and columns."""

    name: str
    version: Annotated[int, Meta(ge=1, le=1_000_000)]
    info: Content


@dataclass(frozen=True)
class ImageFacts:
    """An image: what ``lab.imagebuild.manifest`` says of it, without any paths.

    ``option_file``: the text of the engine's option file template. ``disks``: by the names of
    a node's volumes, os first.
    """

    key: str
    recipe: Annotated[str, _whole(r"[a-z][a-z0-9.-]{0,63}")]
    engine: _Word
    engine_version: Annotated[str, _whole(r"[A-Za-z0-9.+~:-]{1,64}")]
    cmdline: Annotated[str, _whole(r"[ -~]{0,2000}")]
    user: _Word
    uid: _Account
    gid: _Account
    service: Annotated[str, _whole(r"[A-Za-z0-9_][A-Za-z0-9_@.-]{0,99}\.service")]
    config: Annotated[str, _whole(r"(/[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}){1,16}")]
    option_file: Annotated[str, _whole(r"[^\0]+"), Meta(max_length=1 << 16)]
    packages: Annotated[dict[str, str], Meta(max_length=10_000)]
    disks: dict[str, Content]
    kernel: Content
    initrd: Content
    build_seconds: _Seconds
    dataset: DatasetFacts | None = None

    @property
    def contents(self) -> dict[str, Content]:
        """Its files, by the last words of the names of the parts that bring them."""
        more = {"dataset": self.dataset.info} if self.dataset else {}
        return {**self.disks, "kernel": self.kernel, "initrd": self.initrd, **more}


@dataclass(frozen=True)
class NodeFacts:
    """A node of a template; a field that is empty or None has the value of the template."""

    name: str
    role: _Word
    seed: Content
    disks: dict[str, int]
    """Bytes of each volume."""
    ram: Content | None = None
    """None if only disks are sent."""
    state: Content | None = None
    image: str = ""
    """The key of its image."""
    size: NodeSize | None = None
    """Memory, processors and disk."""
    fingerprint: Annotated[str, _whole(rf"|{_FINGERPRINT}")] = ""
    """The fingerprint of the hypervisor that its RAM fits."""


@dataclass(frozen=True)
class TemplateFacts:
    """A template: what its key is made of, and where it was made."""

    key: Annotated[str, _whole(r"[0-9a-f]{14}(\.[1-9][0-9]{0,3})?")]
    blueprint: _Word
    version: int
    """The version of the blueprint's rules."""
    memory: int
    cpus: int
    disk: int
    profile: Annotated[str, _whole(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")]
    settings: dict[str, Any]
    """The content of ``profile``."""
    nodes: Annotated[list[NodeFacts], Meta(min_length=1, max_length=NODES_LIMIT)]
    fingerprint: Annotated[str, _whole(_FINGERPRINT)]
    """The fingerprint of the hypervisor that the RAM fits."""
    host: Annotated[dict[_Shown, _Shown], Meta(max_length=50)]
    """That hypervisor in words."""
    form_seconds: _Seconds
    requested_nodes: Annotated[int, Meta(ge=0, le=NODES_LIMIT)] = 0
    """The number that was requested; 0, in archives of earlier versions: all."""
    source: Annotated[str, _whole(r"|[a-z][a-z0-9-]{0,23}@[A-Za-z0-9][A-Za-z0-9._-]{0,99}")] = ""
    """The snapshot of a lab in use that it is, as ``shop@loaded``; empty for one of a freshly
    formed cluster."""
    options: dict[str, Any] = field(default_factory=dict)
    """The options of its labs, as ``Options.said`` returns them."""

    @property
    def size(self) -> NodeSize:
        """The size that was requested for a node."""
        return NodeSize(self.memory, self.cpus, self.disk)

    @property
    def warm(self) -> bool:
        """True if the RAM of all nodes is in the archive."""
        return all(node.ram and node.state for node in self.nodes)


@dataclass(frozen=True)
class Part:
    """``size`` in bytes of what it makes, 0 if that is not known; ``data``: about what is sent."""

    name: str
    form: Form
    size: int
    data: Annotated[int, Meta(ge=0)]


@dataclass(frozen=True)
class Header:
    """An archive of an image, or of a template with or without the images it needs."""

    image: ImageFacts
    """Of the engine."""
    parts: list[Part]
    template: TemplateFacts | None = None
    storage: Annotated[str, _whole("[a-z0-9]{0,16}")] = ""
    """The storage whose own streams some parts are; empty if there are none."""
    others: Annotated[list[ImageFacts], Meta(max_length=NODES_LIMIT)] = field(default_factory=list)
    """Images of nodes with another engine."""

    @property
    def images(self) -> dict[str, ImageFacts]:
        """All images, by the first words of the names of the parts that bring them."""
        return {image_name(n): facts for n, facts in enumerate((self.image, *self.others), 1)}

    def image_of(self, node: NodeFacts) -> ImageFacts | None:
        """The image of a node of the template; None if the archive does not describe it."""
        key = node.image or self.image.key
        return next((facts for facts in self.images.values() if facts.key == key), None)

    @property
    def key(self) -> str:
        """Of what is in the archive."""
        return self.template.key if self.template else self.image.key

    @property
    def kind(self) -> ArchiveKind:
        """What is in the archive."""
        if self.template is None:
            return "dataset" if self.image.dataset else "image"
        return "snapshot" if self.template.source else "template"

    @property
    def version(self) -> Version:
        """The first version of the format that has what is in the archive."""
        with_data = any(facts.dataset for facts in self.images.values())
        return 2 if with_data or self.kind == "snapshot" else 1

    @property
    def identity(self) -> str:
        """Equal for archives that bring the same: estimates do not matter."""
        parts = [replace(part, data=0) for part in self.parts]
        plain = msgspec.json.encode(replace(self, parts=parts), order="sorted")
        return hashlib.sha256(plain).hexdigest()

    def part(self, name: str) -> Part | None:
        """The part of that name."""
        return next((part for part in self.parts if part.name == name), None)


def image_name(number: int) -> str:
    """With what the names of the parts of an archive's first, second, third image begin."""
    return "image" if number == 1 else f"image-{number}"


def encode(header: Header) -> bytes:
    """As it is in an archive; raises InvalidSpec if it is too long for that."""
    data = msgspec.json.encode(header)
    if len(data) > LIMIT:
        raise InvalidSpec(
            f"the header of the archive is too large: {len(data)} bytes, at most {LIMIT}"
        )
    return data


def strings(values: Mapping[str, object]) -> dict[str, str]:
    """``values`` as short texts that a header can have."""
    texts = {name: str(value)[:200] for name, value in sorted(values.items())[:50]}
    return {n: "".join(c if c.isprintable() else " " for c in text) for n, text in texts.items()}

"""What an archive says of itself before anything else, and what of that is believed.

Whoever wrote an archive may mean harm: every name, size and number is checked here, before
anything is made of it, and no name in it is ever used as a path.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import msgspec

from lab.errors import InvalidSpec
from lab.exchange.frames import LIMIT
from lab.names import Owner, VolumeName, node_name
from lab.spec import NODES_LIMIT, NodeSize
from lab.storage.rules import check_size

Kind = Literal["image", "template"]
"""What is in an archive."""

Form = Literal["sparse", "changes", "stream"]
"""Bytes, zeros left out; what a volume changed of its image's; a stream of the storage."""


@dataclass(frozen=True)
class Content:
    """``size`` in bytes and digest of a file or disk, as its kind's manifest has it."""

    size: int
    digest: str


@dataclass(frozen=True)
class ImageFacts:
    """An image: what ``images.manifest`` says of it, without any paths.

    ``option_file``: the text of the engine's option file template. ``disks``: by the names of
    a node's volumes, os first.
    """

    key: str
    recipe: str
    engine: str
    engine_version: str
    cmdline: str
    user: str
    uid: int
    gid: int
    service: str
    config: str
    option_file: str
    packages: dict[str, str]
    disks: dict[str, Content]
    kernel: Content
    initrd: Content
    build_seconds: float

    @property
    def contents(self) -> dict[str, Content]:
        """Its files, by the names of the parts that bring them."""
        disks = {f"image/{name}": content for name, content in self.disks.items()}
        return {**disks, "image/kernel": self.kernel, "image/initrd": self.initrd}


@dataclass(frozen=True)
class NodeFacts:
    """A node of a template. ``disks``: bytes of each volume; no ``ram``: only disks are sent."""

    name: str
    role: str
    seed: Content
    disks: dict[str, int]
    ram: Content | None = None
    state: Content | None = None


@dataclass(frozen=True)
class TemplateFacts:
    """A template: what its key is made of, where it was made.

    ``version``: of the blueprint's rules. ``settings``: the content of ``profile``.
    ``fingerprint``: of the hypervisor that the RAM fits; ``host`` says in words what that is.
    """

    key: str
    blueprint: str
    version: int
    memory: int
    cpus: int
    disk: int
    profile: str
    settings: dict[str, Any]
    nodes: list[NodeFacts]
    fingerprint: str
    host: dict[str, str]
    form_seconds: float

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
    data: int


@dataclass(frozen=True)
class Header:
    """An archive of ``image``, or of ``template`` with or without the image it needs.

    ``storage``: whose streams the parts of that form are, empty if there are none.
    """

    image: ImageFacts
    parts: list[Part]
    template: TemplateFacts | None = None
    storage: str = ""

    @property
    def key(self) -> str:
        """Of what is in the archive."""
        return self.template.key if self.template else self.image.key

    @property
    def kind(self) -> Kind:
        """What is in the archive."""
        return "template" if self.template else "image"

    @property
    def identity(self) -> str:
        """Equal for archives that bring the same: estimates do not matter."""
        parts = [replace(part, data=0) for part in self.parts]
        plain = msgspec.json.encode(replace(self, parts=parts), order="sorted")
        return hashlib.sha256(plain).hexdigest()

    def part(self, name: str) -> Part | None:
        """The part of that name."""
        return next((part for part in self.parts if part.name == name), None)


def encode(header: Header) -> bytes:
    """As it is in an archive; raises InvalidSpec if it is too long for that."""
    data = msgspec.json.encode(header)
    if len(data) > LIMIT:
        raise InvalidSpec("there is too much to say about this for the header of an archive")
    return data


def decode(data: bytes) -> Header:
    """The header of an archive; raises InvalidSpec unless all of it makes sense."""
    try:
        header = msgspec.json.decode(data, type=Header)
    except msgspec.MsgspecError as error:
        raise _nonsense(str(error)) from None
    check(header)
    return header


def check(header: Header) -> None:
    """Raise InvalidSpec unless all that ``header`` says makes sense."""
    _check_image(header.image)
    if header.template:
        _check_template(header.template, header.image)
    _text("the storage", header.storage, r"[a-z0-9]{0,16}")
    expected = dict(_expected(header))
    names = [part.name for part in header.parts]
    if [name for name in expected if name in names] != names:
        raise _nonsense("its parts are not those of such a thing, in their order")
    missing = [n for n in expected if n not in names]
    if missing and (not header.template or any(not n.startswith("image/") for n in missing)):
        raise _nonsense(f"the part {missing[0]} is missing")
    if missing and any(name.startswith("image/") for name in names):
        raise _nonsense(f"the image is not whole without {missing[0]}")
    for part in header.parts:
        forms, size = expected[part.name]
        if part.form not in forms or part.data < 0:
            raise _nonsense(f"the part {part.name} is in no form that it can have")
        if part.size != (0 if part.form == "stream" else size):
            raise _nonsense(f"the part {part.name} has another size than what it makes")


def _expected(header: Header) -> Iterator[tuple[str, tuple[tuple[Form, ...], int]]]:
    for name, content in header.image.contents.items():
        disk = name.removeprefix("image/") in header.image.disks
        yield name, (("sparse", "stream") if disk else ("sparse",), content.size)
    for node in header.template.nodes if header.template else ():
        yield f"{node.name}/seed", (("sparse",), node.seed.size)
        for disk_name, size in node.disks.items():
            yield f"{node.name}/{disk_name}", (("changes",), size)
        if node.ram and node.state:
            yield f"{node.name}/state", (("sparse",), node.state.size)
            yield f"{node.name}/ram", (("sparse",), node.ram.size)


_WORD = r"[a-z][a-z0-9-]{0,63}"
_PLAIN = r"[ -~]{0,2000}"
_STATE_LIMIT = 1 << 30
_FILE_LIMIT = 1 << 30
_PACKAGES_LIMIT = 10_000


def _check_image(image: ImageFacts) -> None:
    _text("the recipe", image.recipe, _WORD)
    _text("the key", image.key, re.escape(image.recipe) + r"-[0-9a-f]{16}")
    for what in (image.engine, image.user):
        _text("a name", what, _WORD)
    _text("the engine's version", image.engine_version, r"[A-Za-z0-9.+~:-]{1,64}")
    _text("the kernel's command line", image.cmdline, _PLAIN)
    _text("the service", image.service, r"[\w@.-]{1,100}\.service")
    _text("the option file's path", image.config, r"(/[\w.-]{1,64}){1,16}")
    if not 0 < len(image.option_file) <= 1 << 16 or "\0" in image.option_file:
        raise _nonsense("its option file")
    if not (0 <= image.uid < 1 << 32 and 0 <= image.gid < 1 << 32):
        raise _nonsense("the engine's account")
    if len(image.packages) > _PACKAGES_LIMIT or image.build_seconds < 0:
        raise _nonsense("its packages")
    if list(image.disks) not in (["os"], ["os", "data", "log"]):
        raise _nonsense("its disks")
    for name, content in image.disks.items():
        VolumeName(Owner("image", image.key), "base", name)
        check_size(content.size)
        _text("a digest", content.digest, r"[0-9a-f]{64}")
    for content in (image.kernel, image.initrd):
        _content(content, r"[0-9a-f]{64}", _FILE_LIMIT)


def _check_template(template: TemplateFacts, image: ImageFacts) -> None:
    _text("the key", template.key, r"[0-9a-f]{14}(\.[1-9][0-9]{0,3})?")
    _text("the blueprint", template.blueprint, _WORD)
    _text("the profile", template.profile, r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
    _text("the fingerprint", template.fingerprint, r"[A-Za-z0-9.:-]{1,128}")
    size = NodeSize(template.memory, template.cpus, template.disk)
    nodes = template.nodes
    if not 1 <= len(nodes) <= NODES_LIMIT or template.form_seconds < 0:
        raise _nonsense("the number of its nodes")
    if [node.name for node in nodes] != [node_name(n + 1) for n in range(len(nodes))]:
        raise _nonsense("the names of its nodes")
    warm = template.warm
    for node in nodes:
        _text("a role", node.role, _WORD)
        _content(node.seed, _TEMPLATE_DIGEST, _FILE_LIMIT)
        if list(node.disks) != list(image.disks):
            raise _nonsense(f"{node.name} has other disks than its image")
        for name, bytes_ in node.disks.items():
            if check_size(bytes_) < image.disks[name].size:
                raise _nonsense(f"a disk of {node.name} is smaller than its image's")
        if bool(node.ram) != warm or bool(node.state) != warm:
            raise _nonsense(f"the RAM of {node.name} is half there")
        if node.ram and node.state:
            _content(node.ram, _TEMPLATE_DIGEST, size.memory)
            _content(node.state, _TEMPLATE_DIGEST, _STATE_LIMIT)
            if node.ram.size != size.memory:
                raise _nonsense(f"the RAM of {node.name} is not as large as its memory")


_TEMPLATE_DIGEST = r"[0-9a-f]{32}"


def _content(content: Content, digest: str, most: int) -> None:
    if not 0 <= content.size <= most:
        raise _nonsense("the size of a file")
    _text("a digest", content.digest, digest)


def _text(what: str, value: str, pattern: str) -> None:
    if not re.fullmatch(pattern, value, re.ASCII):
        shown = value if len(value) <= 40 else f"{value[:40]}..."
        raise _nonsense(f"{what} is {shown!r}")


def _nonsense(why: str) -> InvalidSpec:
    return InvalidSpec(f"the archive's header makes no sense: {why}", hint="export it again")


def strings(values: Mapping[str, object]) -> dict[str, str]:
    """The texts among ``values``, short ones, for a header."""
    return {name: str(value)[:200] for name, value in sorted(values.items())}

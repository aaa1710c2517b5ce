"""Reading the header of an archive: what of it is believed.

Whoever wrote an archive may mean harm: every name, size and number is checked here, before
anything is made of it, and no name in it is ever used as a path.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import msgspec

from lab import options
from lab.errors import InvalidSpec
from lab.exchange.frames import Version
from lab.exchange.header import (
    Content,
    DatasetFacts,
    Form,
    Header,
    ImageFacts,
    NodeFacts,
    TemplateFacts,
)
from lab.names import Owner, VolumeName, check_dataset_name, dataset_key, node_name
from lab.spec import NODES_LIMIT
from lab.storage.rules import check_size


def decode(data: bytes, version: Version = 1) -> Header:
    """The header of an archive of that version; raises InvalidSpec unless all of it is valid."""
    try:
        header = msgspec.json.decode(data, type=Header)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise _nonsense(str(error)[:300]) from None
    check(header)
    if header.version != version:
        raise _nonsense(f"a {header.kind} in version {version} of the format")
    return header


def check(header: Header) -> None:
    """Raise InvalidSpec unless ``header`` is valid."""
    _check_images(header)
    if header.template:
        _check_template(header.template, header)
    _text("the storage", header.storage, r"[a-z0-9]{0,16}")
    expected = dict(_expected(header))
    names = [part.name for part in header.parts]
    if [name for name in expected if name in names] != names:
        raise _nonsense("unexpected parts, or parts in the wrong order")
    missing = [n for n in expected if n not in names]
    if missing and (not header.template or any(not _of_image(n) for n in missing)):
        raise _nonsense(f"the part {missing[0]} is missing")
    if missing and any(_of_image(name) for name in names):
        raise _nonsense(f"the image is incomplete: {missing[0]} is missing")
    for part in header.parts:
        forms, size = expected[part.name]
        if part.form not in forms or part.data < 0:
            raise _nonsense(f"the part {part.name} has an unexpected form")
        if part.size != (0 if part.form == "stream" else size):
            raise _nonsense(f"the part {part.name} has the wrong size")


def _expected(header: Header) -> Iterator[tuple[str, tuple[tuple[Form, ...], int]]]:
    for first, image in header.images.items():
        for name, content in image.contents.items():
            forms: tuple[Form, ...] = ("sparse", "stream") if name in image.disks else ("sparse",)
            yield f"{first}/{name}", (forms, content.size)
    for node in header.template.nodes if header.template else ():
        yield f"{node.name}/seed", (("sparse",), node.seed.size)
        for disk_name, size in node.disks.items():
            yield f"{node.name}/{disk_name}", (("changes",), size)
        if node.ram and node.state:
            yield f"{node.name}/state", (("sparse",), node.state.size)
            yield f"{node.name}/ram", (("sparse",), node.ram.size)


def _of_image(part: str) -> bool:
    return part.startswith("image")  # nodes are n1, n2 and so on


_WORD = r"[a-z][a-z0-9-]{0,63}"
_FINGERPRINT = r"[A-Za-z0-9.:-]{1,128}"
_PLAIN = r"[ -~]{0,2000}"
_STATE_LIMIT = 1 << 30
_SOURCE = r"[a-z][a-z0-9-]{0,23}@[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
_FILE_LIMIT = 1 << 30
_PACKAGES_LIMIT = 10_000
_VERSION_LIMIT = 1_000_000
_INFO_LIMIT = 1 << 26


def _check_images(header: Header) -> None:
    for image in header.images.values():
        _check_image(image)
    recipes = {image.recipe for image in header.others}
    if len(recipes) < len(header.others) or len(recipes) > NODES_LIMIT:
        raise _nonsense("its images")
    needed = {node.image for node in header.template.nodes} if header.template else set()
    if not {image.key for image in header.others} <= needed - {header.image.key}:
        raise _nonsense("it has images that no node needs")


def _check_image(image: ImageFacts) -> None:
    _text("the recipe", image.recipe, _WORD)
    if image.dataset:
        _check_dataset(image.dataset, image)
    else:
        _text("the key", image.key, re.escape(image.recipe) + r"-[0-9a-f]{16}")
    for what in (image.engine, image.user):
        _text("a name", what, _WORD)
    _text("the engine's version", image.engine_version, r"[A-Za-z0-9.+~:-]{1,64}")
    _text("the kernel's command line", image.cmdline, _PLAIN)
    _text("the service", image.service, r"\w[\w@.-]{0,99}\.service")
    _text("the option file's path", image.config, r"(/\w[\w.-]{0,63}){1,16}")
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


def _check_dataset(dataset: DatasetFacts, image: ImageFacts) -> None:
    check_dataset_name(dataset.name)
    if not 1 <= dataset.version <= _VERSION_LIMIT:
        raise _nonsense("the dataset's version")
    if image.key != dataset_key(image.recipe, dataset.name, dataset.version):
        raise _nonsense("the key is not of the dataset")
    _content(dataset.info, r"[0-9a-f]{64}", _INFO_LIMIT)


def _check_template(template: TemplateFacts, header: Header) -> None:
    _text("the key", template.key, r"[0-9a-f]{14}(\.[1-9][0-9]{0,3})?")
    _text("the blueprint", template.blueprint, _WORD)
    _text("the profile", template.profile, r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
    _text("the fingerprint", template.fingerprint, _FINGERPRINT)
    if template.source:
        _text("the snapshot", template.source, _SOURCE)
    _check_host(template.host)
    requested, nodes = template.size, template.nodes
    if not 1 <= len(nodes) <= NODES_LIMIT or template.form_seconds < 0:
        raise _nonsense("the number of its nodes")
    if [node.name for node in nodes] != [node_name(n + 1) for n in range(len(nodes))]:
        raise _nonsense("the names of its nodes")
    options.of(template.options)
    if not 0 <= template.requested_nodes <= NODES_LIMIT:
        raise _nonsense("the number of requested nodes")
    for node in nodes:
        image = header.image_of(node)
        if image is None:
            raise _nonsense(f"the image of {node.name}")
        if node.fingerprint:
            _text("the fingerprint", node.fingerprint, _FINGERPRINT)
        _check_node(node, image, warm=template.warm, memory=(node.size or requested).memory)


def _check_node(node: NodeFacts, image: ImageFacts, *, warm: bool, memory: int) -> None:
    _text("a role", node.role, _WORD)
    _content(node.seed, _TEMPLATE_DIGEST, _FILE_LIMIT)
    if list(node.disks) != list(image.disks):
        raise _nonsense(f"{node.name} does not have the disks of its image")
    for name, size in node.disks.items():
        if check_size(size) < image.disks[name].size:
            raise _nonsense(f"a disk of {node.name} is smaller than its image's")
    if bool(node.ram) != warm or bool(node.state) != warm:
        raise _nonsense(f"the RAM of {node.name} is incomplete")
    if node.ram and node.state:
        _content(node.ram, _TEMPLATE_DIGEST, memory)
        # That of a snapshot also has the pages that differ from the RAM, each with its address.
        _content(node.state, _TEMPLATE_DIGEST, _STATE_LIMIT + memory + memory // 64)
        if node.ram.size != memory:
            raise _nonsense(f"the RAM of {node.name} is not as large as its memory")


def _check_host(host: Mapping[str, str]) -> None:
    """What is said of the other host is shown to people."""
    words = [*host.keys(), *host.values()]
    if len(words) > 100 or any(len(word) > 200 or not word.isprintable() for word in words):
        raise _nonsense("the facts of its host")


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
    why = "".join(c if c.isprintable() else "?" for c in why[:300])
    return InvalidSpec(f"the archive's header is invalid: {why}", hint="export it again")

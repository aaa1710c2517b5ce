"""Reading the header of an archive: whether its fields fit together, before anything is made of it.

What each field may be by itself is said where it is declared.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from lab import options
from lab.errors import InvalidSpec
from lab.exchange.frames import Version
from lab.exchange.header import (
    Content,
    Form,
    Header,
    ImageFacts,
    NodeFacts,
    TemplateFacts,
)
from lab.names import Owner, VolumeName, check_dataset_name, dataset_key, node_name
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
        if part.form not in forms:
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


_STATE_LIMIT = 1 << 30
_FILE_LIMIT = 1 << 30
_INFO_LIMIT = 1 << 26
_IMAGE_DIGEST, _TEMPLATE_DIGEST = 64, 32


def _check_images(header: Header) -> None:
    for image in header.images.values():
        _check_image(image)
    recipes = {image.recipe for image in header.others}
    if len(recipes) < len(header.others):
        raise _nonsense("its images")
    needed = {node.image for node in header.template.nodes} if header.template else set()
    if not {image.key for image in header.others} <= needed - {header.image.key}:
        raise _nonsense("it has images that no node needs")


def _check_image(image: ImageFacts) -> None:
    if image.dataset:
        check_dataset_name(image.dataset.name)
        if image.key != dataset_key(image.recipe, image.dataset.name, image.dataset.version):
            raise _nonsense("the key is not of the dataset")
        _check_file(image.dataset.info, _IMAGE_DIGEST, _INFO_LIMIT)
    elif not re.fullmatch(re.escape(image.recipe) + r"-[0-9a-f]{16}", image.key):
        raise _nonsense("the key is not of the recipe")
    if list(image.disks) not in (["os"], ["os", "data", "log"]):
        raise _nonsense("its disks")
    for name, content in image.disks.items():
        VolumeName(Owner("image", image.key), "base", name)
        _check_file(content, _IMAGE_DIGEST, check_size(content.size))
    for content in (image.kernel, image.initrd):
        _check_file(content, _IMAGE_DIGEST, _FILE_LIMIT)


def _check_template(template: TemplateFacts, header: Header) -> None:
    if not all(word.isprintable() for fact in template.host.items() for word in fact):
        raise _nonsense("the facts of its host")  # they are shown to people
    requested, nodes = template.size, template.nodes
    if [node.name for node in nodes] != [node_name(n + 1) for n in range(len(nodes))]:
        raise _nonsense("the names of its nodes")
    options.of(template.options)
    for node in nodes:
        image = header.image_of(node)
        if image is None:
            raise _nonsense(f"the image of {node.name}")
        _check_node(node, image, warm=template.warm, memory=(node.size or requested).memory)


def _check_node(node: NodeFacts, image: ImageFacts, *, warm: bool, memory: int) -> None:
    _check_file(node.seed, _TEMPLATE_DIGEST, _FILE_LIMIT)
    if list(node.disks) != list(image.disks):
        raise _nonsense(f"{node.name} does not have the disks of its image")
    for name, size in node.disks.items():
        if check_size(size) < image.disks[name].size:
            raise _nonsense(f"a disk of {node.name} is smaller than its image's")
    if bool(node.ram) != warm or bool(node.state) != warm:
        raise _nonsense(f"the RAM of {node.name} is incomplete")
    if node.ram and node.state:
        _check_file(node.ram, _TEMPLATE_DIGEST, memory)
        # That of a snapshot also has the pages that differ from the RAM, each with its address.
        _check_file(node.state, _TEMPLATE_DIGEST, _STATE_LIMIT + memory + memory // 64)
        if node.ram.size != memory:
            raise _nonsense(f"the RAM of {node.name} is not as large as its memory")


def _check_file(content: Content, digest: int, most: int) -> None:
    if content.size > most:
        raise _nonsense("the size of a file")
    if len(content.digest) != digest:
        raise _nonsense("a digest")


def _nonsense(why: str) -> InvalidSpec:
    why = "".join(c if c.isprintable() else "?" for c in why[:300])
    return InvalidSpec(f"the archive's header is invalid: {why}", hint="export it again")

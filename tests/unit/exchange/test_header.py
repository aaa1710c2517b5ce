"""Protects the host from archives that mean harm: no name, size or number is just believed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from lab.errors import InvalidSpec
from lab.exchange.header import Header, Part, encode
from lab.exchange.trust import decode
from lab.units import MIB
from tests.support.exchange_archives import (
    IMAGE,
    IMAGE_PARTS,
    NODE,
    TEMPLATE,
    image_header,
    node_parts,
    template_header,
)

Fields = dict[str, Any]


def test_round_trip() -> None:
    for header in (image_header(), template_header()):
        assert decode(encode(header)) == header
    assert (image_header().kind, image_header().key) == ("image", IMAGE.key)
    assert (template_header().kind, template_header().key) == ("template", TEMPLATE.key)


def _snapshot(**changes: object) -> Header:
    template = replace(TEMPLATE, source="shop@loaded.20261121t110000", **changes)  # type: ignore[arg-type]
    nodes = [part for node in template.nodes for part in node_parts(node)]
    return replace(template_header(), template=template, parts=[*IMAGE_PARTS, *nodes])


def test_a_snapshot_is_no_template() -> None:
    """Its device state may have as many pages as its RAM."""
    state = replace(NODE.state, size=NODE.ram.size + MIB)  # type: ignore[type-var, union-attr]
    for header in (_snapshot(), _snapshot(nodes=[replace(NODE, state=state)])):
        assert (header.kind, header.version) == ("snapshot", 2)
        assert decode(encode(header), 2) == header
        with pytest.raises(InvalidSpec, match="a snapshot in version 1 of the format"):
            decode(encode(header))
    with pytest.raises(InvalidSpec, match="a template in version 2 of the format"):
        decode(encode(template_header()), 2)


@pytest.mark.parametrize(
    "source",
    ["shop", "@x", "shop@", "../x@y", "shop@../x", "shop@\x1b[2J", "Shop@x", "shop@x\n",
     f"{'a' * 25}@x", f"shop@{'x' * 200}"],
)  # fmt: skip
def test_a_hostile_name_of_a_snapshot_is_refused(source: str) -> None:
    """Protects terminals and names: a lab is called like the one in it."""
    fields = json.loads(encode(_snapshot()))
    fields["template"]["source"] = source
    with pytest.raises(InvalidSpec, match=r"matching regex .* at `\$.template.source`"):
        decode(json.dumps(fields).encode(), 2)


def test_a_template_without_its_image_and_without_ram() -> None:
    nodes = [replace(node, ram=None, state=None) for node in TEMPLATE.nodes]
    parts = [part for node in nodes for part in node_parts(node)]
    header = replace(template_header(), template=replace(TEMPLATE, nodes=nodes), parts=parts)
    assert decode(encode(header)) == header
    assert header.template
    assert not header.template.warm


def test_identity_is_of_what_it_brings() -> None:
    """Protects resuming: estimates vary, content does not."""
    header = template_header()
    other = replace(header, parts=[replace(part, data=part.data + 1) for part in header.parts])
    assert other.identity == header.identity
    assert replace(header, template=replace(TEMPLATE, cpus=2)).identity != header.identity
    assert image_header().identity != header.identity


def _set(*path: str | int, to: object) -> Callable[[Fields], None]:
    def change(fields: Any) -> None:
        for step in path[:-1]:
            fields = fields[step]
        fields[path[-1]] = to

    return change


def _without(name: str) -> Callable[[Fields], None]:
    def change(fields: Fields) -> None:
        fields["parts"] = [part for part in fields["parts"] if part["name"] != name]

    return change


def _swapped(fields: Fields) -> None:
    fields["parts"].reverse()


def _twice(fields: Fields) -> None:
    fields["parts"].append(fields["parts"][-1])


def _more_nodes(fields: Fields) -> None:
    fields["template"]["nodes"] *= 5


ANY_DISK = {"size": 512, "digest": "0" * 64}
HOSTILE: dict[str, Callable[[Fields], None]] = {
    "a recipe that is a path": _set("image", "recipe", to="../../etc"),
    "a key of another recipe": _set("image", "key", to="percona-0123456789abcdef"),
    "a key that is a path": _set("image", "key", to="mariadb-0123456789abcdef/../x"),
    "a key with a newline": _set("image", "key", to="mariadb-0123456789abcdef\n"),
    "a key that is longer than a volume's name": lambda fields: fields["image"].update(
        recipe="r" * 64, key=f"{'r' * 64}-0123456789abcdef"
    ),
    "a command line of two lines": _set("image", "cmdline", to="ro\ninit=/bin/sh"),
    "a path that leads up": _set("image", "config", to="/etc/../../x"),
    "a relative path": _set("image", "config", to="etc/my.cnf"),
    "an empty option file": _set("image", "option_file", to=""),
    "a huge option file": _set("image", "option_file", to="x" * (1 << 17)),
    "a uid below zero": _set("image", "uid", to=-1),
    "a uid that is a text": _set("image", "uid", to="0"),
    "packages that are a list": _set("image", "packages", to=[]),
    "a disk of another name": _set(
        "image", "disks", to={"../x": {"size": 512, "digest": "0" * 64}}
    ),
    "no disks": _set("image", "disks", to={}),
    "a disk of no size": _set("image", "disks", "os", "size", to=0),
    "a disk of a negative size": _set("image", "disks", "os", "size", to=-512),
    "a disk of half a sector": _set("image", "disks", "os", "size", to=700),
    "a disk larger than any": _set("image", "disks", "os", "size", to=1 << 60),
    "a size that is a fraction": _set("image", "disks", "os", "size", to=512.5),
    "a digest that is none": _set("image", "disks", "os", "digest", to="x" * 64),
    "a kernel of a terabyte": _set("image", "kernel", "size", to=1 << 40),
    "a service with a blank": _set("image", "service", to="a b.service"),
    "a service with the name of an option": _set("image", "service", to="--force.service"),
    "time that ran backwards": _set("image", "build_seconds", to=-1.0),
    "a template's key that is a path": _set("template", "key", to="../../../x"),
    "a blueprint that is a path": _set("template", "blueprint", to="../x"),
    "a profile that is a path": _set("template", "profile", to="../x"),
    "a host that draws on terminals": _set("template", "host", to={"qemu": "\x1b[2J"}),
    "a host of many words": _set("template", "host", to={str(n): "x" for n in range(60)}),
    "no nodes": _set("template", "nodes", to=[]),
    "ten nodes": _more_nodes,
    "ten requested nodes": _set("template", "requested_nodes", to=10),
    "a node of another name": _set("template", "nodes", 0, "name", to="../n1"),
    "two nodes of one name": _set("template", "nodes", 1, "name", to="n1"),
    "too little memory": _set("template", "memory", to=1 << 20),
    "no processor": _set("template", "cpus", to=0),
    "RAM of another size": _set("template", "nodes", 0, "ram", "size", to=1 << 20),
    "RAM without state": _set("template", "nodes", 0, "state", to=None),
    "half of the nodes warm": _set("template", "nodes", 1, "ram", to=None),
    "a disk smaller than its image's": _set("template", "nodes", 0, "disks", "os", to=512),
    "a disk too many": _set("template", "nodes", 0, "disks", to={"os": 2 << 20, "x": 2 << 20}),
    "a seed of a terabyte": _set("template", "nodes", 0, "seed", "size", to=1 << 40),
    "a part of another name": _set("parts", 3, "name", to="n1/../../seed"),
    "a part of another size": _set("parts", 0, "size", to=1 << 40),
    "a part with less than nothing": _set("parts", 0, "data", to=-1),
    "a part in another form": _set("parts", 0, "form", to="changes"),
    "a seed as a stream": _set("parts", 3, "form", to="stream"),
    "a form that is none": _set("parts", 0, "form", to="zip"),
    "a part missing": _without("n1/ram"),
    "half an image": _without("image/kernel"),
    "parts in another order": _swapped,
    "a part twice": _twice,
    "a storage that is a path": _set("storage", to="../zfs"),
    "no image": _set("image", to=None),
    "parts that are a text": _set("parts", to="image/os"),
}


@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_header_is_refused(change: Callable[[Fields], None]) -> None:
    fields = json.loads(encode(template_header()))
    change(fields)
    with pytest.raises(InvalidSpec):
        decode(json.dumps(fields).encode())


def test_an_invalid_header_is_reported_without_harm() -> None:
    """Protects terminals: an archive may hold what they would obey."""
    fields = json.loads(encode(template_header()))
    fields["parts"][0]["form"] = "\x1b[2Jsparse"
    with pytest.raises(InvalidSpec) as caught:
        decode(json.dumps(fields).encode())
    assert caught.value.what.isprintable()


def test_an_image_without_a_part_is_refused() -> None:
    header = image_header()
    with pytest.raises(InvalidSpec, match="image/initrd is missing"):
        decode(encode(replace(header, parts=header.parts[:-1])))
    other = replace(header, parts=[*header.parts, Part("n1/seed", "sparse", 512, 1)])
    with pytest.raises(InvalidSpec, match="parts"):
        decode(encode(other))


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b"{}", b"\xff\xfe", b"[" * 100_000])
def test_nonsense_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidSpec, match="is invalid"):
        decode(data)


def test_a_header_has_a_limit() -> None:
    packages = {f"package-{n}": "x" * 200 for n in range(9000)}
    with pytest.raises(InvalidSpec, match="header of the archive is too large"):
        encode(replace(image_header(), image=replace(IMAGE, packages=packages)))

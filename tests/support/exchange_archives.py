"""Archives for tests: small ones, made of facts and files that nobody ever booted."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from lab.config.profile import DEFAULT
from lab.exchange import receiving, sending
from lab.exchange.content import Chunk, Chunks
from lab.exchange.frames import FrameReader, FrameWriter
from lab.exchange.header import Content, Header, ImageFacts, NodeFacts, Part, TemplateFacts
from lab.exchange.sending import Outgoing
from lab.exchange.stage import Stage, stage
from lab.progress import Progress
from lab.units import MIB

SIZE = 2 * MIB

IMAGE = ImageFacts(
    key="mariadb-0123456789abcdef",
    recipe="mariadb",
    engine="mariadb",
    engine_version="11.8.6",
    cmdline="root=/dev/vda2 ro",
    user="mysql",
    uid=100,
    gid=101,
    service="mariadb.service",
    config="/etc/mysql/lab.cnf",
    option_file="[mysqld]\n",
    packages={"mariadb-server": "1:11.8.6-0+deb13u1"},
    disks={"os": Content(SIZE, "0" * 64)},
    kernel=Content(5, "1" * 64),
    initrd=Content(0, "2" * 64),
    build_seconds=60.0,
)
NODE = NodeFacts(
    name="n1",
    role="member",
    seed=Content(512, "3" * 32),
    disks={"os": SIZE},
    ram=Content(384 * MIB, "4" * 32),
    state=Content(9000, "5" * 32),
)
TEMPLATE = TemplateFacts(
    key="0123456789abcd",
    blueprint="galera",
    version=1,
    memory=384 * MIB,
    cpus=1,
    disk=0,
    profile="balanced",
    settings=DEFAULT.content(),
    nodes=[NODE, replace(NODE, name="n2")],
    fingerprint="f1",
    host={"qemu": "10.0"},
    form_seconds=40.0,
)
IMAGE_PARTS = [
    Part("image/os", "sparse", SIZE, 3),
    Part("image/kernel", "sparse", 5, 5),
    Part("image/initrd", "sparse", 0, 0),
]


def node_parts(node: NodeFacts) -> list[Part]:
    """All that a node of a template may bring."""
    parts = [Part(f"{node.name}/seed", "sparse", node.seed.size, 9)]
    parts += [Part(f"{node.name}/{d}", "changes", size, 9) for d, size in node.disks.items()]
    if node.ram and node.state:
        parts.append(Part(f"{node.name}/state", "sparse", node.state.size, 9))
        parts.append(Part(f"{node.name}/ram", "sparse", node.ram.size, 9))
    return parts


def image_header() -> Header:
    """Of an image."""
    return Header(IMAGE, list(IMAGE_PARTS))


def template_header() -> Header:
    """Of a template of two nodes, with its image."""
    nodes = [part for node in TEMPLATE.nodes for part in node_parts(node)]
    return Header(IMAGE, [*IMAGE_PARTS, *nodes], TEMPLATE)


def _chunks(chunks: Sequence[Chunk]) -> Chunks:
    yield from chunks


CONTENT: dict[str, list[Chunk]] = {
    "image/os": [(0, b"a" * 16384), (16384, b"b" * 16384), (SIZE - 16384, b"c" * 16384)],
    "image/kernel": [(0, b"linux")],
    "image/initrd": [],
}


def outgoing(header: Header, content: dict[str, list[Chunk]]) -> list[Outgoing]:
    """The parts of ``header`` with that content."""
    return [Outgoing(part, partial(_chunks, content[part.name])) for part in header.parts]


def archive(wanted: dict[str, int] | None = None) -> bytes:
    """The archive of an image with ``CONTENT``: all of it, or what is wanted."""
    to, header = io.BytesIO(), image_header()
    writer = FrameWriter(to)
    sending.begin(writer, header)
    sending.send(writer, outgoing(header, CONTENT), wanted or dict.fromkeys(CONTENT, 0), Progress())
    return to.getvalue()


def receive(stream: bytes, parent: Path, *, keep: bool = False) -> Iterator[Stage]:
    """A stage with all parts of the archive, while the generator lives."""
    reader = FrameReader(io.BytesIO(stream))
    header = receiving.begin(reader)
    names = [part.name for part in header.parts]
    with stage(parent, header, keep=keep, floor=0) as there:
        receiving.receive(reader, there, header, names, Progress())
        yield there


def received(stream: bytes, parent: Path, *, keep: bool = False) -> dict[str, bytes]:
    """The content of all files that the archive makes; raises what receiving raises."""
    found = {}
    for there in receive(stream, parent, keep=keep):
        found = {name: there.path(name).read_bytes() for name in CONTENT}
    return found


def expected() -> dict[str, bytes]:
    """What ``received`` must find."""
    found = {}
    for part in IMAGE_PARTS:
        file = bytearray(part.size)
        for offset, data in CONTENT[part.name]:
            file[offset : offset + len(data)] = data
        found[part.name] = bytes(file)
    return found

"""Migration streams: what is read is what was written, and nothing else is taken for one."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.hypervisor.libvirt.stream import (
    PAGE,
    Block,
    Opening,
    Page,
    Reader,
    UnknownStream,
    Writer,
    devices,
    own_block,
    read_opening,
)

HEAD = b"QEVM\x00\x00\x00\x03\x07\x00\x00\x00\x02pc"
"""As in a stream of QEMU 7.2, without subsections."""

OPENING = Opening(
    HEAD,
    b"\x00\x00\x00\x03",
    (
        Block("labram", 1 << 20, 0),
        Block("/rom@etc/acpi/tables", 0x20000, 0),
        Block("pc.bios", 0x40000, 0xFFFC0000),
    ),
)
PAGES = [
    Page("/rom@etc/acpi/tables", 0, b"FACS" * 1024),
    Page("/rom@etc/acpi/tables", PAGE, None),
    Page("pc.bios", 0, b"\xff" * PAGE),
    Page("labram", 7 * PAGE, bytes(range(256)) * 16),
    Page("labram", 8 * PAGE, None),
    Page("labram", 255 * PAGE, b"x" * PAGE),
]
REST = b"\x04\x00\x00\x00\x04\x05timer\x00\x00\x00\x00\x00\x00\x00\x02state\x7e\x00\x00\x00\x04\x00"


@pytest.fixture
def stream(tmp_path: Path) -> Path:
    path = tmp_path / "stream"
    with path.open("wb", buffering=0) as file:
        writer = Writer(file, OPENING)
        writer.pages(PAGES[:2])
        writer.pages(PAGES[2:])
        writer.rest(REST)
    return path


def test_what_is_written_is_read(stream: Path) -> None:
    reader = Reader(stream.read_bytes())
    assert reader.opening == OPENING
    assert list(reader.pages()) == PAGES
    assert reader.rest == REST
    assert own_block(reader.opening).name == "labram"


def test_many_pages_are_written_in_parts(tmp_path: Path) -> None:
    pages = [Page("labram", number * PAGE, bytes([number]) * PAGE) for number in range(1, 256)]
    more = [Page("labram", number % 256 * PAGE, None) for number in range(5000)]
    with (tmp_path / "stream").open("wb", buffering=0) as file:
        writer = Writer(file, OPENING)
        writer.pages(pages + more)
        writer.rest(REST)
    assert list(Reader((tmp_path / "stream").read_bytes()).pages()) == pages + more


def test_the_opening_has_firmware_but_no_ram(stream: Path) -> None:
    assert read_opening(stream) == (OPENING, PAGES[:3])


def test_a_stream_that_is_cut_is_none(stream: Path) -> None:
    content = stream.read_bytes()
    for length in [*range(200), *range(200, len(content) - len(REST), 61)]:
        with pytest.raises(UnknownStream):
            list(Reader(content[:length]).pages())


@pytest.mark.parametrize(
    ("find", "put"),
    [
        (b"QEVM\x00\x00\x00\x03", b"QEVM\x00\x00\x00\x04"),  # another version
        (b"\x03ram\x00\x00\x00\x00\x00\x00\x00\x04", b"\x03ram\x00\x00\x00\x00\x00\x00\x00\x05"),
        (b"\x7e\x00\x00\x00\x03\x03", b"\x7e\x00\x00\x00\x09\x03"),  # a footer of another section
        (b"\x00\x08\x14/rom", b"\x00\x48\x14/rom"),
        (b"\x00\x00\x00\x08\x14/rom", b"\x00\x02\x00\x08\x14/rom"),
        (b"\x08\x07pc.bios", b"\x08\x07pc.rom0"),
        (b"\x07pc.bios", b"\x07pc.b\xefos"),
    ],
    ids=["version", "of RAM", "footer", "record", "offset", "block", "name"],
)  # fmt: skip
def test_what_is_not_known_is_refused(stream: Path, find: bytes, put: bytes) -> None:
    content = stream.read_bytes()
    assert content.count(find) >= 1
    with pytest.raises(UnknownStream):
        list(Reader(content.replace(find, put, 1)).pages())


_COMMAND = b"\x08\x00\x0b\x00\x00"
"""MIG_CMD_SWITCHOVER_START, as of machine types of QEMU 10.0 and later."""


def _before_the_end(content: bytes, part: bytes) -> tuple[bytes, int]:
    """``content`` with ``part`` before the last section of RAM, and the offset of that."""
    at = content.index(b"\x03" + OPENING.section, len(HEAD) + 20)
    return content[:at] + part + content[at:], at


def test_the_command_before_the_end_of_ram_is_skipped(stream: Path) -> None:
    content, _ = _before_the_end(stream.read_bytes(), _COMMAND)
    reader = Reader(content)
    assert list(reader.pages()) == PAGES
    assert reader.rest == REST
    stream.write_bytes(content)
    assert read_opening(stream) == (OPENING, PAGES[:3])


@pytest.mark.parametrize(
    ("part", "named"),
    [
        (b"\x08\x00\x0c\x00\x02ab", "the command 12 with 2 bytes"),
        (b"\x08\x00\x0b\x00\x01a", "the command 11 with 1 bytes"),
        (b"\x07\x00\x00\x00\x02pc", "a part of the unknown kind 0x07"),
        (b"\x04\x00\x00\x00\x09\x05timer", "section 9, 'timer',"),
        (b"\x02\x00\x00\x01\x00", "section 256"),
    ],
    ids=["command", "longer", "kind", "device", "section"],
)
def test_an_unknown_part_is_refused_with_its_name_and_offset(
    stream: Path, part: bytes, named: str
) -> None:
    content, at = _before_the_end(stream.read_bytes(), part)
    reader = Reader(content)
    with pytest.raises(UnknownStream) as refused:
        list(reader.pages())
    assert str(refused.value) == f"the stream has {named} at offset {at}, within RAM"


@pytest.mark.parametrize(
    "blocks",
    [
        (),
        (Block("a", 0, 0), Block("b", PAGE, 0)),
        (Block("a", 3 * PAGE // 2, 0), Block("b", PAGE // 2, 0)),
        (Block("a", PAGE, 0), Block("a", PAGE, PAGE)),
        tuple(Block(f"block-{number}", PAGE, 0) for number in range(300)),
    ],
    ids=["none", "empty", "part of a page", "twice", "many"],
)
def test_blocks_that_no_guest_has_are_refused(tmp_path: Path, blocks: tuple[Block, ...]) -> None:
    with (tmp_path / "stream").open("wb", buffering=0) as file:
        Writer(file, Opening(HEAD, OPENING.section, blocks)).rest(REST)
    with pytest.raises(UnknownStream, match="blocks of RAM"):
        Reader((tmp_path / "stream").read_bytes())


def test_firmware_as_large_as_ram_is_refused(tmp_path: Path) -> None:
    """Protects memory: a few bytes of a stream are a page, and firmware's pages are kept."""
    blocks = (Block("labram", 1 << 30, 0), Block("pc.bios", 1 << 29, 1 << 30))
    with (tmp_path / "stream").open("wb", buffering=0) as file:
        Writer(file, Opening(HEAD, OPENING.section, blocks)).rest(REST)
    with pytest.raises(UnknownStream, match="firmware has more than"):
        read_opening(tmp_path / "stream")


def test_a_file_without_content_is_no_stream(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    with pytest.raises(UnknownStream):
        read_opening(tmp_path / "empty")


def test_the_state_of_devices_alone() -> None:
    sections, end = devices(b"QEVM\x00\x00\x00\x03" + REST)
    assert bytes(sections) == REST[:-1]
    assert end[:2] == b"\x00\x06"
    for wrong in (b"", b"QEVM\x00\x00\x00\x04" + REST, b"QEVM\x00\x00\x00\x03" + REST[:-1]):
        with pytest.raises(UnknownStream):
            devices(wrong)

"""Protects loads: a dump is split as the client splits it, and a broken one is reported."""

from __future__ import annotations

import gzip
import random
import re
import sys
import time
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lab.datasets.dump import DELIMITER_LIMIT, Packing, Statement, statements, unpacked
from lab.errors import InvalidSpec
from lab.run import run
from lab.units import MIB

zstandard = pytest.importorskip("zstandard", reason="needs the package zstandard")


def split(dump: str | bytes, size: int = 1 << 20) -> list[str]:
    return [one.text.decode() for one in parts(dump, size)]


def parts(dump: str | bytes, size: int = 1 << 20) -> list[Statement]:
    return list(statements(cut(dump.encode() if isinstance(dump, str) else dump, size)))


def cut(data: bytes, size: int) -> Iterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize(
    ("dump", "expected"),
    [
        ("", []),
        (" ;; \n;", []),
        ("a; b;", ["a", "b"]),
        ("a;\nb", ["a", "b"]),
        ("a ';' b; c", ["a ';' b", "c"]),
        (r"a '\';' b; c", [r"a '\';' b", "c"]),
        (r"a '\\'; c", [r"a '\\'", "c"]),
        (r"a '\\\';'; c", [r"a '\\\';'", "c"]),
        ("a 'it''s;'; c", ["a 'it''s;'", "c"]),
        ("a ''; c", ["a ''", "c"]),
        ('a ";\'"; c', ['a ";\'"', "c"]),
        (r'a "\";"; c', [r'a "\";"', "c"]),
        ('a ";"";"; c', ['a ";"";"', "c"]),
        ("a `;'``;`; c", ["a `;'``;`", "c"]),
        (r"a `\`; c", [r"a `\`", "c"]),
        ("-- it's; a comment\na; c", ["a", "c"]),
        ("--\na; --\nc", ["a", "c"]),
        ("a -- it's;\n b; c", ["a -- it's;\n b", "c"]),
        ("a --1; c", ["a --1", "c"]),
        ("a - -1; c", ["a - -1", "c"]),
        ("# it's;\na # it's;\n b; c", ["a # it's;\n b", "c"]),
        ("/* it's; */ a /* it's; */ b; c", ["a /* it's; */ b", "c"]),
        ("/**/a; /*/ ; */b", ["a", "b"]),
        ("a /* x **/; c", ["a /* x **/", "c"]),
        ("a 1/2; c", ["a 1/2", "c"]),
        ("/*!40101 SET x = ';' */; c", ["/*!40101 SET x = ';' */", "c"]),
        ("/*M!100100 SET x */; c", ["/*M!100100 SET x */", "c"]),
        ("/*!50003 a; b */; c", ["/*!50003 a", "b */", "c"]),
        ("/*M!999999\\- enable the sandbox mode */ \n-- x\na;", ["a"]),
        ("DELIMITER ;;\na; b ;;\nDELIMITER ;\nc; d;", ["a; b", "c", "d"]),
        ("delimiter //\r\na / b; /* // */ c//\r\ndelimiter ;\r\nd;", ["a / b; /* // */ c", "d"]),
        ("DELIMITER $$\na '$$' $$ b$$", ["a '$$'", "b"]),
        ("DELIMITER ;;\n/*!50003 a */ /* ;; */ b;; c", ["/*!50003 a */ /* ;; */ b", "c"]),
        ("/*!50003 CREATE*/ x; -- end", ["/*!50003 CREATE*/ x"]),
        ("-- end", []),
    ],
)
def test_statements_are_those_of_the_client(dump: str, expected: list[str], size: int) -> None:
    assert split(dump, size) == expected


def test_a_statement_has_its_number_and_its_offset() -> None:
    dump = b"-- a comment\n\nSET x;\nINSERT 'it''s;' ;;; DELIMITER ;;\na; b;; last"
    found = parts(dump, 5)
    assert [one.number for one in found] == [1, 2, 3, 4]
    for one in found:
        assert dump[one.offset :].startswith(one.text)
    assert [one.terminated for one in found] == [True, True, True, False]


TOKENS = [
    "'", '"', "`", "\\", ";", ";;", "//", "-", "--", "-- ", "#", "/*", "*/", "/*!", "/*M!", "\n",
    " ", "a", "1", "''", "\\'", "\\\\", "x" * 40, "DELIMITER //\n", "\nDELIMITER ;\n", "é",
]  # fmt: skip


@settings(max_examples=400, deadline=None, database=None)
@given(st.lists(st.sampled_from(TOKENS), max_size=40), st.integers(1, 50))
@example(["a", "'", "\\", "\\", "'", ";", "a"], 1)
def test_any_text_in_any_chunks_is_split_as_byte_by_byte(tokens: list[str], size: int) -> None:
    """The fast reader against the obvious one, wherever the chunks end."""
    dump = "".join(tokens)
    assert outcome(lambda: split(dump, size)) == outcome(lambda: plain(dump))


@settings(max_examples=200, deadline=None, database=None)
@given(st.lists(st.sampled_from(TOKENS), max_size=40), st.integers(1, 50), st.integers(0, 9))
def test_heads_are_those_of_the_same_statements(tokens: list[str], size: int, head: int) -> None:
    """Protects memory: what is not wanted of a statement is forgotten, and changes nothing."""
    dump = "".join(tokens).encode()

    def heads() -> object:
        return [
            (one.number, one.offset, one.text.rstrip(), one.terminated)
            for one in statements(cut(dump, size), head=head)
        ]

    def whole() -> object:
        return [
            (one.number, one.offset, one.text[:head].rstrip(), one.terminated)
            for one in statements(cut(dump, size))
        ]

    assert outcome(heads) == outcome(whole)


def outcome(run: object) -> object:
    try:
        return run()  # type: ignore[operator]
    except InvalidSpec as error:
        return "DELIMITER" if "DELIMITER" in error.what else "unterminated"


def plain(dump: str) -> list[str]:  # noqa: C901
    """The statements of ``dump``, one character at a time."""
    text, at, delimiter, begun, found = dump + "\n", 0, ";", -1, []
    while at < len(text):
        rest = text[at:]
        if begun < 0 and (command := re.match(r"(?i)delimiter[ \t]+([^\r\n]*)\r?\n", rest)):
            delimiter = command[1].split()[0] if command[1].split() else ""
            if not delimiter or "\\" in delimiter or len(delimiter.encode()) > DELIMITER_LIMIT:
                raise InvalidSpec("DELIMITER")
            delimiter, at = delimiter.strip("'\"`"), at + command.end()
            if not delimiter:
                raise InvalidSpec("DELIMITER")
        elif rest.startswith(delimiter):
            if begun >= 0:
                found.append(text[begun:at].rstrip())
            at, begun = at + len(delimiter), -1
        elif begun < 0 and text[at] in " \n":
            at += 1
        elif rest[0] == "#" or (rest[:2] == "--" and rest[2] <= " "):
            at = text.index("\n", at) + 1
        elif rest[:2] == "/*" and (
            not re.match(r"/\*M?!", rest) or (begun < 0 and rest.startswith("/*M!999999\\-"))
        ):
            end = text.find("*/", at + 2)
            if end < 0:
                raise InvalidSpec("ends")
            at = end + 2
        else:
            begun = at if begun < 0 else begun
            at = after(text, at)
    return [*found, text[begun:].rstrip()] if begun >= 0 and text[begun:].rstrip() else found


def after(text: str, at: int) -> int:
    """Where what begins at ``at`` ends: a string, or one character (a run of hyphens, ...)."""
    quote = text[at]
    if quote not in "'\"`":
        # As the client does, a backslash takes the next character along.
        return at + (2 if quote == "\\" and text[at + 1] in "'\\" else 1)
    at += 1
    while at < len(text):
        if text[at] == "\\" and quote != "`":
            at += 1
        elif text[at] == quote:
            return at + 1
        at += 1
    raise InvalidSpec("ends")


@pytest.mark.parametrize(
    ("dump", "inside"),
    [
        ("a; INSERT 'x", "a string"),
        ('a; INSERT "x', "a string"),
        ("a; INSERT `x", "an identifier"),
        ("a; INSERT /* x", "a comment"),
    ],
)
def test_a_dump_that_ends_within_a_string_is_truncated(dump: str, inside: str) -> None:
    with pytest.raises(InvalidSpec) as failure:
        split(dump)
    assert f"ends within {inside}" in failure.value.what
    assert "statement 2, which begins at byte 3" in failure.value.what


@pytest.mark.parametrize("size", [100, 1 << 20])
def test_a_statement_may_not_be_endless(size: int) -> None:
    """Memory is bounded: the reader gives up long before the data ends."""
    seen = 0

    def endless() -> Iterator[bytes]:
        nonlocal seen
        yield b"SET x;\nINSERT '"
        while seen < 64 * MIB:
            seen += size
            yield b"x" * size
        yield b"';"

    with pytest.raises(InvalidSpec) as failure:
        list(statements(endless(), "big.sql", limit=4 * MIB))
    assert "big.sql: statement 2, which begins at byte 7, is longer than 4M" in failure.value.what
    assert seen <= 8 * MIB


def test_a_long_statement_that_arrives_at_once_is_too_long() -> None:
    with pytest.raises(InvalidSpec, match="statement 2"):
        list(statements([b"a;" + b"x" * 2000 + b";"], limit=1000))


@pytest.mark.parametrize("dump", ["DELIMITER \n", "DELIMITER " + "x" * 16 + "\n", "DELIMITER \\\n"])
def test_a_delimiter_that_cannot_be(dump: str) -> None:
    with pytest.raises(InvalidSpec, match="byte 2: DELIMITER needs"):
        split("a;" + dump)


@pytest.mark.parametrize("command", ["source other.sql ;", "SOURCE other.sql", "\\. other.sql"])
def test_a_dump_reads_no_other_files(command: str) -> None:
    with pytest.raises(InvalidSpec, match="byte 3: a dump cannot read other files"):
        split(f"a;\n{command}\nb;")


def rows(count: int) -> bytes:
    random_ = random.Random(1)
    return b",".join(
        b"(%d,'anna.smith@example.com','it\\'s %s',NULL,'2020-01-01 00:00:00',3.5)"
        % (number, b"x" * random_.randint(5, 60))
        for number in range(count)
    )


@pytest.mark.parametrize("kind", ["plain", "json"])
def test_long_inserts_are_read_fast(kind: str) -> None:
    """An idle processor reads 200 MB/s and more; a busy one must still not be in the way."""
    values = rows(10_000)
    if kind == "json":
        values = values.replace(b"anna", b'{\\"a\\": 1, \\"b\\": \\"c;d\\"} --')
    line = b"INSERT INTO `t` VALUES " + values + b";\n"
    data = list(cut(line * 40, 1 << 20))
    size = len(line) * 40
    started = time.process_time()
    found = sum(1 for _ in statements(data))
    rate = size / (time.process_time() - started)
    assert found == 40
    assert rate > (25e6 if kind == "plain" else 8e6), f"{rate / 1e6:.0f} MB/s"


def pack(data: bytes, packing: Packing) -> bytes:
    if packing == "gz":
        return gzip.compress(data)
    return bytes(zstandard.ZstdCompressor().compress(data)) if packing == "zst" else data


DATA = random.Random(2).randbytes(300_000) + b"a" * 3_000_000
PACKINGS: list[Packing] = ["gz", "zst"]


@pytest.mark.parametrize("packing", [*PACKINGS, ""])
@pytest.mark.parametrize("size", [10, 1000, 1 << 20])
def test_data_is_decompressed(packing: Packing, size: int) -> None:
    """Also of several members, as pigz, pzstd and `cat` write."""
    packed = pack(DATA, packing) + pack(b"more", packing)
    assert b"".join(unpacked(cut(packed, size), packing, "x")) == DATA + b"more"


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("part", [0, 3, 1000, 299_000, -1])
def test_truncated_data_is_reported(packing: Packing, part: int) -> None:
    packed = pack(DATA, packing)[:part]
    with pytest.raises(InvalidSpec) as failure:
        drain(unpacked(cut(packed, 1000), packing, "dump.x"))
    assert "dump.x is truncated" in failure.value.what
    assert f"after byte {len(packed)} " in failure.value.what


@pytest.mark.parametrize("packing", PACKINGS)
def test_what_precedes_a_truncation_is_passed_on(packing: Packing) -> None:
    found = bytearray()
    part = pack(DATA, packing)[:200_000]
    with pytest.raises(InvalidSpec):
        drain(map(found.extend, unpacked([part], packing, "x")))
    assert len(found) > 60_000
    assert DATA.startswith(found)


@pytest.mark.parametrize("packing", PACKINGS)
def test_damaged_data_is_reported(packing: Packing) -> None:
    packed = bytearray(pack(DATA[:1000] + bytes(cut_words()), packing))
    packed[len(packed) // 2 : len(packed) // 2 + 16] = bytes(16)
    with pytest.raises(InvalidSpec) as failure:
        drain(unpacked(cut(bytes(packed), 1000), packing, "dump.x"))
    match = re.search(r"dump.x is damaged: .* at byte (\d+)", failure.value.what)
    assert match
    assert len(packed) // 3 < int(match[1]) <= len(packed)


def cut_words() -> bytes:
    """Text that compresses by half."""
    random_ = random.Random(3)
    return b" ".join(random_.choice([b"anna", b"bert", b"carl", b"dora"]) for _ in range(200_000))


@pytest.mark.parametrize("packing", PACKINGS)
def test_data_that_is_not_compressed_is_reported(packing: Packing) -> None:
    with pytest.raises(InvalidSpec, match=r"damaged: .* at byte 0"):
        drain(unpacked([b"CREATE TABLE t (a int);"], packing, "x"))


def test_trailing_zeros_and_a_wrong_checksum() -> None:
    packed = gzip.compress(b"abc")
    assert b"".join(unpacked([packed, b"\0" * 100], "gz", "x")) == b"abc"
    wrong = packed[:-8] + (zlib.crc32(b"xyz")).to_bytes(4, "little") + packed[-4:]
    with pytest.raises(InvalidSpec, match="damaged"):
        drain(unpacked([wrong], "gz", "x"))


def drain(data: Iterable[object]) -> None:
    for _ in data:
        pass


MISSING = """
import sys
sys.modules["zstandard"] = sys.modules["mimesis"] = None
from lab.datasets.dump import unpacked
from lab.datasets.mask import values
from lab.errors import HostUnfit
unpack = lambda: list(unpacked([b"x"], "zst", "x"))
for need in (unpack, lambda: values("name", "en", 1, b"x" * 16)):
    try:
        need()
    except HostUnfit as error:
        print(error.what)
"""


def test_a_missing_package_is_named() -> None:
    """Dumps that are not compressed by zstd, and data without masking, need neither."""
    lines = run([sys.executable, "-c", MISSING], timeout=60).stdout.splitlines()
    assert lines == [
        "a .zst file requires the Python package zstandard, which is not installed",
        "a rule that makes up values requires the Python package mimesis, which is not installed",
    ]


PEAK = """
import resource, sys
from lab.datasets.survey import survey
from lab.units import MIB
def dump():
    yield b"CREATE TABLE t (a LONGTEXT);INSERT INTO t VALUES ('"
    for _ in range(512):
        yield b"x" * MIB
    yield b"');SELECT 1"
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
found = survey(dump())
print(found.statements, found.tables, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_a_statement_costs_its_head() -> None:
    """Protects the memory of the service: 298 KiB of gzip are an INSERT of 900 MiB."""
    count, tables, peak = run([sys.executable, "-c", PEAK], timeout=120).stdout.split()
    assert (count, tables) == ("3", "1")
    assert int(peak) < 64 << 10, "in KiB"


@pytest.mark.parametrize(
    "unit",
    [
        "DELIMITER a\nb a\n", "DELIMITER a\n", "-- \n", "/**/", ";", "'';", "';'", "a-", "source ",
        "\\'", "`;`", "/*!", "a\n", " ",
    ],
)  # fmt: skip
def test_hostile_dumps_are_read_as_fast_as_they_are_long(unit: str) -> None:
    """Protects the service: 1 KB of gzip are a MiB of these."""
    began = time.process_time()
    with suppress(InvalidSpec):
        drain(statements([(unit * (MIB // len(unit))).encode()], head=64))
    assert time.process_time() - began < 10, "the slowest of them, a MiB of '';, took 4 s"

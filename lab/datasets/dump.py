r"""SQL dumps as streams: decompressed, and split into statements as the mysql client splits them.

What the client understands (client/mysql.cc, ``add_line``) and this does too: strings with
backslashes and doubled quotes, identifiers in backticks, comments (``-- ``, ``#``, ``/* */``),
executable comments (``/*! */``, ``/*M! */``), within which a delimiter ends a statement too, the
command ``DELIMITER``, and the line ``/*M!999999\- enable the sandbox mode */`` of newer
mariadb-dump. Not understood: dumps written under NO_BACKSLASH_ESCAPES, and commands of the
client with a backslash (``\G``).

Speed is that of ``bytes.find`` and ``bytes.count``: between two characters that can matter, only
quotes are counted. Dumps are hostile: whatever is in them is read in a time that grows as they do,
and a statement of which only the head is wanted costs no more than that. Bytes are those of the
decompressed stream wherever nothing else is said.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, BinaryIO, Literal

from lab.distribution import extra
from lab.errors import InvalidSpec
from lab.units import GIB, MIB, format_size
from lab.values import dataclass

STATEMENT_LIMIT = GIB
"""Bytes of one statement, at most: max_allowed_packet has no larger value."""
DELIMITER_LIMIT = 15
"""Bytes of a delimiter, at most; the client has the same limit."""

Packing = Literal["", "gz", "zst", "xz", "bz2", "zip"]
"""How a file is compressed; empty: it is not."""

_CHUNK = MIB
_XZ_MEMORY = 256 * MIB
"""Bytes of memory that xz needs for `-9` and more; a file may ask for 4 GiB."""
_HELD = DELIMITER_LIMIT + 1
"""Bytes at the end of what has arrived that may be the first part of something longer."""
_PIECE = 8 << 10
"""Compressed bytes given to zstd at once: they may become 16,000 times as many."""


@dataclass(frozen=True)
class Statement:
    """One statement of a dump, without its delimiter."""

    number: int
    """Counted from 1."""
    offset: int
    """Of its first byte, in the decompressed dump."""
    text: bytes
    """All of it, or its first bytes if ``statements`` was asked for heads."""
    terminated: bool = True
    """Whether a delimiter followed; the last one of a truncated dump has none."""


def chunks(stream: BinaryIO, size: int = _CHUNK) -> Iterator[bytes]:
    """What can be read of ``stream``, in chunks of at most ``size`` bytes."""
    while chunk := stream.read(size):
        yield chunk


def unpacked(data: Iterable[bytes], packing: Packing, name: str) -> Iterator[bytes]:
    """``data`` decompressed, in chunks of any size.

    ``name``: the file, for messages. Several members, frames or streams in one file are
    joined, as these programs do. Raises InvalidSpec, with the file and the offset in its
    compressed bytes, if it is truncated, damaged or not compressed so; HostUnfit if the
    package zstandard is missing.
    """
    if packing == "gz":
        return _gunzip(data, name)
    if packing == "zst":
        return _unzstd(data, name)
    if packing == "xz":
        import lzma

        new = partial(lzma.LZMADecompressor, lzma.FORMAT_XZ, _XZ_MEMORY)
        return _streams(data, name, "xz", new, (lzma.LZMAError, MemoryError))
    if packing == "bz2":
        import bz2

        return _streams(data, name, "bzip2", bz2.BZ2Decompressor, (OSError, MemoryError))
    return iter(data)


def _streams(
    data: Iterable[bytes],
    name: str,
    kind: str,
    new: Callable[[], Any],
    errors: tuple[type[Exception], ...],
) -> Iterator[bytes]:
    """Streams of xz or bzip2, one after the other."""
    offset, one = 0, None
    for chunk in data:
        rest = chunk
        while rest or (one is not None and not one.needs_input):
            if one is None:
                rest = rest.lstrip(b"\0") if offset else rest  # xz pads with zeros
                one = new() if rest else None
                continue
            try:
                found = one.decompress(rest, _CHUNK)
            except errors as error:
                raise _damaged(name, kind, offset, str(error)) from error
            yield found
            rest = b""
            if one.eof:
                rest, one = one.unused_data, None
        offset += len(chunk)
    if one is not None or not offset:
        raise _truncated(name, kind, offset)


def _gunzip(data: Iterable[bytes], name: str) -> Iterator[bytes]:
    offset = 0
    member: Any = None
    for chunk in data:
        rest = chunk
        while rest:
            if member is None:
                rest = rest.lstrip(b"\0") if offset else rest  # tapes are padded with zeros
                member = zlib.decompressobj(wbits=31) if rest else None
                continue
            try:
                found = member.decompress(rest, _CHUNK)
            except zlib.error as error:
                at = offset + len(chunk) - len(rest)
                raise _damaged(name, "gzip", at, str(error)) from error
            yield found
            rest = member.unconsumed_tail
            if member.eof:
                rest, member = member.unused_data, None
        offset += len(chunk)
    if member is not None:
        yield member.flush()  # what is left in the buffers of zlib comes before the message
    if member is not None or not offset:
        raise _truncated(name, "gzip", offset)


def _unzstd(data: Iterable[bytes], name: str) -> Iterator[bytes]:
    zstandard = _zstandard()
    reader = zstandard.ZstdDecompressor()
    offset, frame = 0, None
    for chunk in data:
        for start in range(0, len(chunk), _PIECE):
            rest = chunk[start : start + _PIECE]
            end = offset + len(rest)
            while rest:
                frame = frame or reader.decompressobj()
                try:
                    found = frame.decompress(rest)
                except zstandard.ZstdError as error:
                    raise _damaged(name, "zstd", end - len(rest), str(error)) from error
                rest = b""
                if frame.eof:
                    rest, frame = frame.unused_data, None
                if found:
                    yield found
            offset = end
    if frame is not None or not offset:
        raise _truncated(name, "zstd", offset)


def _zstandard() -> Any:
    with extra("datasets", "a .zst file"):
        import zstandard
    return zstandard


def _damaged(name: str, kind: str, offset: int, why: str) -> InvalidSpec:
    return InvalidSpec(
        f"{name} is damaged: it cannot be decompressed at byte {offset}",
        hint=f"copy the file again; `{kind} -t` checks it",
        details=[why],
    )


def _truncated(name: str, kind: str, offset: int) -> InvalidSpec:
    return InvalidSpec(
        f"{name} is truncated: its {kind} data ends after byte {offset} without an end mark",
        hint="copy the file again, or repeat the dump",
    )


def statements(
    data: Iterable[bytes],
    name: str = "the dump",
    *,
    limit: int = STATEMENT_LIMIT,
    head: int | None = None,
    ended: Callable[[bytes], object] = bool,
) -> Iterator[Statement]:
    """The statements of a dump, in order; empty ones and comments between them are left out.

    ``data``: the decompressed dump in chunks of any size. ``limit``: bytes of one statement,
    at most. ``head``: bytes of its text that are wanted; None: all. No more than what is wanted
    of one statement and some chunks are held in memory. ``ended`` is called at the end with the
    delimiter that is set then.

    Raises InvalidSpec, with the file, the statement's number and its offset, for a statement
    that is too long, a string, identifier or comment that does not end, and commands of the
    client that this cannot run.
    """
    splitter = _Splitter(name, limit, limit if head is None else head)
    for chunk in data:
        for start in range(0, len(chunk), _CHUNK):
            yield from splitter.feed(chunk[start : start + _CHUNK])
    yield from splitter.close()
    ended(splitter.delimiter)


_SINGLE = re.compile(rb"[^'\\]*(?:\\.[^'\\]*)*'", re.DOTALL)
_DOUBLE = re.compile(rb'[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_BACKTICK = re.compile(rb"[^`]*`")
_LINE = re.compile(rb"[^\n]*\n")
_BLOCK = re.compile(rb".*?\*/", re.DOTALL)

# Values whose strings are full of marks (JSON) are read a few hundred strings at a time. Nothing
# follows the repetition, so it is never tried with fewer.
_RUN = re.compile(
    rb"(?:[^'\"`;#/\\-]*'[^'\\]*(?:\\.[^'\\]*)*'|[^'\"`;#/\\-]+|-(?=[^-])|/(?=[^*])){1,400}",
    re.DOTALL,
)

_NAMES = {
    _DOUBLE: "a string",
    _BACKTICK: "an identifier in backticks",
    _LINE: "a comment",
    _BLOCK: "a comment",
}
_SANDBOX = b"/*M!999999\\-"
_SPACE = re.compile(rb"\s+")
_DELIMITER = b"delimiter"
_COMMAND = re.compile(rb"(?:(source)[ \t]+\S|\\(\.))", re.IGNORECASE)
_CLIENT = re.compile(rb"(?:delimiter[ \t]|source[ \t]|\\\.)", re.IGNORECASE)
_MORE = -1
"""In place of a position: it has not arrived yet."""
_INSIDE = -2
"""In place of a position: a string or comment comes first, whose end is looked for."""
_CLIENT_LINE = 4096
"""Bytes of a command of the client, at most: its line must have arrived."""
_CONTROL = frozenset(range(0x21))
"""What must follow ``--`` for a comment: a space or a control character."""


class _Splitter:
    """Splits what it is fed; ``at`` is the position up to which the buffer has been looked at.

    ``delimiter``: the one that is set. ``begun``: whether a statement begins at ``from``, and at
    the buffer's start after each call; if not, what lies between two statements is being skipped.
    ``odd``: whether ``at`` is within a string in single quotes. ``until``: the end of another
    string, or of a comment, that is being looked for. ``head``: the first bytes of the statement,
    once the buffer has these no more; ``gone``: how many bytes of it preceded the buffer.
    """

    def __init__(self, name: str, limit: int, wanted: int) -> None:
        self._name = name
        self._limit = limit
        self._wanted = wanted
        self._head: bytes | None = None
        self._gone = 0
        self._buffer = bytearray()
        self._base = 0  # the offset of the buffer's first byte
        self._at = 0
        self._from = 0
        self._begun = False
        self._odd = False
        self._until: re.Pattern[bytes] | None = None
        self._number = 0
        self._set_delimiter(b";")
        self._next: dict[bytes, int] = {}

    def feed(self, chunk: bytes) -> Iterator[Statement]:
        self._buffer += chunk
        yield from self._split(final=False)
        if self._gone + len(self._buffer) > self._limit + _CHUNK:
            self._check_length(self._gone + len(self._buffer) - _CHUNK, -self._gone)

    def close(self) -> Iterator[Statement]:
        """The rest, once nothing more follows."""
        self._buffer += b"\n"  # ends a comment, and a command of the client
        yield from self._split(final=True)
        inside = "a string" if self._odd else _NAMES[self._until] if self._until else ""
        if inside:
            number = self._number + 1
            raise InvalidSpec(
                f"{self._name} ends within {inside}, in statement {number},"
                f" which begins at byte {self._base - self._gone}",
                hint="the dump is truncated: copy the file again, or repeat the dump",
            )
        if self._begun:
            yield from self._made(len(self._buffer), terminated=False)

    def _set_delimiter(self, delimiter: bytes) -> None:
        self.delimiter = delimiter
        self._marks = tuple(dict.fromkeys([delimiter, b'"', b"`", b"#", b"--", b"/*"]))

    def _split(self, *, final: bool) -> Iterator[Statement]:
        self._from, self._next = 0, {}
        while not self._until or self._end_found():
            if not self._begun:
                step = self._begin(final=final)
                if step == _MORE:
                    break
                if step == _INSIDE:
                    continue
            end = self._scan(final=final)
            if end == _MORE:
                break
            if end == _INSIDE:
                continue
            yield from self._made(end)
            self._from = self._at = end + len(self.delimiter)
            self._begun = False
        self._drop()

    def _drop(self) -> None:
        """Forget what precedes the statement, and what of it is not wanted."""
        first = self._from
        if self._begun and self._at - self._from > self._wanted:
            if self._head is None:
                self._head = bytes(self._buffer[self._from : self._from + self._wanted])
            self._gone += self._at - self._from
            first = self._at
        del self._buffer[:first]
        self._base += first
        self._at -= first
        self._from = 0

    def _end_found(self) -> bool:
        """Whether the end of a string or comment has arrived; ``at`` is behind it then."""
        assert self._until is not None  # noqa: S101  # for the type checker
        found = self._until.match(self._buffer, self._at)
        self._at = found.end() if found else self._resumable()
        if found:
            self._until = None
        if not self._begun:
            self._from = self._at
        return bool(found)

    def _begin(self, *, final: bool) -> int:
        """Skip to the next statement; its position, or ``_MORE`` or ``_INSIDE`` a comment."""
        begins = self._skip(self._from, final=final)
        if begins is None:
            self._from = self._at
            return _MORE
        self._from = begins
        if self._until:
            return _INSIDE
        self._at = begins
        self._begun = True
        return begins

    def _made(self, end: int, *, terminated: bool = True) -> Iterator[Statement]:
        """The statement that ends at ``end``; none if it is empty."""
        begin, head = self._from, self._head
        if head is None:
            head = bytes(self._buffer[begin : min(end, begin + self._wanted + 1)]).rstrip()
        if head or self._gone:
            self._check_length(self._gone + end - begin, begin - self._gone)
            self._number += 1
            offset = self._base + begin - self._gone
            yield Statement(self._number, offset, head[: self._wanted], terminated)
        self._head, self._gone = None, 0

    def _check_length(self, length: int, at: int = 0) -> None:
        if length > self._limit:
            raise InvalidSpec(
                f"{self._name}: statement {self._number + 1}, which begins at byte"
                f" {self._base + at}, is longer than {format_size(self._limit)}",
                hint="dump with --extended-insert and --net-buffer-length=1M; a server takes no"
                " statement longer than 1G (max_allowed_packet)",
            )

    def _skip(self, at: int, *, final: bool) -> int | None:
        """Where the next statement begins; None, and ``at`` set, if that has not arrived yet.

        ``until`` is set if a comment begins before it whose end is being looked for.
        """
        buffer = self._buffer
        while True:
            if space := _SPACE.match(buffer, at):
                at = space.end()
            self._at = at
            left = len(buffer) - at
            if left == 0 or (left < _HELD and not final):
                return None
            if buffer.startswith(self.delimiter, at):
                at += len(self.delimiter)
            elif self._comment(at):
                return at
            elif _CLIENT.match(buffer, at):
                after = self._command(at, final=final)
                if after is None:
                    return None
                if after == at:
                    return at
                at = after
            else:
                return at

    def _comment(self, at: int) -> bool:
        """Whether a comment that is left out begins at ``at``; its end is looked for then."""
        buffer = self._buffer
        if buffer.startswith(b"#", at):
            self._until, self._at = _LINE, at + 1
        elif buffer.startswith(b"--", at) and buffer[at + 2] in _CONTROL:
            self._until, self._at = _LINE, at + 2
        elif buffer.startswith(_SANDBOX, at) or (
            buffer.startswith(b"/*", at) and not _executable(buffer, at)
        ):
            self._until, self._at = _BLOCK, at + 2
        else:
            return False
        return True

    def _command(self, at: int, *, final: bool) -> int | None:
        """The position after a command of the client; ``at`` if it is none, None: not yet here."""
        end = self._buffer.find(b"\n", at, at + _CLIENT_LINE)
        if end < 0:
            return at if final or len(self._buffer) - at >= _CLIENT_LINE else None
        where = f"{self._name}, byte {self._base + at}"
        line = bytes(self._buffer[at:end]).removesuffix(b"\r")
        if line[: len(_DELIMITER)].lower() == _DELIMITER and b"\r" not in line:
            words = line[len(_DELIMITER) :].split(maxsplit=1)
            delimiter = words[0].strip(b"'\"`") if words else b""
            if not 1 <= len(delimiter) <= DELIMITER_LIMIT or b"\\" in delimiter:
                raise InvalidSpec(
                    f"{where}: DELIMITER needs 1 to {DELIMITER_LIMIT} characters without a"
                    " backslash",
                    hint="such as DELIMITER ;;",
                )
            self._set_delimiter(delimiter)
            return end + 1
        if _COMMAND.match(self._buffer, at):
            raise InvalidSpec(
                f"{where}: a dump cannot read other files with `source`",
                hint="join the files, each in the place where it is read",
            )
        return at

    def _scan(self, *, final: bool) -> int:
        """Where the delimiter of the statement is, or ``_MORE`` or ``_INSIDE``.

        Between two marks only quotes matter. A mark that an odd number of quotes precedes is
        within a string, whose end is then looked for.
        """
        buffer = self._buffer
        stop = len(buffer) if final else len(buffer) - _HELD
        while self._at < stop:
            hit = self._mark(stop)
            self._odd ^= bool(hit < stop and _quotes(buffer, self._at, hit) & 1)
            if hit == stop:
                self._rest(stop)
                break
            self._at = hit
            if self._odd:
                if not self._string(stop):
                    break
            elif buffer.startswith(self.delimiter, hit):
                return hit
            elif self._opens(hit):
                return _INSIDE
        return _MORE

    def _mark(self, stop: int) -> int:
        """The position of the next mark; ``stop`` if there is none before."""
        found = stop
        for mark in self._marks:
            at = self._next.get(mark, -1)
            if at < self._at:
                at = self._next[mark] = _find(self._buffer, mark, self._at)
            found = min(found, at)
        return found

    def _string(self, stop: int) -> bool:
        """Move behind the string that ``at`` is within; if its end is not here, to ``stop``."""
        found = _SINGLE.match(self._buffer, self._at)
        if found is None:
            self._rest(stop)
            return False
        self._at, self._odd = found.end(), False
        if self.delimiter == b";" and (run := _RUN.match(self._buffer, self._at)):
            self._at = run.end()
        return True

    def _rest(self, stop: int) -> None:
        """Nothing but quotes matters up to ``stop``; an escape is not cut in two."""
        start = stop
        while start > self._at and self._buffer[start - 1] == 0x5C:
            start -= 1
        if (stop - start) & 1:
            stop -= 1
        self._odd ^= bool(_quotes(self._buffer, self._at, stop) & 1)
        self._at = stop

    def _opens(self, at: int) -> bool:
        """Whether a string, identifier or comment begins here; its end is looked for then."""
        sign = self._buffer[at]
        if sign == 0x22:
            self._until, self._at = _DOUBLE, at + 1
        elif sign == 0x60:
            self._until, self._at = _BACKTICK, at + 1
        elif self._comment(at):
            pass
        else:
            # A minus twice, or an executable comment, whose content is code.
            self._at = at + 1 if sign == 0x2D else at + 2
            return False
        return True

    def _resumable(self) -> int:
        """From where an end that has not arrived is looked for next time."""
        end = len(self._buffer)
        if self._until is _BLOCK:
            return max(self._at, end - 1)
        if self._until is _DOUBLE:
            start = end
            while start > self._at and self._buffer[start - 1] == 0x5C:
                start -= 1
            return end - ((end - start) & 1)
        return end


def _find(buffer: bytearray, mark: bytes, at: int) -> int:
    found = buffer.find(mark, at)
    return found if found >= 0 else len(buffer)


def _executable(buffer: bytearray, at: int) -> bool:
    return buffer.startswith((b"/*!", b"/*M!"), at)


def _quotes(buffer: bytearray, start: int, end: int) -> int:
    """Single quotes from ``start`` to ``end`` that no backslash escapes."""
    quotes = buffer.count(b"'", start, end)
    if not quotes or buffer.find(b"\\", start, end) < 0:
        return quotes
    if buffer.find(b"\\\\", start, end) < 0:
        return quotes - buffer.count(b"\\'", start, end)
    clear = buffer[start:end].replace(b"\\\\", b"")
    return clear.count(b"'") - clear.count(b"\\'")

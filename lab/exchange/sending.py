"""Writing an archive: the parts that are wanted, from the chunks that are."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing

from lab.exchange import header as headers
from lab.exchange.arrival import Record, Tally
from lab.exchange.content import Chunks
from lab.exchange.frames import FrameWriter, data_digest
from lab.exchange.header import Header, Part
from lab.progress import Progress
from lab.units import format_size
from lab.values import dataclass

Wanted = Mapping[str, int]
"""The first chunk that is wanted, by the name of its part; other parts are not wanted."""

END = struct.Struct(">QQ32s")
"""What the frame at the end of a part says: how many chunks, bytes, and the tally's digest."""


@dataclass(frozen=True)
class Outgoing:
    """A part, and what gives its chunks from the first on."""

    part: Part
    chunks: Callable[[], Chunks]


def begin(writer: FrameWriter, header: Header) -> None:
    """Write the header."""
    writer.put(b"H", headers.encode(header))
    writer.flush()


def send(
    writer: FrameWriter, parts: Sequence[Outgoing], wanted: Wanted, progress: Progress
) -> None:
    """Write all that is wanted of ``parts``, and the end of the archive."""
    going = [outgoing for outgoing in parts if outgoing.part.name in wanted]
    plan = {outgoing.part.name: wanted[outgoing.part.name] for outgoing in going}
    writer.put(b"W", json.dumps(plan).encode())
    for number, outgoing in enumerate(going, 1):
        name, data = outgoing.part.name, outgoing.part.data
        text = f"{name}, {format_size(data)} (part {number} of {len(going)})"
        with progress.step("send", f"sending {text}"):
            _send_part(writer, outgoing, plan[name])
    writer.put(b"Z", b"")
    writer.flush()


def _send_part(writer: FrameWriter, outgoing: Outgoing, first: int) -> None:
    tally, count = Tally(), 0
    with closing(outgoing.chunks()) as chunks:
        for offset, data in chunks:
            digest = data_digest(offset, data)
            tally.add(Record(offset, len(data), digest))
            if count >= first:
                writer.put_data(offset, data, digest)
            count += 1
    size = outgoing.part.size or tally.end
    writer.put(b"E", END.pack(count, size, tally.digest()))

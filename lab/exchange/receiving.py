"""Reading an archive into a stage; nothing of it is used before all of it is there."""

from __future__ import annotations

import json
from collections.abc import Collection

from lab.errors import InvalidSpec
from lab.exchange import trust
from lab.exchange.arrival import Arrival
from lab.exchange.frames import FrameReader
from lab.exchange.header import Header
from lab.exchange.sending import END, Wanted
from lab.exchange.stage import Stage
from lab.progress import Progress
from lab.units import format_size


def begin(reader: FrameReader) -> Header:
    """The header, checked; raises InvalidSpec."""
    return trust.decode(reader.expect(b"H"), reader.version)


def missing(stage: Stage, header: Header, names: Collection[str]) -> dict[str, int]:
    """What is still wanted of the parts ``names``: for each the first chunk that is not here."""
    found = {}
    for part in header.parts:
        if part.name in names:
            with stage.open(part) as arrival:
                found[part.name] = arrival.chunks
    return found


def check_space(stage: Stage, header: Header, names: Collection[str]) -> None:
    """Raise HostUnfit, with figures, unless the parts ``names`` fit on the stage."""
    here = 0
    for name in names:
        path = stage.path(name)
        here += path.stat().st_blocks * 512 if path.exists() else 0
    size = sum(part.data for part in header.parts if part.name in names)
    stage.need(max(0, size - here))


def receive(
    reader: FrameReader, stage: Stage, header: Header, names: Collection[str], progress: Progress
) -> None:
    """Read the rest of the archive; the parts ``names`` are on the stage then, all others not.

    Raises InvalidSpec for whatever is damaged, missing or out of place.
    """
    reader.where = "the list of its parts"
    plan = _plan(reader, header)
    for number, part in enumerate((p for p in header.parts if p.name in plan), 1):
        reader.where = f"{part.name} (part {number} of {len(plan)})"
        if part.name in names:
            text = f"{part.name}, {format_size(part.data)} (part {number} of {len(plan)})"
            with progress.step("receive", f"receiving {text}"), stage.open(part) as arrival:
                _receive_part(reader, stage, arrival, plan[part.name])
        else:
            _skip_part(reader)
    reader.where = "its end"
    reader.expect(b"Z")
    reader.close()
    for name in names:
        if name not in plan:
            raise InvalidSpec(f"the archive does not contain {name}", hint="export it again")


def _plan(reader: FrameReader, header: Header) -> Wanted:
    try:
        plan = json.loads(reader.expect(b"W"))
        known = [part.name for part in header.parts]
        if list(plan) == [n for n in known if n in plan] and all(
            type(first) is int and first >= 0 for first in plan.values()
        ):
            return dict(plan)
    except (ValueError, TypeError, AttributeError, RecursionError):
        pass
    raise reader.damaged("the list of its parts is invalid")


def _receive_part(reader: FrameReader, stage: Stage, arrival: Arrival, first: int) -> None:
    if first > arrival.chunks:
        raise InvalidSpec(
            f"the archive continues at chunk {first} of {reader.where}; {arrival.chunks} are here",
            hint="export it again, as a whole",
        )
    number = first
    while True:
        kind, payload, digest = reader.get()
        if kind == b"E" and len(payload) == END.size:
            arrival.finish(*END.unpack(payload))
            return
        if kind != b"D":
            raise reader.damaged("its structure is broken")
        offset, data = reader.split(payload)
        arrival.put(number, offset, data, digest)
        stage.took(len(data))
        number += 1


def _skip_part(reader: FrameReader) -> None:
    while True:
        kind, _, _ = reader.get()
        if kind == b"E":
            return
        if kind != b"D":
            raise reader.damaged("its structure is broken")

"""Copies the RAM and device state of a paused guest that is resumed afterwards.

If QEMU's memory can be read, only the pages are copied that differ from the RAM file which the
guest was restored from. Otherwise, and for a guest that was booted, QEMU writes all RAM as a
migration stream, which is reduced to these pages once the guest is resumed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from io import FileIO
from pathlib import Path

from lab.errors import HostUnfit
from lab.hypervisor import MemoryImage
from lab.hypervisor.libvirt import device_state
from lab.hypervisor.libvirt.device_state import Monitor
from lab.hypervisor.libvirt.pages import Mapping, Unreadable, process_of
from lab.hypervisor.libvirt.stream import (
    PAGE,
    Page,
    Reader,
    UnknownStream,
    Writer,
    devices,
    mapped,
    own_block,
    read_opening,
)
from lab.paths import sync, unwritable, writing

Finish = Callable[[], MemoryImage]
"""Completes a copy after the guest was resumed; raises HostUnfit."""

RAM_BLOCK = "labram"
"""QEMU's name for the RAM block of a restored guest: the id of its memory backend."""


def copy(
    monitor: Monitor,
    uuid: str,
    sockets: Path,
    owner: tuple[int, int] | None,
    origin: MemoryImage | None,
    new: MemoryImage,
) -> Finish:
    """Copy a paused guest's memory to the new files of ``new``; ``uuid``: the domain's.

    ``origin``: what the guest was restored from, None if it was booted. With it there is no new
    RAM file: the state holds the pages that differ from the origin's. ``sockets``, ``owner``: see
    ``device_state.save``. Raises HostUnfit; no file is left then.
    """
    try:
        if origin is not None:
            try:
                _copy_changed(monitor, uuid, sockets, owner, origin, new.state)
            except (Unreadable, UnknownStream, device_state.Refused):
                new.state.unlink(missing_ok=True)
            else:
                return lambda: _synced(replace(new, ram=origin.ram))
        stream = new.state.with_suffix(".stream")
        device_state.save(monitor, sockets, stream, owner, private=new.size)
        return lambda: _settle(stream, origin, new)
    except BaseException:
        new.state.unlink(missing_ok=True)
        raise


def _copy_changed(
    monitor: Monitor,
    uuid: str,
    sockets: Path,
    owner: tuple[int, int] | None,
    origin: MemoryImage,
    state: Path,
) -> None:
    opening, firmware = read_opening(origin.state)
    mapping = Mapping(process_of(uuid), origin.ram, origin.size)
    try:
        saved = devices(device_state.save_devices(monitor, sockets, owner))
        with writing(state), _create(state) as file:
            writer = Writer(file, opening)
            writer.pages(firmware)
            writer.pages(mapping.pages(own_block(opening).name, mapping.changed()))
            writer.rest(*saved)
    finally:
        mapping.close()


def _settle(stream: Path, origin: MemoryImage | None, new: MemoryImage) -> MemoryImage:
    """Reduce a migration stream to what ``_copy_changed`` writes, or extract a RAM file."""
    ram = origin.ram if origin else new.ram
    try:
        with (
            writing(new.state),
            stream.open("rb") as file,
            mapped(file) as data,
            _create(new.state) as out,
            origin.ram.open("rb", 0) if origin else _create(ram) as memory,
        ):
            reader = Reader(data)
            own = own_block(reader.opening)
            if own.size != new.size:
                raise UnknownStream(f"the stream has {own.size} bytes of RAM, not {new.size}")
            blocks = tuple(
                replace(block, name=RAM_BLOCK) if block == own else block
                for block in reader.opening.blocks
            )
            writer = Writer(out, replace(reader.opening, blocks=blocks))
            keep = _differing if origin else _filling
            if not origin:
                os.truncate(memory.fileno(), new.size)
            writer.pages(keep(reader.pages(), own.name, memory.fileno()))
            writer.rest(reader.rest)
        return _synced(replace(new, ram=ram))
    except UnknownStream as error:
        raise HostUnfit("the memory of the guest was not saved", details=[str(error)]) from None
    finally:
        stream.unlink(missing_ok=True)


def _differing(pages: Iterator[Page], own: str, ram: int) -> Iterator[Page]:
    """``pages`` without those of the guest's RAM that equal the file ``ram``."""
    zeros = bytes(PAGE)
    for page in pages:
        if page.block != own:
            yield page
        elif os.pread(ram, PAGE, page.offset) != (zeros if page.data is None else page.data):
            yield replace(page, block=RAM_BLOCK)


def _filling(pages: Iterator[Page], own: str, ram: int) -> Iterator[Page]:
    """``pages`` without those of the guest's RAM, which are written to the file ``ram``."""
    for page in pages:
        if page.block != own:
            yield page
        elif page.data is not None:
            os.pwrite(ram, page.data, page.offset)


def _create(path: Path) -> FileIO:
    return FileIO(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), "wb")


def _synced(image: MemoryImage) -> MemoryImage:
    try:
        sync(image.state, image.ram)
    except OSError as error:
        raise unwritable(image.state, error) from error
    return image

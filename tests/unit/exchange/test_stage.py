"""Protects transfers that are cut off: what was good is kept, and nothing else is believed."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lab.errors import Conflict, HostUnfit, InvalidSpec
from lab.exchange import receiving, sending
from lab.exchange.content import GRAIN
from lab.exchange.frames import LIMIT, FrameReader, FrameWriter, data_digest
from lab.exchange.header import Part
from lab.exchange.stage import KEPT, remove_abandoned, stage
from lab.progress import Progress
from tests.support.exchange_archives import (
    CONTENT,
    IMAGE_PARTS,
    SIZE,
    archive,
    expected,
    image_header,
    outgoing,
    receive,
    received,
)

NAMES = list(CONTENT)


def cut(stream: bytes, parent: Path, at: int) -> None:
    """A transfer that ends there, to be resumed."""
    with pytest.raises(InvalidSpec, match="too early"):
        received(stream[:at], parent, keep=True)


def resume(parent: Path) -> tuple[dict[str, bytes], dict[str, int], int]:
    """Ask for what is missing and get it: the files, what was asked for, bytes of the transfer."""
    header = image_header()
    with stage(parent, header, keep=True, floor=0) as there:
        wanted = receiving.missing(there, header, NAMES)
        stream = archive(wanted)
        reader = FrameReader(io.BytesIO(stream))
        receiving.begin(reader)
        receiving.receive(reader, there, header, NAMES, Progress())
        return {name: there.path(name).read_bytes() for name in NAMES}, wanted, len(stream)


@pytest.mark.parametrize("part", range(1, 12))
def test_a_transfer_resumes_where_it_was_cut(tmp_path: Path, part: int) -> None:
    stream = archive()
    cut(stream, tmp_path, len(stream) * part // 12)
    found, wanted, size = resume(tmp_path)
    assert found == expected()
    assert size <= len(stream) - 32 * sum(wanted.values())
    assert list(tmp_path.iterdir()) == []


def test_what_is_complete_is_not_sent_again(tmp_path: Path) -> None:
    stream = archive()
    cut(stream, tmp_path, len(stream) - 1)
    found, wanted, size = resume(tmp_path)
    assert found == expected()
    assert wanted == {name: len(chunks) for name, chunks in CONTENT.items()}
    assert size < 3000 < len(stream)


def test_the_whole_archive_may_come_again(tmp_path: Path) -> None:
    """Protects pipes and files, which cannot be asked to begin in the middle."""
    stream = archive()
    cut(stream, tmp_path, len(stream) // 2)
    assert received(stream, tmp_path, keep=True) == expected()


def test_without_resume_nothing_is_kept_or_used(tmp_path: Path) -> None:
    stream = archive()
    cut(stream, tmp_path, len(stream) // 2)
    assert list(tmp_path.iterdir())
    with pytest.raises(InvalidSpec):
        received(stream[: len(stream) // 2], tmp_path)
    assert list(tmp_path.iterdir()) == []


def _stage_path(parent: Path) -> Path:
    (directory,) = parent.iterdir()
    return directory


def _lose_data(directory: Path) -> None:
    """As after a power loss: the index was written, the data was not."""
    with (directory / "000").open("r+b") as file:
        file.seek(16384)
        file.write(bytes(100))


def _tear_index(directory: Path) -> None:
    path = directory / "000.index"
    os.truncate(path, path.stat().st_size - 7)


def _flip_index(directory: Path) -> None:
    path = directory / "000.index"
    path.write_bytes(b"\xff" + path.read_bytes()[1:])


def _lose_file(directory: Path) -> None:
    (directory / "000").unlink()


def _stale_data(directory: Path) -> None:
    """A chunk that was written, but not noted: it must not stay where a hole belongs."""
    path = directory / "000.index"
    os.truncate(path, 44)
    with (directory / "000").open("r+b") as file:
        file.seek(SIZE // 2)
        file.write(b"stale")


@pytest.mark.parametrize("damage", [_lose_data, _tear_index, _flip_index, _lose_file, _stale_data])
def test_what_is_kept_is_verified(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    stream = archive()
    cut(stream, tmp_path, len(stream) - 100)
    damage(_stage_path(tmp_path))
    found, wanted, _ = resume(tmp_path)
    assert wanted["image/os"] < len(CONTENT["image/os"])
    assert found == expected()


def test_another_archive_of_the_same_key_starts_from_the_beginning(tmp_path: Path) -> None:
    """Protects against a mixture of two builds of one image."""
    stream = archive()
    cut(stream, tmp_path, len(stream) - 100)
    header = image_header()
    other = replace(header, image=replace(header.image, uid=7))
    with stage(tmp_path, other, keep=True, floor=0) as there:
        assert receiving.missing(there, other, NAMES) == dict.fromkeys(NAMES, 0)


def test_a_source_that_changed_is_noticed_at_the_end_of_the_part(tmp_path: Path) -> None:
    stream = archive()
    cut(stream, tmp_path, len(stream) * 2 // 3)
    header = image_header()
    content = {**CONTENT, "image/os": [(0, b"z" * 16384), *CONTENT["image/os"][1:]]}
    to = io.BytesIO()
    writer = FrameWriter(to)
    sending.begin(writer, header)
    sending.send(writer, outgoing(header, content), dict.fromkeys(NAMES, 1), Progress())
    with pytest.raises(InvalidSpec, match="differs from the data of an earlier transfer"):
        received(to.getvalue(), tmp_path, keep=True)
    found, wanted, _ = resume(tmp_path)
    assert wanted["image/os"] == 0
    assert found == expected()


def test_a_transfer_that_resumes_what_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec, match="continues at chunk 2"):
        received(archive({"image/os": 2}), tmp_path)
    with pytest.raises(InvalidSpec, match="does not contain image/kernel"):
        received(archive({"image/os": 0}), tmp_path)


@pytest.mark.parametrize(
    ("number", "offset", "size"),
    [(1, 0, 5), (0, SIZE - 1, 2), (0, SIZE, 1), (0, 1 << 63, 1), (0, 0, (1 << 20) + 1)],
)
def test_a_chunk_out_of_place(tmp_path: Path, number: int, offset: int, size: int) -> None:
    """Protects the disk: no chunk makes a file larger than its header says."""
    with stage(tmp_path, image_header(), keep=False, floor=0) as there:
        with there.open(IMAGE_PARTS[0]) as arrival, pytest.raises(InvalidSpec, match="of place"):
            arrival.put(number, offset, bytes(size), data_digest(offset, bytes(size)))
        assert there.path("image/os").stat().st_size == SIZE


def test_chunks_that_overlap(tmp_path: Path) -> None:
    with (
        stage(tmp_path, image_header(), keep=False, floor=0) as there,
        there.open(IMAGE_PARTS[0]) as arrival,
    ):
        data = bytes(2 * GRAIN)
        arrival.put(0, 0, data, data_digest(0, data))
        with pytest.raises(InvalidSpec, match="out of place"):
            arrival.put(1, GRAIN, data, data_digest(GRAIN, data))


@pytest.mark.parametrize(
    ("offset", "size"), [(0, 1), (0, GRAIN + 1), (1, GRAIN), (GRAIN // 2, GRAIN)]
)
def test_chunks_are_whole_grains(tmp_path: Path, offset: int, size: int) -> None:
    """Protects memory and disk: each chunk takes a record and whole blocks, however small it is."""
    with (
        stage(tmp_path, image_header(), keep=False, floor=0) as there,
        there.open(IMAGE_PARTS[0]) as arrival,
        pytest.raises(InvalidSpec, match="out of place"),
    ):
        arrival.put(0, offset, bytes(size), data_digest(offset, bytes(size)))


def test_only_the_last_piece_of_a_stream_is_short(tmp_path: Path) -> None:
    with (
        stage(tmp_path, image_header(), keep=False, floor=0) as there,
        there.open(Part("image/os", "stream", 0, 3)) as arrival,
    ):
        arrival.put(0, 0, bytes(LIMIT), data_digest(0, bytes(LIMIT)))
        arrival.put(1, LIMIT, b"ab", data_digest(LIMIT, b"ab"))
        with pytest.raises(InvalidSpec, match="out of place"):
            arrival.put(2, LIMIT + 2, b"cd", data_digest(LIMIT + 2, b"cd"))


def test_a_part_that_no_file_can_hold(tmp_path: Path) -> None:
    """Protects from an error without words: file systems limit the size of a file."""
    part = Part("image/os", "sparse", (1 << 63) - 1, 3)
    with stage(tmp_path, image_header(), keep=False, floor=0) as there:
        try:
            (tmp_path / "probe").touch()
            os.truncate(tmp_path / "probe", part.size)
        except OSError:
            with pytest.raises(HostUnfit, match="cannot be written: File too large"):
                there.open(part)
        else:
            pytest.skip("files can be that large here")


def test_a_stream_has_no_holes(tmp_path: Path) -> None:
    with (
        stage(tmp_path, image_header(), keep=False, floor=0) as there,
        there.open(Part("image/os", "stream", 0, 3)) as arrival,
    ):
        arrival.put(0, 0, b"ab", data_digest(0, b"ab"))
        with pytest.raises(InvalidSpec, match="out of place"):
            arrival.put(1, 3, b"cd", data_digest(3, b"cd"))


def test_space_is_looked_at_with_figures(tmp_path: Path) -> None:
    """Protects running guests, whose disks are on the same file system."""
    header = image_header()
    huge = [replace(part, data=1 << 60) for part in header.parts]
    with stage(tmp_path, header, keep=False, floor=0) as there:
        receiving.check_space(there, header, NAMES)
        with pytest.raises(HostUnfit, match=r"T needed, .* free"):
            receiving.check_space(there, replace(header, parts=huge), NAMES)
    with stage(tmp_path, header, keep=False, floor=1 << 60) as there:
        with pytest.raises(HostUnfit, match="needed"):
            receiving.check_space(there, header, NAMES)
        with pytest.raises(HostUnfit, match="needed"):
            there.took(1 << 30)


def test_one_archive_is_received_once_at_a_time(tmp_path: Path) -> None:
    first = receive(archive(), tmp_path)
    next(first)
    with pytest.raises(Conflict, match="another process is importing"):
        received(archive(), tmp_path)
    assert remove_abandoned(tmp_path) == ([], [])
    assert list(first) == []


def test_what_a_killed_process_left_goes_sooner_or_later(tmp_path: Path) -> None:
    def killed(*, keep: bool) -> None:
        child = os.fork()
        if not child:
            transfer = receive(archive(), tmp_path, keep=keep)
            next(transfer)
            os._exit(0)
        os.waitpid(child, 0)

    killed(keep=False)
    removed, left = remove_abandoned(tmp_path)
    assert (len(removed), left) == (1, [])
    killed(keep=True)
    removed, left = remove_abandoned(tmp_path)
    assert (removed, len(left)) == ([], 1)
    assert "--resume" in left[0]
    later = _stage_path(tmp_path).stat().st_mtime + KEPT + 60
    removed, left = remove_abandoned(tmp_path, later)
    assert (len(removed), left) == (1, [])
    assert list(tmp_path.iterdir()) == []

"""The qcow2 driver keeps the contract, and QEMU's own tools agree with its files."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lab.errors import CommandFailed, Conflict, HostUnfit, LabError
from lab.names import VolumeName
from lab.run import run
from lab.storage import Space, Storage, Volume, batch
from lab.storage.qcow2 import Qcow2Storage
from lab.storage.volume_directory import SnapshotRecord
from lab.units import GIB
from tests.contract.storage_contract import SMALL_ROOM, Place, StorageContract
from tests.contract.storage_place import MIB, SIZE, labels, names, origin, vol

pytestmark = pytest.mark.skipif(
    not (shutil.which("qemu-img") and shutil.which("qemu-io")), reason="needs qemu-utils"
)
OWNER = (12345, 23456) if os.geteuid() == 0 else None


def open_qcow2(root: Path, home: str) -> Storage:
    return Qcow2Storage(root, home, OWNER)


def put(volume: Volume, offset: int, data: bytes) -> None:
    """Write through QEMU, from a file: patterns of one byte would hide misplaced data."""
    # qemu-io writes whole sectors: keep what is around in the first and the last
    before = offset % 512
    after = -(offset + len(data)) % 512
    head = get(volume, offset - before, before) if before else b""
    tail = get(volume, offset + len(data), after) if after else b""
    with tempfile.NamedTemporaryFile() as source:
        source.write(head + data + tail)
        source.flush()
        length = before + len(data) + after
        qemu_io(volume, f"write -q -s {source.name} {offset - before} {length}")


def get(volume: Volume, offset: int, length: int) -> bytes:
    start = offset // 512 * 512
    whole = -(-(offset + length - start) // 512) * 512
    dump = qemu_io(volume, f"read -v {start} {whole}")
    found = b"".join(
        bytes.fromhex(line.split(":  ", 1)[1][:48])
        for line in dump.splitlines()
        if re.match(r"[0-9a-f]{8,}:  ", line)
    )
    return found[offset - start : offset - start + length]


def qemu_io(volume: Volume, command: str) -> str:
    return run(["qemu-io", "-f", "qcow2", "-c", command, volume.path], timeout=60).stdout


class Small(Qcow2Storage):
    """As if only ``free`` bytes of its file system were free."""

    def __init__(self, free: int, *more: Any, **options: Any) -> None:
        super().__init__(*more, **options)
        self._free = free

    def space(self) -> Space:
        return Space(self._free, 1 << 40)


class TestQcow2(StorageContract):
    @pytest.fixture
    def place(self, tmp_path: Path) -> Place:
        return Place(partial(open_qcow2, tmp_path / "volumes"), put, get)

    @pytest.fixture
    def small_place(self, tmp_path: Path) -> Iterator[Place]:
        mounted = tmp_path / "small"
        mounted.mkdir()
        options = f"size={SMALL_ROOM},mode=0755"
        try:
            run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", mounted], timeout=10)
        except LabError as error:
            pytest.skip(f"cannot mount a small file system: {error}")
        yield Place(partial(open_qcow2, mounted / "volumes"), put, get)
        run(["umount", mounted], timeout=10)

    @pytest.mark.parametrize("verb", ["create", "clone", "rollback"])
    def test_not_a_byte_left(self, small_place: Place, verb: str) -> None:
        storage = small_place.open("home")
        formed = origin(small_place, storage)
        filler = storage.get(formed.volume).path.parents[5] / "filler"
        fill_up(filler)
        verbs: dict[str, Callable[[], object]] = {
            "create": lambda: storage.create(vol("a"), SIZE, {}),
            "clone": lambda: storage.clone(formed, vol("a"), {}),
            "rollback": lambda: storage.rollback(formed.volume, "formed"),
        }
        with pytest.raises(HostUnfit, match="0B free"):
            verbs[verb]()
        filler.unlink()
        assert names(storage) == [str(formed.volume)]
        assert storage.sweep() == []
        assert small_place.get(storage.get(formed.volume), 0, 6) == b"origin"

    def test_another_backing_file_is_never_frozen(
        self, place: Place, storage: Storage, tmp_path: Path
    ) -> None:
        """Protects root's files from a QEMU that lets its disk lead to them, to be exported."""
        clone = storage.clone(origin(place, storage), vol("a"), {})
        secret = tmp_path / "secret"
        secret.write_bytes(b"secret" * 1000)
        storage.snapshot([clone.name], "before")
        run(["qemu-img", "rebase", "-u", "-F", "raw", "-b", secret, clone.path], timeout=30)
        with pytest.raises(Conflict, match="backing file"):
            storage.snapshot([clone.name], "x")
        run(["qemu-img", "rebase", "-u", "-b", "", clone.path], timeout=30)
        with pytest.raises(Conflict, match="backing file"):
            storage.snapshot([clone.name], "x")
        content = bytearray(storage.get(clone.name).path.read_bytes())
        content[79] |= 4  # an external data file
        clone.path.write_bytes(content)
        with pytest.raises(Conflict, match="does not write"):
            storage.snapshot([clone.name], "x")
        assert labels(storage, clone.name) == ["before"]

    def test_a_copy_leaves_what_is_to_stay_free(self, place: Place, storage: Storage) -> None:
        formed = origin(place, storage)
        root = storage.get(formed.volume).path.parents[4]
        careful = Qcow2Storage(root, "home", OWNER, floor=1 << 60)
        with pytest.raises(HostUnfit, match="needed"):
            careful.snapshot([formed.volume], "more")
        careful.rollback(formed.volume, "formed")
        place.put(storage.get(formed.volume), 0, os.urandom(MIB))
        storage.snapshot([formed.volume], "large")
        careful.rollback(formed.volume, "formed")
        with pytest.raises(HostUnfit, match="needed"):
            careful.rollback(formed.volume, "large")
        assert place.get(storage.get(formed.volume), 0, 6) == b"origin"
        assert labels(storage, formed.volume) == ["formed", "large"]

    def test_all_copies_of_a_rollback_fit_or_it_is_refused(
        self, place: Place, storage: Storage
    ) -> None:
        """Protects a lab: a rollback that is refused after its first volume leaves it torn."""
        made = [storage.create(vol("a", node), SIZE, {}) for node in ("n1", "n2")]
        volumes = [volume.name for volume in made]
        storage.snapshot(volumes, "empty")
        for volume in made:
            place.put(volume, 0, os.urandom(4 * MIB))
        storage.snapshot(volumes, "large")
        root = made[0].path.parents[4]

        def small(free: int, floor: int = 0) -> Storage:
            return Small(free, root, "home", OWNER, floor=floor)

        small(9 * MIB).check_rollback(volumes, "large")
        with pytest.raises(HostUnfit, match="a rollback needs 8"):
            small(7 * MIB).check_rollback(volumes, "large")
        small(7 * MIB).check_rollback(volumes[:1], "large")
        small(9 * MIB, floor=GIB).check_rollback(volumes, "large")
        storage.rollback(volumes[0], "empty")
        small(9 * MIB, floor=GIB).check_rollback(volumes, "empty")
        with pytest.raises(HostUnfit, match="1G is kept free") as refused:
            small(9 * MIB, floor=GIB).check_rollback(volumes, "large")
        assert "space_floor" in refused.value.hint

    def test_only_the_owner_reads_disks(
        self, place: Place, storage: Storage, tmp_path: Path
    ) -> None:
        clone = storage.clone(origin(place, storage), vol("a"), {})
        storage.snapshot([clone.name], "own")
        source = tmp_path / "source.raw"
        source.write_bytes(bytes(MIB))
        storage.import_raw(vol("b"), source, {})
        root = tmp_path / "volumes"
        for path in root.rglob("*"):
            stat = path.stat()
            if path == clone.path.parent / "snapshots":  # no clone is above them
                assert (stat.st_uid, stat.st_mode & 0o777) == (os.geteuid(), 0o700)
            elif path.is_dir():
                assert stat.st_mode & 0o777 == (0o711 if OWNER else 0o750)
            else:
                assert stat.st_mode & 0o137 == 0
            if OWNER and path.name == "disk.qcow2":
                assert (stat.st_uid, stat.st_gid, stat.st_mode & 0o777) == (*OWNER, 0o600)
            elif OWNER and path.suffix in (".qcow2", ".raw"):
                assert (stat.st_uid, stat.st_gid, stat.st_mode & 0o777) == (0, OWNER[1], 0o440)
        assert root.stat().st_mode & 0o007 == (1 if OWNER else 0)

    @pytest.mark.skipif(
        not (OWNER and shutil.which("setpriv")), reason="needs root to become another user"
    )
    def test_the_owner_opens_the_whole_chain_and_nobody_else(self) -> None:
        # pytest's own directories let nobody through
        with tempfile.TemporaryDirectory() as root:
            Path(root).chmod(0o711)
            storage = open_qcow2(Path(root) / "volumes", "home")
            source = Path(root) / "source.raw"
            source.write_bytes(b"\5" * MIB)
            storage.import_raw(vol("a"), source, {})
            clone = storage.clone(storage.snapshot([vol("a")], "x")[0], vol("b"), {})
            commands = [
                "qemu-io",
                "-f",
                "qcow2",
                "-c",
                "write -q 0 512",
                "-c",
                "read -q -P 5 1K 1K",
            ]
            user = ["setpriv", "--clear-groups", "--reuid", "12345", "--regid", "23456"]
            assert run([*user, *commands, clone.path], timeout=30).stdout == ""
            user[3] = user[5] = "34567"
            with pytest.raises(CommandFailed):
                run([*user, *commands, clone.path], timeout=30)

    def test_every_file_satisfies_qemu(self, place: Place, storage: Storage) -> None:
        formed = origin(place, storage)
        grown = storage.clone(formed, vol("a"), {}, size=4 << 40)
        place.put(grown, (4 << 40) - 4, b"last")
        storage.snapshot([vol("a")], "x")
        files = sorted((grown.path.parents[4]).rglob("*.qcow2"))
        assert len(files) == 4
        for file in files:
            run(["qemu-img", "check", "-q", "-f", "qcow2", file], timeout=60)

    def test_import_takes_over_a_file_of_its_own_only(
        self, storage: Storage, tmp_path: Path
    ) -> None:
        source, other = tmp_path / "source.raw", tmp_path / "other.raw"
        source.write_bytes(bytes(MIB))
        other.hardlink_to(source)
        base = storage.import_raw(vol("a"), source, {}).path.parent / "base.raw"
        assert base.stat().st_ino != other.stat().st_ino
        inode = other.stat().st_ino
        base = storage.import_raw(vol("b"), other, {}).path.parent / "base.raw"
        assert (base.stat().st_ino, base.stat().st_nlink) == (inode, 1)

    def test_torn_record_is_left_alone_and_still_protects(
        self, place: Place, storage: Storage
    ) -> None:
        formed = origin(place, storage)
        torn = storage.clone(formed, vol("a"), {})
        (torn.path.parent / "volume.json").write_bytes(b"")
        assert names(storage) == [str(formed.volume)]
        with pytest.raises(Conflict, match="not belong"):
            storage.destroy(vol("a"))
        with pytest.raises(Conflict, match="1 clone"):
            storage.destroy(formed.volume)

    def test_half_published_batch_is_invisible(self, place: Place, tmp_path: Path) -> None:
        storage = Qcow2Storage(tmp_path / "volumes", "home", OWNER)
        volumes = [vol("a", "n1"), vol("a", "n2")]
        for name in volumes:
            storage.create(name, SIZE, {})
        die_in_batch(storage, volumes[0])
        assert [labels(storage, name) for name in volumes] == [[], []]
        storage.snapshot(volumes[:1], "y")
        assert storage.sweep()[0] == "unfinished snapshot labs/a/n1/os@x"
        assert labels(storage, volumes[0]) == ["y"]
        die_in_batch(storage, volumes[0])
        storage.snapshot(volumes, "x")
        assert len(storage.sweep()) == 1
        assert [labels(storage, name) for name in volumes] == [["y", "x"], ["x"]]
        place.get(storage.clone(storage.snapshots(volumes[1])[0], vol("b"), {}), 0, 512)

    def test_clone_takes_milliseconds(self, place: Place, storage: Storage) -> None:
        formed = origin(place, storage)
        times = []
        for index in range(50):
            start = time.perf_counter()
            storage.clone(formed, vol(f"c{index}"), {})
            times.append(time.perf_counter() - start)
        assert statistics.median(times) < 0.01


def fill_up(filler: Path) -> None:
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass


def die_in_batch(storage: Qcow2Storage, volume: VolumeName) -> None:
    """Leave what a process leaves that is killed after showing the first of two snapshots."""
    directory = storage._directory
    with directory.scratch() as work:
        (work / "0").write_bytes(b"")
        plan = work.parent / "dead" / "plan.json"
        plan.parent.mkdir()
        plan.write_text(f'[["{volume}", "x"], ["labs/a/n2/os", "x"]]')
        batch.place(directory, work, work / "0", (volume, "x"), SnapshotRecord(SIZE, 1, "dead"))


@pytest.mark.parametrize("below", [False, True])
def test_tampering_breaks_the_seal(tmp_path: Path, *, below: bool) -> None:
    """Protects clones of a template whose disk, or the image below it, was written to."""
    storage = open_qcow2(tmp_path / "volumes", "home")
    source = tmp_path / "image.raw"
    source.write_bytes(bytes(SIZE))
    image = storage.import_raw(vol("image"), source, {})
    storage.clone(storage.snapshot([image.name], "base")[0], vol("copy"), {})
    (formed,) = storage.snapshot([vol("copy")], "formed")
    seal = storage.seal(formed)
    pattern = "base.raw" if below else "formed.qcow2"
    (frozen,) = tmp_path.rglob(pattern)
    frozen.chmod(0o600)  # else only root may write
    with frozen.open("r+b") as file:
        file.write(file.read(1))
    assert storage.seal(formed) != seal


def test_a_disk_that_was_rolled_back_survives_a_power_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects a lab: unlike a clone, nobody would make its disk again."""
    storage = open_qcow2(tmp_path, "home")
    volume = storage.create(vol("a"), SIZE, {})
    put(volume, 0, b"before")
    storage.snapshot([volume.name], "s")
    synced: list[str] = []
    fsync = os.fsync

    def record(handle: int) -> None:
        status = os.fstat(handle)
        synced.append(f"{status.st_dev}:{status.st_ino}")
        fsync(handle)

    monkeypatch.setattr(os, "fsync", record)
    disk = storage.rollback(volume.name, "s").path
    wanted = [f"{path.stat().st_dev}:{path.stat().st_ino}" for path in (disk, disk.parent)]
    assert synced == wanted, "the content first, then the name"

"""A storage for tests that behaves: small sparse files and one state file in a directory.

It keeps the whole contract, between processes too, and refuses what the real ones refuse.
What the real ones do fast or on a real pool it does in the simplest way: one lock, full copies.
"""

from __future__ import annotations

import contextlib
import copy
import json
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, field, replace
from pathlib import Path

from lab.config.profile import VolumeProfile
from lab.errors import InvalidSpec
from lab.names import VolumeName
from lab.storage import (
    EXTENT,
    PLAIN,
    Content,
    Source,
    Space,
    Tags,
    Volume,
    VolumeSnapshot,
    clone_lock,
    rules,
    sparse,
    stream,
)
from lab.values import dataclass

_STATE = "state.json"


@dataclass
class _Entry:
    home: str
    size: int
    tags: dict[str, str]
    content: str
    origin: str = ""
    snapshots: dict[str, str] = field(default_factory=dict)
    """Content by label, oldest first."""
    spare: str = ""
    """Content of the spare disk; empty for none."""


_Entries = dict[str, _Entry]


class FakeStorage:
    """Volumes in ``root``; ``home`` marks those of this installation.

    ``before`` is called with the name of each step about to happen and may raise: a method's
    name when it starts, ``write`` before each file of content, ``commit`` before the result
    appears. ``capacity`` in bytes is the size of the disk it pretends to have.
    """

    name = "fake"
    native = False

    def __init__(
        self,
        root: Path,
        home: str = "home",
        *,
        before: Callable[[str], None] = lambda _: None,
        capacity: int = 1 << 40,
    ) -> None:
        self._root = root.absolute()
        self._home = home
        self._before = before
        self._capacity = capacity
        self._contents = self._root / "contents"
        self._scratches = self._root / "scratch"
        for folder in (self._contents, self._scratches):
            folder.mkdir(parents=True, exist_ok=True)

    def create(
        self, volume: VolumeName, size: int, tags: Tags, *, profile: VolumeProfile = PLAIN
    ) -> Volume:
        """See ``Storage.create``."""
        del profile  # files have no such settings
        self._before("create")
        entry = _Entry(self._home, rules.check_size(size), rules.check_tags(tags), "")
        with self._change() as entries:
            self._refuse_existing(entries, volume)
            self._need(0)
            entry.content = self._new_content(None, size)
            entries[str(volume)] = entry
        return self._volume(volume, entry)

    def import_raw(
        self, volume: VolumeName, source: Path, tags: Tags, *, profile: VolumeProfile = PLAIN
    ) -> Volume:
        """See ``Storage.import_raw``; always copies, and removes ``source`` afterwards."""
        del profile  # files have no such settings
        self._before("import_raw")
        if not source.is_file():
            raise InvalidSpec(f"{source} is not a raw disk file")
        size = -(-source.stat().st_size // rules.SECTOR) * rules.SECTOR
        entry = _Entry(self._home, rules.check_size(size), rules.check_tags(tags), "")
        with self._change() as entries:
            self._refuse_existing(entries, volume)
            entry.content = self._new_content(source, size)
            entries[str(volume)] = entry
        source.unlink()
        return self._volume(volume, entry)

    def snapshot(self, volumes: Sequence[VolumeName], label: str) -> list[VolumeSnapshot]:
        """See ``Storage.snapshot``."""
        self._before("snapshot")
        rules.check_label(label)
        with self._change() as entries:
            found = {name: self._ours(entries, name) for name in volumes}
            for name, entry in found.items():
                if label in entry.snapshots:
                    raise rules.has_snapshot(name, label)
            for entry in found.values():
                content = self._new_content(self._contents / entry.content, entry.size)
                entry.snapshots[label] = content
        return [VolumeSnapshot(name, label, found[name].size) for name in volumes]

    def persist(self, snapshots: Sequence[VolumeSnapshot]) -> None:
        """See ``Storage.persist``; there is no power to lose."""
        self._before("persist")
        with self._locked() as entries:
            for snapshot in snapshots:
                self._frozen(entries, snapshot.volume, snapshot.label)

    def seal(self, snapshot: VolumeSnapshot) -> str:
        """See ``Storage.seal``."""
        with self._locked() as entries:
            status = self._frozen(entries, snapshot.volume, snapshot.label).stat()
        return f"{status.st_size}:{status.st_mtime_ns}:{status.st_ctime_ns}"

    def snapshots(self, volume: VolumeName) -> list[VolumeSnapshot]:
        """See ``Storage.snapshots``."""
        with self._locked() as entries:
            entry = entries.get(str(volume))
        if entry is None or entry.home != self._home:
            return []
        return [VolumeSnapshot(volume, label, entry.size) for label in entry.snapshots]

    def labels(self) -> dict[VolumeName, list[str]]:
        """See ``Storage.labels``."""
        with self._locked() as entries:
            ours = [(name, entry) for name, entry in entries.items() if entry.home == self._home]
            return {VolumeName.parse(name): list(entry.snapshots) for name, entry in ours}

    def clone(
        self,
        origin: VolumeSnapshot,
        volume: VolumeName,
        tags: Tags,
        *,
        size: int = 0,
        profile: VolumeProfile = PLAIN,
    ) -> Volume:
        """See ``Storage.clone``."""
        del profile  # files have no such settings
        self._before("clone")
        entry = _Entry(self._home, 0, rules.check_tags(tags), "", f"{origin.volume}@{origin.label}")
        with self._change() as entries:
            frozen = self._frozen(entries, origin.volume, origin.label)
            smallest = entries[str(origin.volume)].size
            entry.size = rules.clone_size(origin.volume, smallest, size)
            self._refuse_existing(entries, volume)
            entry.content = self._new_content(frozen, entry.size)
            entries[str(volume)] = entry
        return self._volume(volume, entry)

    def rollback(self, volume: VolumeName, label: str) -> Volume:
        """See ``Storage.rollback``."""
        self._before("rollback")
        with self._change() as entries:
            frozen = self._frozen(entries, volume, label)
            entry = entries[str(volume)]
            new = self._new_content(frozen, entry.size)
            self._before("commit")
            # the path stays the same, as with the real ones
            (self._contents / new).replace(self._contents / entry.content)
        return self._volume(volume, entry)

    def check_rollback(self, volumes: Sequence[VolumeName], label: str) -> None:
        """See ``Storage.check_rollback``."""
        with self._locked() as entries:
            frozen = [self._frozen(entries, volume, label) for volume in volumes]
            self._need(sum(sparse.allocated(path) for path in frozen))

    def spare(self, volume: VolumeName, label: str) -> Volume:
        """See ``Storage.spare``."""
        self._before("spare")
        with self._change() as entries:
            frozen = self._frozen(entries, volume, label)
            entry = entries[str(volume)]
            entry.spare = self._new_content(frozen, entry.size)
        return replace(self._volume(volume, entry), path=self._contents / entry.spare)

    def take_spare(self, volume: VolumeName) -> Volume:
        """See ``Storage.take_spare``."""
        self._before("take_spare")
        with self._change() as entries:
            entry = self._ours(entries, volume)
            if not entry.spare:
                raise rules.no_spare(volume)
            entry.content, entry.spare = entry.spare, ""
        return self._volume(volume, entry)

    def drop_spare(self, volume: VolumeName) -> None:
        """See ``Storage.drop_spare``."""
        self._before("drop_spare")
        with self._change() as entries:
            entry = entries.get(str(volume))
            if entry is not None and entry.home == self._home:
                entry.spare = ""

    def drop(self, snapshot: VolumeSnapshot) -> None:
        """See ``Storage.drop``."""
        self._before("drop")
        rules.check_label(snapshot.label)
        with self._change() as entries:
            entry = entries.get(str(snapshot.volume))
            if entry is None:
                return
            if entry.home != self._home:
                raise rules.not_ours(snapshot.volume)
            origin = f"{snapshot.volume}@{snapshot.label}"
            clones = [name for name, other in entries.items() if other.origin == origin]
            if clones:
                raise rules.has_clones(snapshot.volume, clones)
            entry.snapshots.pop(snapshot.label, None)

    def destroy(self, volume: VolumeName) -> None:
        """See ``Storage.destroy``."""
        self._before("destroy")
        with self._change() as entries:
            entry = entries.get(str(volume))
            if entry is None:
                return
            if entry.home != self._home:
                raise rules.not_ours(volume)
            start = f"{volume}@"
            clones = [name for name, other in entries.items() if other.origin.startswith(start)]
            if clones:
                raise rules.has_clones(volume, clones)
            del entries[str(volume)]

    def volumes(self) -> list[Volume]:
        """See ``Storage.volumes``."""
        with self._locked() as entries:
            ours = [(name, entry) for name, entry in entries.items() if entry.home == self._home]
        return [self._volume(VolumeName.parse(name), entry) for name, entry in sorted(ours)]

    def get(self, volume: VolumeName) -> Volume:
        """See ``Storage.get``."""
        with self._locked() as entries:
            return self._volume(volume, self._ours(entries, volume))

    def used(self, volume: VolumeName) -> int:
        """See ``Storage.used``."""
        with self._locked() as entries:
            entry = self._ours(entries, volume)
            files = [entry.content, *filter(None, [entry.spare]), *entry.snapshots.values()]
            return sum(sparse.allocated(self._contents / file) for file in files)

    def space(self) -> Space:
        """See ``Storage.space``; all files in the directory count."""
        with self._locked():  # nothing goes while we look at it
            return self._room()

    @contextlib.contextmanager
    def read(self, snapshot: VolumeSnapshot) -> Iterator[Content]:
        """See ``Storage.read``."""
        self._before("read")
        with self._locked() as entries:
            frozen = self._frozen(entries, snapshot.volume, snapshot.label)
            size = entries[str(snapshot.volume)].size
            file = frozen.open("rb")
        with file:
            parts = list(sparse.extents(file.fileno()))
            extents = rules.readable(snapshot, sparse.read(file.fileno(), parts, EXTENT))
            yield Content(size, sum(length for _, length in parts), extents)

    def write(self, volume: VolumeName, label: str, content: Content, tags: Tags) -> VolumeSnapshot:
        """See ``Storage.write``."""
        self._before("write")
        size = rules.check_size(content.size)
        rules.check_label(label)
        tags = rules.check_tags(tags)
        with self._locked() as entries:
            self._refuse_existing(entries, volume)
            self._need(content.data)
        with clone_lock.scratch(self._scratches) as work:
            flat = work / "flat"
            sparse.write(flat, size, rules.in_place(volume, size, content.extents))
            with self._change() as entries:
                self._refuse_existing(entries, volume)
                entry = _Entry(self._home, size, tags, self._new_content(flat, size))
                entry.snapshots[label] = self._new_content(flat, size)
                entries[str(volume)] = entry
        return VolumeSnapshot(volume, label, size)

    @contextlib.contextmanager
    def send(self, snapshot: VolumeSnapshot) -> Iterator[Iterator[bytes]]:
        """See ``Storage.send``."""
        with self.read(snapshot) as content:
            yield stream.sent(snapshot.label, content)

    def receive(self, volume: VolumeName, source: Source, tags: Tags) -> VolumeSnapshot:
        """See ``Storage.receive``."""
        return self.write(volume, *stream.received(source), tags)

    def sweep(self) -> list[str]:
        """See ``Storage.sweep``."""
        removed = []
        for work in clone_lock.abandoned(self._scratches):
            shutil.rmtree(work)
            removed.append(f"unfinished work {work.name}")
        with self._locked() as entries:
            return removed + [f"unfinished file {name}" for name in self._tidy(entries)]

    @contextlib.contextmanager
    def _locked(self) -> Iterator[_Entries]:
        with clone_lock.hold(self._root):
            state = self._root / _STATE
            fields = json.loads(state.read_bytes()) if state.exists() else {}
            yield {name: _Entry(**entry) for name, entry in fields.items()}

    @contextlib.contextmanager
    def _change(self) -> Iterator[_Entries]:
        """The entries, to be changed; kept if the body ends well, else all stays as it was."""
        with self._locked() as entries:
            before = copy.deepcopy(entries)
            try:
                yield entries
                if entries == before:
                    return
                self._before("commit")
                draft = self._root / "state.draft"
                draft.write_text(json.dumps({key: asdict(entry) for key, entry in entries.items()}))
                draft.replace(self._root / _STATE)
            except BaseException:
                self._tidy(before)
                raise
            self._tidy(entries)

    def _tidy(self, entries: _Entries) -> list[str]:
        """Remove the files that no entry needs."""
        kept = {content for entry in entries.values() for content in (entry.content, entry.spare)}
        kept.update(*(entry.snapshots.values() for entry in entries.values()))
        litter = [path for path in self._contents.iterdir() if path.name not in kept]
        for path in litter:
            path.unlink()
        return [path.name for path in litter]

    def _new_content(self, source: Path | None, size: int) -> str:
        self._before("write")
        path = self._contents / secrets.token_hex(8)
        if source:
            self._need(sparse.allocated(source))
            sparse.copy(source, path)
        with path.open("ab") as file:
            file.truncate(size)
        return path.name

    def _room(self) -> Space:
        used = sum(sparse.allocated(path) for path in self._contents.iterdir())
        return Space(max(0, self._capacity - used), self._capacity)

    def _need(self, needs: int) -> None:
        free = self._room().free
        if needs > free or not free:
            raise rules.no_space(str(self._root), needs, free)

    def _ours(self, entries: _Entries, volume: VolumeName) -> _Entry:
        entry = entries.get(str(volume))
        if entry is None or entry.home != self._home:
            raise rules.absent(volume)
        return entry

    def _frozen(self, entries: _Entries, volume: VolumeName, label: str) -> Path:
        content = self._ours(entries, volume).snapshots.get(rules.check_label(label))
        if content is None:
            raise rules.no_snapshot(volume, label)
        return self._contents / content

    def _volume(self, volume: VolumeName, entry: _Entry) -> Volume:
        return Volume(volume, self._contents / entry.content, "raw", entry.size, entry.tags)

    @staticmethod
    def _refuse_existing(entries: _Entries, volume: VolumeName) -> None:
        if str(volume) in entries:
            raise rules.exists(volume)

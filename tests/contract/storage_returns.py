"""The contract of going back to snapshots, and of letting them go."""

from __future__ import annotations

import pytest

from lab.errors import Conflict, NotFound
from lab.storage import Storage, VolumeSnapshot
from tests.contract.storage_place import MIB, SIZE, TAGS, Place, labels, origin, vol


class Returns:
    # rollback

    def test_rollback_undoes_writes(self, place: Place, storage: Storage) -> None:
        formed = origin(place, storage)
        before = storage.get(formed.volume)
        clone = storage.clone(formed, vol("a"), {})
        for _ in range(2):
            place.put(before, 0, b"change")
            place.put(before, MIB, b"more")
            storage.check_rollback([formed.volume], "formed")
            storage.rollback(formed.volume, "formed")
            assert storage.get(formed.volume) == before
            assert place.get(before, 0, 6) == b"origin"
            assert place.get(before, MIB, 4) == bytes(4)
        assert labels(storage, formed.volume) == ["formed"]
        assert place.get(clone, 0, 6) == b"origin"

    def test_rollback_to_nothing(self, place: Place, storage: Storage) -> None:
        formed = origin(place, storage)
        place.put(storage.get(formed.volume), 0, b"change")
        for volume, label in ((formed.volume, "absent"), (vol("absent"), "formed")):
            with pytest.raises(NotFound):
                storage.rollback(volume, label)
            with pytest.raises(NotFound):
                storage.check_rollback([formed.volume, volume], label)
        assert place.get(storage.get(formed.volume), 0, 6) == b"change"

    def test_a_spare_becomes_the_volume(self, place: Place, storage: Storage) -> None:
        """Protects a reset: the former disk is as it was until then, and no snapshot is lost."""
        formed = origin(place, storage)
        place.put(storage.get(formed.volume), 0, b"second")
        storage.snapshot([formed.volume], "second")
        place.put(storage.get(formed.volume), 0, b"third!")
        for round_ in range(2):
            spare = storage.spare(formed.volume, "formed")
            assert (spare.name, spare.size, dict(spare.tags)) == (formed.volume, SIZE, TAGS)
            assert spare.path != storage.get(formed.volume).path
            assert place.get(spare, 0, 6) == b"origin"
            place.put(spare, MIB, b"own%d" % round_)
            assert place.get(storage.get(formed.volume), 0, 6) == b"third!"
            taken = storage.take_spare(formed.volume)
            assert taken == storage.get(formed.volume)
            assert place.get(taken, 0, 6) == b"origin"
            assert place.get(taken, MIB, 4) == b"own%d" % round_
            assert labels(storage, formed.volume) == ["formed", "second"]
            with pytest.raises(NotFound, match="no spare"):
                storage.take_spare(formed.volume)
            place.put(taken, 0, b"third!")
        assert place.get(storage.rollback(formed.volume, "second"), 0, 6) == b"second"
        storage.destroy(formed.volume)
        assert storage.volumes() == []
        assert storage.sweep() == []

    def test_drop_removes_one_snapshot(self, place: Place, storage: Storage) -> None:
        volume = storage.create(vol("a"), SIZE, {})
        for label in ("one", "two", "three"):
            place.put(volume, 0, label.encode().ljust(5))
            storage.snapshot([volume.name], label)
        storage.rollback(volume.name, "two")
        for label in ("two", "two", "absent", "one"):
            storage.drop(VolumeSnapshot(volume.name, label, SIZE))
        storage.drop(VolumeSnapshot(vol("absent"), "one", SIZE))
        assert labels(storage, volume.name) == ["three"]
        assert place.get(storage.get(volume.name), 0, 5) == b"two  "
        with pytest.raises(NotFound):
            storage.rollback(volume.name, "two")
        storage.snapshot([volume.name], "two")
        assert labels(storage, volume.name) == ["three", "two"]
        storage.rollback(volume.name, "three")
        assert place.get(storage.get(volume.name), 0, 5) == b"three"

    def test_drop_refuses_while_clones_exist(self, place: Place, storage: Storage) -> None:
        formed = origin(place, storage)
        (other,) = storage.snapshot([formed.volume], "other")
        clone = storage.clone(formed, vol("a"), {})
        with pytest.raises(Conflict, match=r"1 clone: labs/a/n1/os"):
            storage.drop(formed)
        storage.drop(other)
        assert place.get(clone, 0, 6) == b"origin"
        storage.destroy(clone.name)
        storage.drop(formed)
        assert labels(storage, formed.volume) == []


class Histories:
    """Volumes that went back several times, and their spares."""

    def test_rollback_past_later_snapshots_keeps_them(self, place: Place, storage: Storage) -> None:
        """Protects captures: going back to an early one loses none of those made since."""
        formed = origin(place, storage)
        place.put(storage.get(formed.volume), 0, b"second")
        (second,) = storage.snapshot([formed.volume], "second")
        clone = storage.clone(second, vol("a"), {})
        for round_ in range(2):
            place.put(storage.get(formed.volume), MIB, b"scratch")
            back = storage.rollback(formed.volume, "formed")
            assert back == storage.get(formed.volume)
            assert (back.size, dict(back.tags)) == (SIZE, TAGS)
            assert place.get(back, 0, 6) == b"origin"
            assert place.get(back, MIB, 7) == bytes(7)
            place.put(back, 0, b"third%d" % round_)
        assert storage.snapshots(formed.volume) == [formed, second]
        (third,) = storage.snapshot([formed.volume], "third")
        with pytest.raises(Conflict, match="second already"):
            storage.snapshot([formed.volume], "second")
        assert labels(storage, formed.volume) == ["formed", "second", "third"]
        assert place.get(storage.rollback(formed.volume, "second"), 0, 6) == b"second"
        assert place.get(storage.rollback(formed.volume, "third"), 0, 6) == b"third1"
        assert place.get(storage.clone(third, vol("b"), {}), 0, 6) == b"third1"
        assert place.get(clone, 0, 6) == b"second"
        assert [volume.name for volume in storage.volumes()] == [
            vol("a"), vol("b"), formed.volume
        ]  # fmt: skip
        assert storage.sweep() == []

    def test_destroy_after_a_rollback_past_later_snapshots(
        self, place: Place, storage: Storage
    ) -> None:
        formed = origin(place, storage)
        storage.snapshot([formed.volume], "second")
        storage.rollback(formed.volume, "formed")
        (third,) = storage.snapshot([formed.volume], "third")
        storage.clone(third, vol("a"), {})
        with pytest.raises(Conflict, match=r"1 clone: labs/a/n1/os"):
            storage.destroy(formed.volume)
        storage.destroy(vol("a"))
        storage.destroy(formed.volume)
        assert storage.volumes() == []
        assert place.get(storage.create(formed.volume, SIZE, {}), 0, 6) == bytes(6)
        assert labels(storage, formed.volume) == []
        assert storage.sweep() == []

    def test_rollback_keeps_all_snapshots(self, place: Place, storage: Storage) -> None:
        """Protects later snapshots: one may go back and forth."""
        volume = storage.create(vol("a"), SIZE, {})
        for label in ("one", "two", "three"):
            place.put(storage.get(volume.name), 0, label.encode().ljust(5))
            storage.snapshot([volume.name], label)
        for label in ("one", "three", "two"):
            storage.rollback(volume.name, label)
            assert place.get(storage.get(volume.name), 0, 5) == label.encode().ljust(5)
            assert labels(storage, volume.name) == ["one", "two", "three"]
        found = storage.get(volume.name)  # its path may be another one now
        assert (found.name, found.size, found.tags) == (volume.name, volume.size, volume.tags)

    # spare

    def test_a_spare_is_made_again_and_dropped(self, place: Place, storage: Storage) -> None:
        formed = origin(place, storage)
        place.put(storage.spare(formed.volume, "formed"), 0, b"change")
        assert place.get(storage.spare(formed.volume, "formed"), 0, 6) == b"origin"
        storage.drop_spare(formed.volume)
        storage.drop_spare(formed.volume)
        storage.drop_spare(vol("absent"))
        for volume in (formed.volume, vol("absent")):
            with pytest.raises(NotFound):
                storage.take_spare(volume)
        for volume, label in ((formed.volume, "absent"), (vol("absent"), "formed")):
            with pytest.raises(NotFound):
                storage.spare(volume, label)
        assert place.get(storage.get(formed.volume), 0, 6) == b"origin"
        assert [volume.name for volume in storage.volumes()] == [formed.volume]
        storage.sweep()

    def test_a_spare_survives_what_happens_to_the_volume(
        self, place: Place, storage: Storage
    ) -> None:
        """Protects a standby: the lab is used meanwhile, and a guest has the spare open."""
        formed = origin(place, storage)
        storage.snapshot([formed.volume], "second")
        place.put(storage.spare(formed.volume, "second"), MIB, b"own")
        storage.rollback(formed.volume, "formed")
        storage.snapshot([formed.volume], "third")
        storage.drop(VolumeSnapshot(formed.volume, "second", SIZE))
        assert storage.sweep() == []
        assert labels(storage, formed.volume) == ["formed", "third"]
        taken = place.open("home").take_spare(formed.volume)
        assert place.get(taken, MIB, 3) == b"own"
        assert storage.get(formed.volume) == taken
        assert place.get(storage.rollback(formed.volume, "third"), MIB, 3) == bytes(3)

    def test_a_volume_goes_with_its_spare(self, place: Place, storage: Storage) -> None:
        formed = origin(place, storage)
        storage.spare(formed.volume, "formed")
        storage.destroy(formed.volume)
        assert storage.volumes() == []
        assert storage.sweep() == []
        volume = storage.create(formed.volume, SIZE, {})
        with pytest.raises(NotFound, match="no spare"):
            storage.take_spare(volume.name)

    # drop

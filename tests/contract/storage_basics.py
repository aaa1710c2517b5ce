"""The contract of a storage that is used by one process on a healthy disk."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from lab.errors import Conflict, InvalidSpec, NotFound
from lab.storage import Storage, VolumeSnapshot
from tests.contract.storage_place import MIB, SIZE, TAGS, Place, labels, names, origin, vol


class Basics:
    shares_blocks = True
    """Whether a clone takes (nearly) no space; a fake may copy."""

    # create, get, volumes

    def test_new_volume_reads_as_zeros(self, place: Place, storage: Storage) -> None:
        volume = storage.create(vol("a"), SIZE, TAGS)
        assert (volume.name, volume.size, dict(volume.tags)) == (vol("a"), SIZE, TAGS)
        assert volume.path.is_absolute()
        assert volume.path.exists()
        assert place.get(volume, 0, 4096) == bytes(4096)
        assert place.get(volume, SIZE - 4096, 4096) == bytes(4096)

    def test_what_is_written_is_read_in_another_opening(
        self, place: Place, storage: Storage
    ) -> None:
        place.put(storage.create(vol("a"), SIZE, TAGS), 5 * MIB, b"here")
        again = place.open("home")
        assert place.get(again.get(vol("a")), 5 * MIB, 6) == b"here\0\0"
        assert again.get(vol("a")) == storage.get(vol("a"))

    def test_create_refuses_what_exists(self, place: Place, storage: Storage) -> None:
        place.put(storage.create(vol("a"), SIZE, TAGS), 0, b"keep")
        with pytest.raises(Conflict, match="exists"):
            storage.create(vol("a"), 2 * SIZE, {})
        assert storage.get(vol("a")).size == SIZE
        assert place.get(storage.get(vol("a")), 0, 4) == b"keep"

    @pytest.mark.parametrize("size", [0, -MIB, 100, 1 << 60])
    def test_create_refuses_impossible_sizes(self, storage: Storage, size: int) -> None:
        with pytest.raises(InvalidSpec):
            storage.create(vol("a"), size, {})
        assert names(storage) == []

    def test_create_refuses_bad_tag_keys(self, storage: Storage) -> None:
        with pytest.raises(InvalidSpec, match="tag"):
            storage.create(vol("a"), SIZE, {"Bad key": "x"})
        assert names(storage) == []

    def test_tag_values_may_hold_any_text(self, storage: Storage) -> None:
        tags = {"note": 'quote " tab \t umlaut ü comma , equals = newline \n end'}
        storage.create(vol("a"), SIZE, tags)
        assert dict(storage.get(vol("a")).tags) == tags

    def test_get_and_used_of_nothing(self, storage: Storage) -> None:
        with pytest.raises(NotFound):
            storage.get(vol("a"))
        with pytest.raises(NotFound):
            storage.used(vol("a"))

    def test_volumes_of_one_node_and_neighbours_do_not_meet(self, storage: Storage) -> None:
        wanted = [vol("a"), vol("a", "n1", "data"), vol("a", "n2"), vol("a-b"), vol("a.b")]
        for volume in wanted:
            storage.create(volume, SIZE, {})
        assert names(storage) == sorted(map(str, wanted))
        storage.destroy(vol("a"))
        assert names(storage) == sorted(map(str, wanted[1:]))

    def test_used_counts_what_was_written(self, place: Place, storage: Storage) -> None:
        volume = storage.create(vol("a"), SIZE, {})
        before = storage.used(vol("a"))
        place.put(volume, 0, os.urandom(2 * MIB))  # nothing that can be compressed
        assert before + MIB < storage.used(vol("a")) < before + 3 * MIB

    def test_space_is_plausible(self, storage: Storage) -> None:
        space = storage.space()
        assert 0 < space.free <= space.total

    def test_space_is_reported_while_volumes_come_and_go(
        self, place: Place, storage: Storage
    ) -> None:
        other = place.open("home")

        def churn() -> None:
            for _ in range(place.times(10)):
                other.create(vol("a"), SIZE, TAGS)
                other.destroy(vol("a"))

        with ThreadPoolExecutor(1) as pool:
            work = pool.submit(churn)
            while not work.done():
                assert storage.space().free > 0
            work.result()

    # snapshot

    def test_snapshot_is_not_changed_by_later_writes(self, place: Place, storage: Storage) -> None:
        formed = origin(place, storage)
        assert formed == VolumeSnapshot(vol("origin"), "formed", SIZE)
        place.put(storage.get(vol("origin")), 0, b"change")
        assert place.get(storage.clone(formed, vol("a"), {}), 0, 6) == b"origin"

    def test_snapshots_are_listed_oldest_first(self, place: Place, storage: Storage) -> None:
        volume = storage.create(vol("a"), SIZE, {})
        for label in ("z", "m", "a", "b.2_x-1"):
            place.put(volume, 0, label.encode())
            storage.snapshot([vol("a")], label)
        assert labels(storage, vol("a")) == ["z", "m", "a", "b.2_x-1"]
        clone = storage.clone(storage.snapshots(vol("a"))[1], vol("c"), {})
        assert place.get(clone, 0, 1) == b"m"

    def test_all_labels_are_listed_at_once(self, storage: Storage) -> None:
        assert storage.labels() == {}
        for name in ("a", "b", "c"):
            storage.create(vol(name), SIZE, {})
        for label in ("z", "m"):
            storage.snapshot([vol("a"), vol("b")], label)
        assert storage.labels() == {vol("a"): ["z", "m"], vol("b"): ["z", "m"], vol("c"): []}

    def test_snapshots_of_nothing(self, storage: Storage) -> None:
        assert storage.snapshots(vol("a")) == []
        assert storage.snapshot([], "x") == []

    def test_snapshot_answers_in_the_order_asked(self, storage: Storage) -> None:
        asked = [vol("c"), vol("a"), vol("b", "n2")]
        for volume in asked:
            storage.create(volume, SIZE, {})
        assert [made.volume for made in storage.snapshot(asked, "x")] == asked

    @pytest.mark.parametrize("absent_at", [0, 1, 2])
    def test_snapshot_with_an_absent_volume_makes_none(
        self, storage: Storage, absent_at: int
    ) -> None:
        asked = [vol("a"), vol("b"), vol("c")]
        for volume in asked[:absent_at] + asked[absent_at + 1 :]:
            storage.create(volume, SIZE, {})
        with pytest.raises(NotFound, match=str(asked[absent_at])):
            storage.snapshot(asked, "x")
        assert [labels(storage, volume) for volume in asked] == [[], [], []]

    @pytest.mark.parametrize("taken_at", [0, 1])
    def test_snapshot_with_a_taken_label_makes_none(self, storage: Storage, taken_at: int) -> None:
        asked = [vol("a"), vol("b")]
        for volume in asked:
            storage.create(volume, SIZE, {})
        storage.snapshot([asked[taken_at]], "x")
        with pytest.raises(Conflict, match="x already"):
            storage.snapshot(asked, "x")
        assert labels(storage, asked[1 - taken_at]) == []
        assert labels(storage, asked[taken_at]) == ["x"]

    @pytest.mark.parametrize("label", ["", "..", "../x", "a/b", "a@b", "A", "-a", "a" * 65, "ü"])
    def test_labels_cannot_escape(self, place: Place, storage: Storage, label: str) -> None:
        formed = origin(place, storage)
        with pytest.raises(InvalidSpec):
            storage.snapshot([formed.volume], label)
        with pytest.raises(InvalidSpec):
            storage.clone(VolumeSnapshot(formed.volume, label, SIZE), vol("a"), {})
        with pytest.raises(InvalidSpec):
            storage.rollback(formed.volume, label)

    def test_persist(self, place: Place, storage: Storage) -> None:
        formed = origin(place, storage)
        storage.persist([formed])
        with pytest.raises(NotFound):
            storage.persist([formed, VolumeSnapshot(formed.volume, "absent", SIZE)])

    # clone

    def test_a_seal_holds_while_nobody_tampers(self, place: Place, storage: Storage) -> None:
        """Protects captures: neither clones, nor writes to the volume, nor time break a seal."""
        formed = origin(place, storage)
        seal = storage.seal(formed)
        storage.persist([formed])
        storage.clone(formed, vol("clone"), TAGS)
        place.put(storage.get(formed.volume), 0, b"later")
        assert place.open("home").seal(formed) == seal
        with pytest.raises(NotFound):
            storage.seal(VolumeSnapshot(formed.volume, "absent", SIZE))

    def test_clones_are_writable_and_alone(self, place: Place, storage: Storage) -> None:
        formed, many = origin(place, storage), place.times(24)
        with ThreadPoolExecutor(many) as pool:
            made = list(pool.map(lambda i: storage.clone(formed, vol(f"c{i}"), TAGS), range(many)))
        for index, clone in enumerate(made):
            assert (clone.size, dict(clone.tags)) == (SIZE, TAGS)
            place.put(clone, MIB, b"clone %d" % index)
        for index, clone in enumerate(made):
            assert place.get(clone, 0, 6) == b"origin"
            assert place.get(clone, MIB, 10).rstrip(b"\0") == b"clone %d" % index
        assert place.get(storage.get(vol("origin")), MIB, 5) == bytes(5)
        assert len(storage.volumes()) == many + 1

    def test_clone_of_a_clone(self, place: Place, storage: Storage) -> None:
        first = storage.clone(origin(place, storage), vol("a"), {})
        place.put(first, MIB, b"first")
        second = storage.clone(storage.snapshot([vol("a")], "branch")[0], vol("b"), {})
        place.put(second, 0, b"second")
        assert place.get(second, MIB, 5) == b"first"
        assert place.get(first, 0, 6) == b"origin"

    def test_clone_can_grow_and_reads_zeros_there(self, place: Place, storage: Storage) -> None:
        volume = storage.create(vol("a"), SIZE, {})
        place.put(volume, SIZE - 4, b"tail")
        (snapshot,) = storage.snapshot([vol("a")], "x")
        grown = storage.clone(snapshot, vol("b"), {}, size=4 * SIZE)
        assert grown.size == 4 * SIZE == storage.get(vol("b")).size
        assert place.get(grown, SIZE - 4, 8) == b"tail\0\0\0\0"
        place.put(grown, 4 * SIZE - 4, b"end.")
        assert place.get(grown, 4 * SIZE - 8, 8) == b"\0\0\0\0end."
        assert storage.snapshot([vol("b")], "y")[0].size == 4 * SIZE

    def test_clone_refusals(self, place: Place, storage: Storage) -> None:
        formed = origin(place, storage)
        with pytest.raises(InvalidSpec, match="smaller"):
            storage.clone(formed, vol("a"), {}, size=SIZE - MIB)
        with pytest.raises(NotFound):
            storage.clone(VolumeSnapshot(vol("origin"), "absent", SIZE), vol("a"), {})
        with pytest.raises(NotFound):
            storage.clone(VolumeSnapshot(vol("absent"), "formed", SIZE), vol("a"), {})
        with pytest.raises(Conflict):
            storage.clone(formed, vol("origin"), {})
        assert names(storage) == [str(vol("origin"))]

    def test_clone_shares_blocks(self, place: Place, storage: Storage) -> None:
        if not self.shares_blocks:
            pytest.skip("this driver copies")
        place.put(storage.create(vol("a"), SIZE, {}), 0, os.urandom(4 * MIB))
        storage.clone(storage.snapshot([vol("a")], "x")[0], vol("b"), {})
        assert storage.used(vol("b")) < MIB // 4

    # destroy

    def test_destroy_frees_the_name(self, place: Place, storage: Storage) -> None:
        formed = origin(place, storage)
        storage.destroy(formed.volume)
        storage.destroy(formed.volume)
        assert names(storage) == []
        again = storage.create(formed.volume, SIZE, {})
        assert place.get(again, 0, 6) == bytes(6)
        assert labels(storage, formed.volume) == []

    def test_destroy_refuses_while_clones_exist(self, place: Place, storage: Storage) -> None:
        formed = origin(place, storage)
        clone = storage.clone(formed, vol("a"), {})
        with pytest.raises(Conflict, match=r"1 clone: labs/a/n1/os"):
            storage.destroy(formed.volume)
        assert labels(storage, formed.volume) == ["formed"]
        assert place.get(clone, 0, 6) == b"origin"
        storage.destroy(clone.name)
        storage.destroy(formed.volume)
        assert names(storage) == []

    # what is not ours

    def test_foreign_volumes_are_absent_but_their_names_are_taken(
        self, place: Place, storage: Storage
    ) -> None:
        foreign = origin(place, place.open("other"))
        assert storage.volumes() == []
        assert storage.snapshots(foreign.volume) == []
        calls: list[Callable[[], object]] = [
            lambda: storage.get(foreign.volume),
            lambda: storage.used(foreign.volume),
            lambda: storage.snapshot([foreign.volume], "x"),
            lambda: storage.rollback(foreign.volume, "formed"),
            lambda: storage.clone(foreign, vol("a"), {}),
            lambda: storage.persist([foreign]),
        ]
        for call in calls:
            with pytest.raises(NotFound):
                call()
        with pytest.raises(Conflict, match="exists"):
            storage.create(foreign.volume, SIZE, {})
        with pytest.raises(Conflict, match="not belong"):
            storage.destroy(foreign.volume)
        assert names(place.open("other")) == [str(foreign.volume)]

    def test_sweep_of_a_clean_place(self, place: Place, storage: Storage) -> None:
        assert storage.sweep() == []
        origin(place, storage)
        assert storage.sweep() == []
        assert labels(storage, vol("origin")) == ["formed"]

"""Protects the names of datasets: one volume each, there and back, and short enough for ZFS."""

from __future__ import annotations

import pytest

from lab.errors import InvalidSpec
from lab.names import Owner, VolumeName
from lab.storage.zfs.names import LABEL_LIMIT, NAME_LIMIT, Layout

LAYOUT = Layout("tank/lab")


def volume(lab: str = "pxc", node: str = "n1", disk: str = "os") -> VolumeName:
    return VolumeName(Owner("lab", lab), node, disk)


@pytest.mark.parametrize(
    ("name", "dataset"),
    [
        (volume(), "tank/lab/labs/pxc/n1_os"),
        (volume("a.b", "n-1", "d.1"), "tank/lab/labs/a.b/n-1_d.1"),
        (VolumeName(Owner("image", "m-1.2"), "base", "os"), "tank/lab/images/m-1.2/base_os"),
        (VolumeName(Owner("template", "0af"), "n3", "log"), "tank/lab/templates/0af/n3_log"),
    ],
)
def test_a_volume_has_its_dataset(name: VolumeName, dataset: str) -> None:
    assert LAYOUT.dataset(name) == dataset
    assert LAYOUT.parse(dataset) == (name, 0)
    assert LAYOUT.dataset(name, 12) == f"{dataset}_12"
    assert LAYOUT.parse(f"{dataset}_12") == (name, 12)
    assert LAYOUT.spoken(dataset) == str(name)


@pytest.mark.parametrize(
    "dataset",
    [
        "tank/lab",
        "tank/lab/labs",
        "tank/lab/labs/pxc",
        "tank/lab/labs/pxc/n1",
        "tank/lab/labs/pxc/n1_os/x",
        "tank/lab/labs/pxc/n1_os_0",
        "tank/lab/labs/pxc/n1_os_01",
        "tank/lab/labs/pxc/n1_os_x",
        "tank/lab/labs/pxc/n1_os_1_2",
        "tank/lab/labs/pxc/n1_os_12345",
        "tank/lab/labs/pxc/_os",
        "tank/lab/labs/pxc/N1_os",
        "tank/lab/labs/pxc/n1_os@x",
        "tank/lab/labs/.pxc/n1_os",
        "tank/lab/lab/pxc/n1_os",
        "tank/lab/others/pxc/n1_os",
        "tank/lab/.work/0123.0",
        "tank/lab2/labs/pxc/n1_os",
        "tank/other/labs/pxc/n1_os",
        "",
    ],
)
def test_what_is_no_volume(dataset: str) -> None:
    assert LAYOUT.parse(dataset) is None
    assert LAYOUT.spoken(dataset) == dataset


def test_only_owners_folders_are_tidied() -> None:
    assert LAYOUT.is_owner("tank/lab/labs/pxc")
    for name in ("tank/lab", "tank/lab/labs", "tank/lab/.work/x", "tank/lab/labs/a/b", "x/y/z"):
        assert not LAYOUT.is_owner(name)


def test_what_fits_leaves_room_for_everything_later() -> None:
    """Protects snapshots and rollbacks from failing on a name when it is too late."""
    long = volume("l" * 80, "n" * 40, "v" * 40)
    name = LAYOUT.dataset(long, 9999) + "@" + "x" * LABEL_LIMIT
    assert len(name) <= NAME_LIMIT
    with pytest.raises(InvalidSpec, match="too long for ZFS below tank/lab, by"):
        LAYOUT.dataset(volume("l" * 80, "n" * 80, "v" * 80))

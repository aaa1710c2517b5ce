"""Protects the reading of stderr: known words become errors, and only in their place."""

from __future__ import annotations

import pytest

from lab.errors import CommandFailed
from lab.storage.zfs.faults import Fault, classify, fault_of, host_error

# Each as OpenZFS prints it; most were seen with 2.3.9.
SEEN = [
    ("cannot open 't/lab/x': dataset does not exist\n", Fault.ABSENT),
    ("could not find any snapshots to destroy; check snapshot names.\n", Fault.ABSENT),
    ("cannot open 'nopool': no such pool\n", Fault.NO_POOL),
    ("cannot create 'nopool/x': no such pool 'nopool'\n", Fault.NO_POOL),
    ("cannot create 't/none/x': parent does not exist\n", Fault.NO_PARENT),
    ("cannot create 't/none/x': no such parent 't/none'\n", Fault.NO_PARENT),
    ("cannot create 't/lab/a': dataset already exists\n", Fault.EXISTS),
    ("cannot create snapshot 't/lab/a@s1': dataset already exists\n", Fault.EXISTS),
    ("cannot rename 't/lab/r': dataset already exists\n", Fault.EXISTS),
    (
        "cannot open 't/lab/nope': dataset does not exist\nusage:\n\tsnapshot [-r] ...\n",
        Fault.ABSENT,
    ),
    ("cannot destroy 't/lab/a': dataset is busy\n", Fault.BUSY),
    (
        "cannot destroy 't/lab/a@s1': snapshot has dependent clones\nuse '-R' to\nt/lab/c\n",
        Fault.HAS_CLONES,
    ),
    (
        "cannot destroy 't/lab/a': volume has children\nuse '-r' to destroy\nt/lab/a@s1\n",
        Fault.HAS_CHILDREN,
    ),
    ("cannot destroy 't/lab': filesystem has children\nuse '-r'\n", Fault.HAS_CHILDREN),
    (
        "cannot rollback to 't/a@s1': more recent snapshots or bookmarks exist\nuse '-r'\n",
        Fault.NEWER,
    ),
    ("cannot hold snapshot 't/a@s1': tag already exists on this dataset\n", Fault.HELD),
    ("cannot create 't/lab/thick': out of space\n", Fault.NO_SPACE),
    ("cannot receive: destination t/x space quota exceeded.\n", Fault.OTHER),
    ("cannot receive new filesystem stream: destination t/x space quota exceeded.\n",
     Fault.NO_SPACE),
    ("cannot create 't/lab/a': permission denied\n", Fault.FORBIDDEN),
    ("Permission denied the ZFS utilities must be run as root.\n", Fault.FORBIDDEN),
    ("cannot open 't': pool I/O is currently suspended\n", Fault.SUSPENDED),
    ("The ZFS modules are not loaded.\nTry running 'modprobe zfs' as root to load them.\n",
     Fault.NO_MODULE),
    ("cannot receive: invalid stream (bad magic number)\n", Fault.BAD_STREAM),
    ("cannot receive: failed to read from stream\n", Fault.BAD_STREAM),
    ("cannot receive new filesystem stream: incomplete stream\n", Fault.BAD_STREAM),
    ("cannot receive new filesystem stream: checksum mismatch\n", Fault.BAD_STREAM),
]  # fmt: skip


@pytest.mark.parametrize(("stderr", "fault"), SEEN)
def test_what_zfs_says(stderr: str, fault: Fault) -> None:
    assert classify(stderr) is fault
    assert classify("warning: something else\n" + stderr) is fault


@pytest.mark.parametrize(
    "stderr",
    [
        "", "\n", "out of space", "dataset is busy", "cannot", "cannot x", "cannot x: ",
        "cannot create 't/a': out of space and time\n",
        "cannot open 't/dataset is busy': I/O error\n",
        "cannot open 't/x: dataset does not exist': I/O error\n",
        "internal error: cannot create: out of space?\n",
        "cannot destroy 't/a': dataset is bus",
        "usage:\n\tdestroy ... dataset is busy\n",
        "\udce4\t\0",
    ],
)  # fmt: skip
def test_what_only_looks_like_it(stderr: str) -> None:
    """Protects from acting on a guess: unknown words stay an error that shows them."""
    assert classify(stderr) is Fault.OTHER


def test_a_killed_command_has_said_nothing() -> None:
    error = CommandFailed(["zfs"], -9, stderr="cannot create 't/a': dataset already exists")
    assert fault_of(error) is Fault.OTHER


@pytest.mark.parametrize(
    ("stderr", "says", "hint"),
    [
        (
            "cannot create 't/a': permission denied",
            "no permission for ZFS below t/lab",
            "zfs allow",
        ),
        (
            "cannot open 't': pool I/O is currently suspended",
            "pool t is suspended",
            "zpool clear t",
        ),
        ("The ZFS modules are not loaded.", "the kernel has no ZFS", "modprobe zfs"),
        ("cannot open 't': no such pool", "there is no dataset t/lab", "zpool import t"),
    ],
)
def test_what_is_wrong_with_the_host(stderr: str, says: str, hint: str) -> None:
    found = host_error(CommandFailed(["zfs"], 1, stderr=stderr), "t/lab")
    assert found is not None
    assert says in found.what
    assert hint in found.hint
    assert host_error(CommandFailed(["zfs"], 1, stderr="cannot x: dataset is busy"), "t") is None

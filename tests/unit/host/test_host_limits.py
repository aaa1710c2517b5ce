"""Limits of a container's cgroup and of the kernel: memory, processors, native AIO."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab import host
from lab.errors import HostUnfit
from lab.host import cgroup
from lab.lifecycle.host.doctor import kernel_limits
from lab.units import GIB, MIB

MEMINFO = "MemTotal: 16777216 kB\nMemFree: 1 kB\nMemAvailable: 8388608 kB\n"
STAT = "anon 5\nactive_file 104857600\ninactive_file 209715200\nshmem 7\n"


def write(directory: Path, **files: str) -> None:
    """Files of a cgroup, with a dot for each first underscore."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (directory / name.replace("_", ".", 1)).write_text(f"{content}\n")


def version2(root: Path, limit: str, used: int) -> None:
    write(root, memory_max=limit, memory_current=str(used), memory_stat=STAT)


def version1(root: Path, limit: str, used: int) -> None:
    stat = STAT + STAT.replace("active", "total_active").replace("intotal_", "total_in")
    write(root / "memory", memory_limit_in_bytes=limit, memory_usage_in_bytes=str(used),
          memory_stat=stat)  # fmt: skip


@pytest.mark.parametrize("version", [version1, version2])
def test_memory_of_a_container(tmp_path: Path, version: type) -> None:
    """Protects clusters: where the host has memory and the cgroup has not, QEMU is killed."""
    (tmp_path / "meminfo").write_text(MEMINFO)
    version(tmp_path / "cgroup", str(4 * GIB), 3 * GIB)
    found = host.memory(tmp_path / "meminfo", tmp_path / "cgroup")
    # The page cache is given up for guests.
    assert found == host.Memory(GIB + 300 * MIB, 4 * GIB, limited=True)


@pytest.mark.parametrize(
    ("most", "high", "limit"),
    [("max", str(4 * GIB), 4 * GIB), (str(4 * GIB), "max", 4 * GIB),
     (str(8 * GIB), str(4 * GIB), 4 * GIB), (str(4 * GIB), str(8 * GIB), 4 * GIB),
     (str(4 * GIB), "?", 4 * GIB)],
)  # fmt: skip
def test_memory_above_which_a_container_is_throttled(
    tmp_path: Path, most: str, high: str, limit: int
) -> None:
    """Protects guests: beyond memory.high they are not killed, but wait until it is reclaimed."""
    (tmp_path / "meminfo").write_text(MEMINFO)
    version2(tmp_path / "cgroup", most, 3 * GIB)
    write(tmp_path / "cgroup", memory_high=high)
    found = host.memory(tmp_path / "meminfo", tmp_path / "cgroup")
    assert found == host.Memory(limit - 3 * GIB + 300 * MIB, limit, limited=True)


@pytest.mark.parametrize("version", [version1, version2])
def test_a_large_container_on_a_full_host(tmp_path: Path, version: type) -> None:
    """Protects hosts: a cgroup may be allowed more than is left."""
    (tmp_path / "meminfo").write_text(MEMINFO)
    version(tmp_path / "cgroup", str(12 * GIB), 0)
    found = host.memory(tmp_path / "meminfo", tmp_path / "cgroup")
    assert found == host.Memory(8 * GIB, 12 * GIB, limited=True)


@pytest.mark.parametrize(
    ("version", "limit"),
    [(version2, "max"), (version2, str(64 * GIB)), (version2, "?"),
     (version1, "9223372036854771712"), (version1, "?")],
)  # fmt: skip
def test_a_cgroup_without_a_limit(tmp_path: Path, version: type, limit: str) -> None:
    """Protects hosts: without a limit below the host's memory, the host's is meant."""
    (tmp_path / "meminfo").write_text(MEMINFO)
    version(tmp_path / "cgroup", limit, GIB)
    expected = host.Memory(8 * GIB, 16 * GIB)
    assert host.memory(tmp_path / "meminfo", tmp_path / "cgroup") == expected
    assert host.memory(tmp_path / "meminfo", tmp_path / "none") == expected


@pytest.mark.parametrize(
    ("quota", "expected"),
    [("50000 100000", 1), ("100000 100000", 1), ("150000 100000", 2), ("900000 100000", 9),
     ("max 100000", None), ("-1 100000", None), ("what", None)],
)  # fmt: skip
def test_processors_of_a_container(tmp_path: Path, quota: str, expected: int | None) -> None:
    """Protects clusters from more nodes at once than the quota has processors for."""
    bound = len(os.sched_getaffinity(0))
    write(tmp_path / "two", cpu_max=quota)
    first, _, second = quota.partition(" ")
    write(tmp_path / "one/cpu", cpu_cfs_quota_us=first.replace("max", "-1"),
          cpu_cfs_period_us=second)  # fmt: skip
    for root in (tmp_path / "one", tmp_path / "two"):
        assert cgroup.processors(root) == expected
        assert host.processors(root) == min(bound, expected or bound)


def test_processors_that_we_are_bound_to() -> None:
    """Protects users of taskset: processors outside the affinity mask are not counted."""
    code = (
        "import os; os.sched_setaffinity(0, list(os.sched_getaffinity(0))[:1]);"
        "from lab import host; print(host.processors())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert done.stdout == b"1\n"


@pytest.fixture
def controllers() -> Iterator[dict[str, Path]]:
    """A cgroup of our own for each controller, by where the container would see it."""
    if os.geteuid() != 0 or not shutil.which("unshare"):
        pytest.skip("only root makes cgroups and mounts")
    name, made = f"lab-test-{os.getpid()}", {}
    try:
        if (cgroup.ROOT / "cgroup.subtree_control").exists():
            enabled = (cgroup.ROOT / "cgroup.subtree_control").read_text().split()
            if not {"memory", "cpu"} <= set(enabled):
                pytest.skip("memory and cpu are not controlled here")
            made["."] = cgroup.ROOT / name
            made["."].mkdir()
        else:
            for controller in ("memory", "cpu"):
                made[controller] = cgroup.ROOT / controller / name
                made[controller].mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    else:
        yield made
    finally:
        for directory in made.values():
            if directory.is_dir():
                directory.rmdir()


def test_in_a_real_cgroup(controllers: dict[str, Path]) -> None:
    """A process with limits sees them, as it does in a container: its cgroup is the top there."""
    if "." in controllers:
        (controllers["."] / "memory.max").write_text(str(400 * MIB))
        (controllers["."] / "cpu.max").write_text("50000 100000")
    else:
        (controllers["memory"] / "memory.limit_in_bytes").write_text(str(400 * MIB))
        (controllers["cpu"] / "cpu.cfs_quota_us").write_text("50000")
    code = (
        "import json; from lab import host; m = host.memory(); block = b'x' * (100 << 20);"
        "print(json.dumps([m.available, m.total, m.limited, host.processors(),"
        " host.memory().available]))"
    )
    enter = "".join(
        f"echo $$ >{directory}/cgroup.procs; mount --bind {directory} {cgroup.ROOT / place};"
        for place, directory in controllers.items()
    )
    argv = ["unshare", "--mount", "sh", "-ec", f'{enter} exec "$0" -c "$1"', sys.executable, code]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    available, total, limited, processors, later = json.loads(done.stdout)
    assert (total, limited, processors) == (400 * MIB, True, 1)
    assert 300 * MIB < available < 400 * MIB
    assert 90 * MIB < available - later < 110 * MIB


def test_native_aio_is_not_endless(tmp_path: Path) -> None:
    """Protects the 65th guest: QEMU does not start when the kernel has no requests left."""
    write(tmp_path)
    (tmp_path / "aio-max-nr").write_text("65536\n")
    (tmp_path / "aio-nr").write_text(f"{62 * 1024}\n")
    left = host.aio_left(tmp_path)
    assert left == 2 * 1024
    host.check_aio(2, left)
    host.check_aio(99, None)
    with pytest.raises(HostUnfit, match=r"3 nodes need 3072 .* 2048 are left") as unfit:
        host.check_aio(3, left)
    assert "sysctl -w fs.aio-max-nr" in unfit.value.hint
    assert host.aio_left(tmp_path / "none") is None


def kernel(proc: Path, *, overcommit: str = "0", used: int = 0, reserved: int = 0) -> None:
    """What /proc says of a host with 8 GiB to reserve."""
    for directory in ("sys/fs", "sys/vm"):
        (proc / directory).mkdir(parents=True, exist_ok=True)
    (proc / "sys/fs/aio-max-nr").write_text("65536\n")
    (proc / "sys/fs/aio-nr").write_text(f"{used}\n")
    (proc / "sys/vm/overcommit_memory").write_text(f"{overcommit}\n")
    limits = f"CommitLimit: {8 << 20} kB\nCommitted_AS: {reserved >> 10} kB\n"
    (proc / "meminfo").write_text(MEMINFO + limits)


def test_doctor_says_what_the_kernel_will_refuse(tmp_path: Path) -> None:
    """Protects database hosts, where memory is often not overcommitted.

    What labs that run have reserved is not counted a second time.
    """
    kernel(tmp_path)
    assert [*kernel_limits(tmp_path)] == []
    kernel(tmp_path, used=63 * 1024)
    (aio,) = kernel_limits(tmp_path)
    assert (aio.topic, aio.level) == ("fs.aio-max-nr", "warn")
    assert "1024 requests" in aio.value
    kernel(tmp_path, overcommit="2", reserved=GIB)
    assert [*kernel_limits(tmp_path)] == []
    kernel(tmp_path, overcommit="2", reserved=4 * GIB)
    (commit,) = kernel_limits(tmp_path)
    assert (commit.topic, commit.level) == ("vm.overcommit_memory", "warn")
    assert "4G" in commit.value
    assert "vm.overcommit_memory=0" in commit.advice
    kernel(tmp_path, overcommit="1", reserved=8 * GIB)
    assert [*kernel_limits(tmp_path)] == []
    assert [*kernel_limits(tmp_path / "none")] == []

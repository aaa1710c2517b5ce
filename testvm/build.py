"""Building an image: Debian with its kernel, ZFS compiled for that, and a disk to boot from.

The ZFS module is compiled without DKMS: that costs half of the time, and the compiler with
all its headers is left out of the disk.
"""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from lab.errors import CommandFailed, HostUnfit
from lab.imagebuild import bootstrap, isolate, kernel
from lab.imagebuild.tree import files
from lab.progress import Progress
from lab.run import require, run
from lab.units import GIB, format_size
from testvm.release import IMAGE, MODULE_SOURCE, PACKAGES, REMOVED, ROOT, Release, requirements

FORMAT = 1
"""Raised when an image changes in a way that the other inputs of its key do not show."""
SPACE_NEEDED = 4 * GIB
DISK = 12 * GIB
BLANK = 8 * GIB

_CHROOT = Path(__file__).with_name("chroot.sh")
_TOOLS = {"mmdebstrap": "mmdebstrap", "mke2fs": "e2fsprogs", "tar": "tar"}
_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_PLATFORMS = ("2_34", "2_28", "2_17", "2_12", "2_5")
"""The versions of glibc whose wheels both releases can load."""


@dataclass(frozen=True)
class _Job:
    release: Release
    out: Path
    log: Path
    progress: Progress

    @property
    def root(self) -> Path:
        return self.out / "rootfs"


def key(release: Release) -> str:
    """16 hexadecimal digits for what ``build`` would make of ``release`` here."""
    parts = {
        "format": FORMAT,
        "machine": platform.machine(),
        "release": asdict(release),
        "packages": _bootstrap_command(release, Path()),
        "python": [requirements(_pins()), _PLATFORMS],
        "scripts": [(file.path, _digest(file.content)) for file in files(IMAGE)],
        "disks": [REMOVED, DISK, BLANK],
    }
    return _digest(json.dumps(parts, sort_keys=True).encode())[:16]


def check_host(cache: Path) -> None:
    """Raise HostUnfit unless this host can build images below ``cache``."""
    for tool, package in _TOOLS.items():
        require(tool, package=package)
    if not _KEYRING.exists():
        raise HostUnfit(
            "Debian's archive keys are not installed",
            hint="install the package debian-archive-keyring",
        )
    cache.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(cache).free
    if free < SPACE_NEEDED:
        raise HostUnfit(
            f"building a test image needs {format_size(SPACE_NEEDED)} of free space, "
            f"{cache} has {format_size(free)}",
            hint="free some space, or set XDG_CACHE_HOME",
        )
    isolate.check()


def build(release: Release, out: Path, *, log: Path, progress: Progress) -> None:
    """Build ``release`` in the empty directory ``out``: disk.raw, blank.raw, kernel, initrd.

    What each step prints goes to ``log``. Raises HostUnfit (network, space or a permission is
    missing) or CommandFailed.
    """
    log.unlink(missing_ok=True)
    job = _Job(release, out, log, progress)
    try:
        with progress.step("packages", f"installing Debian {release.suite}"):
            _bootstrap(job)
        with progress.step("module", f"compiling ZFS {release.zfs}"):
            _inside(job, "zfs-module.sh", timeout=3600)
        with progress.step("python", "installing Python packages"):
            _install_python(job)
        with progress.step("disk", "making the disk"):
            _inside(job, "finish.sh", timeout=300)
            _extract_boot(job)
            _make_disk(job)
    except CommandFailed as error:
        raise _explain(job, error) from None


def _bootstrap(job: _Job) -> None:
    bootstrap.bootstrap(_bootstrap_command(job.release, job.root), job.log, job.progress)


def _bootstrap_command(release: Release, root: Path) -> list[str]:
    # Unpacked only: DKMS would compile it slowly, and keep all it needs for that.
    download = f'chroot "$1" sh -c "cd /var/tmp && apt-get download {MODULE_SOURCE}"'
    argv = bootstrap.command(root, release.suite, PACKAGES, customize=[download])
    return [argv[0], "--components=main,contrib", *argv[1:]]


def _inside(job: _Job, script: str, *, timeout: float) -> None:
    with job.log.open("ab") as log:
        run(
            [*_chroot(job), "sh", "-x", "-s"],
            timeout=timeout, stdin=(IMAGE / script).read_bytes(), log=log,
        )  # fmt: skip


def _chroot(job: _Job) -> list[str]:
    argv = isolate.isolated(network=False)
    return [*argv, "sh", str(_CHROOT), str(job.root)]


def _install_python(job: _Job) -> None:
    """The pinned packages, for the guest's Python, by the host's pip."""
    version = (job.root / "usr/bin/python3").readlink().name.removeprefix("python")
    pins = job.out / "requirements.txt"
    pins.write_text(requirements(_pins()))
    wheels = job.out / "python"
    argv = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "install"]
    argv += ["--quiet", "--no-compile", "--no-deps", "--only-binary=:all:", "--require-hashes"]
    argv += ["--implementation=cp", f"--python-version={version}", f"--target={wheels}"]
    argv += [f"--platform=manylinux_{glibc}_x86_64" for glibc in _PLATFORMS]
    argv += ["--platform=manylinux2014_x86_64", f"--requirement={pins}"]
    with job.log.open("ab") as log:
        run(argv, timeout=600, log=log)
        # Owned by the guest's root.
        within = isolate.isolated(network=False)
        run([*within, "cp", "-R", wheels, job.root / "opt/python"], timeout=120, log=log)
    shutil.rmtree(wheels)
    pins.unlink()


def _extract_boot(job: _Job) -> None:
    def unzstd(packed: bytes) -> bytes:
        unpacked = job.out / "unpacked"
        with unpacked.open("wb") as sink:
            run([*_chroot(job), "zstd", "-qdc"], timeout=60, stdin=packed, log=sink)
        content = unpacked.read_bytes()
        unpacked.unlink()
        return content

    boot = job.root / "boot"
    shutil.copyfile(boot / "initrd", job.out / "initrd")
    bzimage = next(boot.glob("vmlinuz-*")).read_bytes()
    (job.out / "kernel").write_bytes(kernel.pvh_kernel(bzimage, unzstd) or bzimage)


def _make_disk(job: _Job) -> None:
    within = isolate.isolated(network=False)
    with job.log.open("ab") as log:
        run([*within, "rm", "-rf", *(job.root / name for name in REMOVED)], timeout=120, log=log)
        run(
            [
                *within, "mke2fs", "-q", "-t", "ext4", "-d", job.root, "-m", "0", "-b", "4096",
                "-O", "^has_journal,^metadata_csum", "-E", "nodiscard,root_owner=0:0",
                job.out / "disk.raw", str(DISK // 4096),
            ],
            timeout=300, log=log,
        )  # fmt: skip
    with (job.out / "blank.raw").open("xb") as blank:
        blank.truncate(BLANK)
    isolate.remove_tree(job.root)


def _explain(job: _Job, error: CommandFailed) -> HostUnfit | CommandFailed:
    tail = job.log.read_bytes()[-16384:].decode(errors="replace") if job.log.exists() else ""
    if full := bootstrap.full_disk(tail):
        needed = format_size(SPACE_NEEDED)
        return HostUnfit("the disk is full", hint=f"a build needs {needed}", details=full[-3:])
    said = error.stderr or tail
    return CommandFailed(error.argv, error.status, stderr=said, hint=f"all of it is in {job.log}")


def _pins() -> str:
    return (ROOT / "packaging/requirements/dev.txt").read_text()


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()

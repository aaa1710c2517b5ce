"""Building an image: one recipe in, one directory with a bootable disk out."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from lab.config.enginefile import series_of
from lab.config.profile import VOLUMES, Layout
from lab.errors import CommandFailed, HostUnfit, RecipeFailed
from lab.imagebuild import added, bootstrap, disk, isolate, kernel, manifest, repository
from lab.imagebuild.manifest import BuiltImage
from lab.imagebuild.recipe import (
    GUEST,
    HERE,
    Guest,
    Recipe,
    all_packages,
    load_guest,
    shared,
)
from lab.imagebuild.tree import overlay_tar
from lab.imagebuild.trust import keyrings
from lab.progress import Progress
from lab.run import require, run
from lab.units import GIB, format_size
from lab.values import dataclass

SPACE_NEEDED = 5 * GIB
"""Bytes that must be free where an image is built."""

UNPACK_SECONDS = 600.0
"""Limit for unpacking an added build."""

PROVISION_SECONDS = 900.0
"""Limit for a provision script: in an emulated builder the first server start takes minutes."""

TOOLS = {
    "mmdebstrap": "mmdebstrap",
    "sgdisk": "gdisk",
    "mke2fs": "e2fsprogs",
    "e2fsck": "e2fsprogs",
    "debugfs": "e2fsprogs",
    "mkfs.vfat": "dosfstools",
    "mcopy": "mtools",
    "mmd": "mtools",
    "tar": "tar",
    "unshare": "util-linux",
    "setpriv": "util-linux",
}
"""The programs that every build needs, and the packages that they are in."""


@dataclass(frozen=True)
class _Job:
    """One build: what is built, where, and whom to tell."""

    recipe: Recipe
    guest: Guest
    out: Path
    log: Path
    progress: Progress
    mirror: str
    layout: Layout

    @property
    def root(self) -> Path:
        return self.out / "rootfs"

    @property
    def disks(self) -> dict[str, Path]:
        return {name: self.out / f"{name}.raw" for name in VOLUMES[self.layout]}


def build(
    recipe: Recipe,
    out: Path,
    *,
    layout: Layout,
    progress: Progress,
    log: Path,
    mirror: str = "",
) -> BuiltImage:
    """Build ``recipe`` in the empty directory ``out``; what each step prints goes to ``log``.

    Nothing outside of ``out`` and ``log`` is touched, and the content of ``out`` is valid only
    once this returns: publish it then, or remove it with ``isolate.remove_tree``. ``mirror``
    is a Debian mirror's URL; empty for the default.

    Raises HostUnfit (a tool, the network, space or a permission is missing), RecipeFailed (the
    recipe's own repository), CommandFailed (a step failed; with the log's last lines), Conflict (an
    added build was replaced meanwhile) or InvalidSpec.
    """
    job = _Job(recipe, load_guest(), out, log, progress, mirror, layout)
    check_host(recipe, out)
    try:
        with progress.step("bootstrap", f"installing {recipe.engine} on Debian {recipe.suite}"):
            _bootstrap(job)
        with progress.step("provision", f"initialising {recipe.engine}"):
            lay_out(job.recipe, job.root, job.log)
            for directory in (GUEST, job.recipe.directory):
                provision(directory, job.root, job.log)
        with progress.step("disk", f"making a disk of {format_size(recipe.disk)}"):
            _extract_kernel(job)
            if job.layout == "split":
                _make_data_disks(job)
            _make_boot_disk(job)
        with progress.step("verify", "checking the disk"):
            return _verify(job)
    except CommandFailed as error:
        raise _explain(job, error) from None
    except OSError as error:
        raise HostUnfit(f"cannot write the image: {error}", hint=_space(out)) from None


def tools(recipe: Recipe) -> dict[str, str]:
    """The programs that are needed to build ``recipe``, and the packages that they are in."""
    return {**TOOLS, "gpg": "gpg"} if recipe.repository else TOOLS


def check_host(recipe: Recipe, out: Path) -> None:
    """Raise HostUnfit unless this host can build ``recipe`` in ``out``."""
    for tool, package in tools(recipe).items():
        require(tool, package=package)
    free = shutil.disk_usage(out).free
    if free < SPACE_NEEDED:
        raise HostUnfit(
            f"an image build needs {format_size(SPACE_NEEDED)} of free space, "
            f"{out} has {format_size(free)}",
            hint="free some space, or keep images elsewhere",
        )
    isolate.check(recipe.name)


def _bootstrap(job: _Job) -> None:
    setup, customize = [], []
    if job.recipe.repository:
        setup = repository.setup_hooks(job.recipe.repository, job.out)
        customize = repository.customize_hooks(job.recipe.repository)
    setup += bootstrap.occupy(job.recipe.occupied)
    packages = all_packages(job.recipe, job.guest)
    argv = bootstrap.command(
        job.root,
        job.recipe.suite,
        packages,
        mirror=job.mirror,
        keyrings=keyrings(job.out),
        setup=setup,
        customize=customize,
    )
    own = job.recipe.repository.urls if job.recipe.repository else ()
    bootstrap.bootstrap(argv, job.log, job.progress, own)


def lay_out(recipe: Recipe, root: Path, log: Path) -> None:
    """Put into a root file system what its packages do not have: an added build, and our files.

    Raises Conflict if the build is not the one any more that ``recipe`` has read.
    """
    unpack = ["tar", "-xp", "--no-overwrite-dir", "--no-same-owner"]
    with log.open("ab") as sink:
        isolated = isolate.isolated(network=False)
        if recipe.build is not None:
            place = root / added.BASE.lstrip("/")
            run([*isolated, "mkdir", "-p", place], timeout=60, log=sink)
            with added.opened(recipe.build) as file:
                source = ("-zf", f"/dev/fd/{file.fileno()}", "-C", place)
                run([*isolated, *unpack, *source], timeout=UNPACK_SECONDS, log=sink,
                    keep=[file.fileno()])  # fmt: skip
            links = added.overlay(recipe.build, recipe.config)
            run([*isolated, *unpack, "-f", "-", "-C", root], timeout=60, stdin=links, log=sink)
        archive = overlay_tar([*shared(recipe), recipe.directory])
        run([*isolated, *unpack, "-f", "-", "-C", root], timeout=60, stdin=archive, log=sink)


def provision(directory: Path, root: Path, log: Path) -> None:
    """Run the script of a recipe in a root file system, of which it sees nothing but that."""
    script = (directory / "provision").read_bytes()
    with log.open("ab") as sink:
        argv = [*isolate.contained(root), "sh", "-x", "-s"]
        run(argv, timeout=PROVISION_SECONDS, stdin=script, log=sink)


def own(root: Path, name: str) -> Path:
    """A file or directory of a root file system in which programs of strangers have run.

    Raises RecipeFailed if it is something else now, such as a link to a file of this machine.
    """
    path = root / name
    whole = Path(os.path.realpath(path))
    if not whole.is_relative_to(os.path.realpath(root)) or not (whole.is_file() or whole.is_dir()):
        raise RecipeFailed(
            f"/{name} of the image leads out of it, or is not there, since its programs have run",
            hint="what the programs did is in the log of the build",
        )
    return path


def _extract_kernel(job: _Job) -> None:
    def unzstd(packed: bytes) -> bytes:
        # By the guest's own program: the host need not have one.
        unpacked = job.out / "unpacked"
        with unpacked.open("wb") as sink:
            run([*isolate.contained(job.root), "zstd", "-qdc"], timeout=60, stdin=packed, log=sink)
        kernel = unpacked.read_bytes()
        unpacked.unlink()
        return kernel

    shutil.copyfile(own(job.root, "boot/initrd"), job.out / "initrd")
    bzimage = _kernel_of(job).read_bytes()
    (job.out / "kernel").write_bytes(kernel.pvh_kernel(bzimage, unzstd) or bzimage)


def _kernel_of(job: _Job) -> Path:
    found = next(own(job.root, "boot").glob("vmlinuz-*"))
    return own(job.root, f"boot/{found.name}")


def _make_data_disks(job: _Job) -> None:
    """Move the data directory, and its logs, onto disks of their own."""
    recipe = job.recipe
    sizes = {"data": recipe.disk, "log": disk.LOG_SIZE}
    sectors = str(recipe.disk // disk.SECTOR)
    owner = _account(job)
    # The script moves the first, and writes into the others.
    own(job.root, "var/lib/mysql")
    for name in ("etc", "etc/lab", "etc/lab/data-sectors", "var/lib/mysqllog"):
        if os.path.lexists(job.root / name):
            own(job.root, name)
    script = HERE / "split.sh"
    with job.log.open("ab") as log:
        split = ["sh", str(script), str(job.root), str(job.out), sectors, *recipe.log_files]
        run([*isolate.isolated(network=False), *split], timeout=60, log=log)
        for name, size in sizes.items():
            tree = job.out / f"{name}.tree"
            disk.fill_plain(job.disks[name], size, tree, f"lab-{name}", owner, log)
            isolate.remove_tree(tree)


def _make_boot_disk(job: _Job) -> None:
    entry = job.out / "lab.conf"
    entry.write_text(
        f"title lab\nlinux /lab/vmlinuz\ninitrd /lab/initrd\noptions {job.guest.cmdline}\n"
    )
    loader = job.out / "loader.conf"
    loader.write_text("timeout 0\ndefault lab.conf\neditor no\n")
    on_esp = {
        "EFI/BOOT/BOOTX64.EFI": own(job.root, "usr/lib/systemd/boot/efi/systemd-bootx64.efi"),
        "loader/loader.conf": loader,
        "loader/entries/lab.conf": entry,
        "lab/vmlinuz": _kernel_of(job),
        "lab/initrd": job.out / "initrd",
    }
    esp = job.out / "esp.fat"
    with job.log.open("ab") as log:
        boot = job.disks["os"]
        disk.partition(boot, job.recipe.disk, log)
        disk.fill_root(boot, job.recipe.disk, job.root, log)
        disk.fill_esp(boot, esp, on_esp, log)
    for scratch in (esp, entry, loader):
        scratch.unlink()


def _verify(job: _Job) -> BuiltImage:
    with job.log.open("ab") as log:
        for name, path in job.disks.items():
            (disk.verify if name == "os" else disk.verify_plain)(path, log)
    image = _describe(job)
    manifest.write(image)
    isolate.remove_tree(job.root)
    return image


def _describe(job: _Job) -> BuiltImage:
    recipe = job.recipe
    own(job.root, "var/lib/dpkg/status")
    packages = manifest.installed(job.root)
    uid, gid = _account(job)
    kernel_file, initrd = job.out / "kernel", job.out / "initrd"
    return BuiltImage(
        recipe=recipe.name,
        disks=job.disks,
        kernel=kernel_file,
        initrd=initrd,
        cmdline=job.guest.cmdline,
        engine=recipe.engine,
        engine_version=engine_version(recipe, packages),
        size=recipe.disk,
        user=recipe.user,
        uid=uid,
        gid=gid,
        service=recipe.service,
        config=recipe.config,
        packages=packages,
        digests={
            file.name: manifest.digest(file) for file in (*job.disks.values(), kernel_file, initrd)
        },
        option_file=(recipe.directory / "my.cnf").read_text(encoding="utf-8"),
    )


def _account(job: _Job) -> tuple[int, int]:
    own(job.root, "etc/passwd")
    return manifest.account(job.root, job.recipe.user)


def engine_version(recipe: Recipe, packages: Mapping[str, str]) -> str:
    """The engine's version, which is of its recipe's series: repositories move on."""
    if recipe.build is not None:
        return recipe.build.version
    version, series = manifest.upstream(packages[recipe.version_package]), series_of(recipe.name)
    if series and not f"{version}.".startswith(f"{series}."):
        raise RecipeFailed(
            f"the repository has version {version} of {recipe.version_package}, and the recipe"
            f" {recipe.name} is for the series {series}",
            hint="request another series; `lab engine ls` lists them",
        )
    return version


def _explain(job: _Job, error: CommandFailed) -> HostUnfit | CommandFailed:
    tail = job.log.read_bytes()[-16384:].decode(errors="replace") if job.log.exists() else ""
    lines = [line for line in tail.splitlines() if line.strip()][-10:]
    if full := bootstrap.full_disk(tail):
        return HostUnfit("the disk is full", hint=_space(job.out), details=full[-3:])
    output = error.stderr or "\n".join(lines)
    return CommandFailed(
        error.argv, error.status, stderr=output, hint=f"the whole build log is {job.log}"
    )


def _space(out: Path) -> str:
    free = shutil.disk_usage(out).free
    return f"{out} has {format_size(free)} left; a build needs {format_size(SPACE_NEEDED)}"

"""Building an image in a guest, for hosts that cannot do it themselves.

The guest, a builder, boots a vendor's cloud image. Its seed brings it the same program that builds
images on this host, so the result is the same; it comes back as an archive on a disk of its own,
and is looked at as anything from outside is.
"""

from __future__ import annotations

import io
import os
import shutil
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from lab.config.profile import VOLUMES, Layout
from lab.errors import HostUnfit, InvalidSpec, LabError
from lab.guest import network, nocloud, seed
from lab.hypervisor import Disk, FirmwareBoot, GuestSpec, Hypervisor, Network
from lab.imagebuild.build import tools
from lab.imagebuild.in_guest import result as guest_result
from lab.imagebuild.manifest import BuiltImage
from lab.imagebuild.recipe import HERE, RECIPES, Recipe
from lab.imagebuild.tree import files
from lab.names import GuestName, Owner
from lab.paths import REACHABLE, Home, make_directory, writing
from lab.progress import Progress
from lab.sizes import NodeSize
from lab.storage import sparse
from lab.units import GIB, MIB, format_size
from lab.values import dataclass
from lab.wait import Deadline, attempts

RESULT = "lab-result"
"""The serial number of the disk for what was built (lab/imagebuild/builder.sh)."""

SPACE_NEEDED = 5 * GIB
"""Bytes that must be free: for what the builder writes to its disk, and the image twice."""

NO_BUILDER = "a builder is not given builds that were added to the home"
_SECONDS = 3600.0
"""What a builder may take: minutes, but an emulated one with a slow line half an hour."""
SIZE = NodeSize(memory=2 * GIB, cpus=2)
"""Of a builder."""
_ROOM = 12 * GIB
"""Of the builder's own disk, at least: the tree, the disk made of it, the tools."""
_SECTOR = 512
_GPT = b"EFI PART"


@dataclass(frozen=True)
class Builder:
    """Builds images in guests of ``hypervisor``; ``cloud_image``: a vendor's, a raw disk."""

    cloud_image: Path
    home: Home
    hypervisor: Hypervisor

    def build(
        self, recipe: Recipe, out: Path, *, layout: Layout, progress: Progress, log: Path
    ) -> BuiltImage:
        """Build an image in a guest; raises as ``imagebuild.build`` and hypervisors do."""
        if recipe.build is not None:
            raise HostUnfit(
                f"{recipe.name} cannot be built in a guest: {NO_BUILDER}",
                hint="build its image on a host with mmdebstrap, `lab image export` it there, and"
                " `lab image import` it here",
            )
        check_cloud_image(self.cloud_image)
        _check_space(out)
        scratch = make_directory(out / "builder", REACHABLE)
        owner = Owner("image", out.name)
        guest = self._guest(owner, scratch)
        result = guest.disks[1].path
        with progress.step("prepare", f"copying {self.cloud_image.name}"), writing(scratch):
            self._write_disks(guest, recipe, layout)
        with progress.step("builder", f"building in a guest of {self.cloud_image.name}"):
            self._run(guest, progress)
        with progress.step("collect", "reading what the builder made"):
            return guest_result.read(result, out, recipe, layout, log)

    def _guest(self, owner: Owner, scratch: Path) -> GuestSpec:
        # The same image may be built in two homes at once.
        name = GuestName(f"lab-b.{self.home.id}.{owner.name[-12:]}")
        paths = [(scratch / f"{disk}.raw", f"lab-{disk}") for disk in ("os", "result")]
        return GuestSpec(
            name=name,
            tags={"home": self.home.id, "owner": str(owner), "node": "builder"},
            memory=SIZE.memory,
            cpus=SIZE.cpus,
            disks=(
                *(Disk(path, "raw", serial) for path, serial in paths),
                Disk(scratch / "seed.img", "raw", seed.SERIAL, readonly=True),
            ),
            network=Network(network.outer_mac(1), "", (), 0, uplink=True),
            boot=FirmwareBoot(),
            console_log=self.home.console_log(name),
        )

    def _write_disks(self, guest: GuestSpec, recipe: Recipe, layout: Layout) -> None:
        system, result, seed_disk = (disk.path for disk in guest.disks)
        sparse.copy(self.cloud_image, system)
        os.truncate(system, max(_ROOM, system.stat().st_size))
        with result.open("xb") as file:
            file.truncate(len(VOLUMES[layout]) * recipe.disk + GIB)
        _write_seed(seed_disk, recipe, layout, guest.name)
        for path in (system, result, seed_disk):
            path.chmod(0o600)
            if self.hypervisor.run_as is not None:
                os.chown(path, *self.hypervisor.run_as)

    def _run(self, guest: GuestSpec, progress: Progress) -> None:
        """Start the builder and wait until it switched itself off; it is removed afterwards."""
        try:
            self.hypervisor.start(guest)
            for _ in attempts(Deadline.after(_SECONDS), first=1.0, most=2.0):
                progress.halt()
                found = self.hypervisor.guests().get(guest.name)
                if found is None:
                    return
                if found.state == "paused":  # nothing would resume it
                    raise HostUnfit(f"the builder was paused: {found.why or 'by somebody'}")
            raise HostUnfit(
                f"the builder did not end within {_SECONDS / 60:g} minutes",
                hint="is the mirror slow? the last lines of the builder's console are below",
                details=_last(guest.console_log),
            )
        finally:
            with suppress(LabError):
                self.hypervisor.stop(guest.name, force=True)
                self.hypervisor.forget([guest.name])
            guest.console_log.unlink(missing_ok=True)


def _check_space(out: Path) -> None:
    free = shutil.disk_usage(out).free
    if free < SPACE_NEEDED:
        raise HostUnfit(
            f"building in a guest needs {format_size(SPACE_NEEDED)} of free space, "
            f"{out} has {format_size(free)}",
            hint="free some space, or keep images elsewhere",
        )


def check_cloud_image(path: Path) -> None:
    """Raise InvalidSpec unless ``path`` can be a cloud image that boots by firmware."""
    try:
        with path.open("rb") as file:
            head = file.read(_SECTOR + len(_GPT))
    except OSError as error:
        raise InvalidSpec(
            f"the cloud image {path} cannot be read: {error.strerror}",
            hint="the setting builder names it; Debian's is called genericcloud, with the end .raw",
        ) from None
    if head[:4] == b"QFI\xfb":
        raise InvalidSpec(
            f"{path} is in the format qcow2",
            hint=f"qemu-img convert -O raw {path} {path.with_suffix('.raw')}",
        )
    if head[_SECTOR:] != _GPT:
        raise InvalidSpec(
            f"{path} is no disk with a GPT, as cloud images for firmware (UEFI) are",
            hint="it must be a raw disk, unpacked: Debian's is called genericcloud",
        )


def _write_seed(path: Path, recipe: Recipe, layout: Layout, instance: str) -> None:
    job = f"RECIPE={recipe.name}\nLAYOUT={layout}\nMIRROR=\n"
    packages = "".join(f"{tool} {package}\n" for tool, package in tools(recipe).items())
    script = (HERE / "builder.sh").read_bytes()
    beside = {"lab.tar": build_program(), "job": job.encode(), "tools": packages.encode()}
    nocloud.write(path, script, beside, instance=instance)


def build_program() -> bytes:
    """A tar archive of ``lab`` and of the recipes, as far as a builder needs them."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path, mode, content in _sources():
            info = tarfile.TarInfo(path)
            info.mode, info.size = mode, len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def _sources() -> Iterator[tuple[str, int, bytes]]:
    for file in files(HERE.parent):
        if file.path.endswith(".py") or Path(file.path).parts[0] == HERE.name:
            yield f"lab/{file.path}", file.mode, file.content
    for file in files(RECIPES):
        yield f"lab/{RECIPES.name}/{file.path}", file.mode, file.content


def _last(log: Path) -> list[str]:
    with suppress(OSError):
        text = log.read_bytes()[-4 * MIB :].decode(errors="replace")
        return [line.strip() for line in text.splitlines() if line.strip()][-10:]
    return []

"""A disk like a vendor's cloud image: UEFI, a GPT, Debian with cloud-init that looks for NoCloud.

As vendors' do, it knows nothing of labs: its own kernel and initial RAM disk, DHCP, cloud-init's
defaults. It also has the tools of a builder, which a builder otherwise installs.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from lab.imagebuild import bootstrap, disk, isolate
from lab.imagebuild.recipe import load
from lab.imagebuild.trust import keyrings
from lab.progress import Progress
from lab.run import run
from lab.units import GIB

SIZE = 4 * GIB
PACKAGES = (
    "systemd", "systemd-sysv", "systemd-resolved", "udev", "dbus", "linux-image-cloud-amd64",
    "initramfs-tools", "systemd-boot-efi", "cloud-init", "cloud-guest-utils", "python3", "iproute2",
    "ca-certificates", "apt", "e2fsprogs", "fdisk", "zstd",
)  # fmt: skip
TOOLS = ("mmdebstrap", "gdisk", "dosfstools", "mtools", "tar")
CMDLINE = "root=LABEL=lab-root ro console=ttyS0 mitigations=off"
_FINISH = """\
systemctl enable systemd-networkd systemd-resolved
rm -f /etc/resolv.conf /etc/hostname
ln -s ../run/systemd/resolve/stub-resolv.conf /etc/resolv.conf
echo 'LABEL=lab-root / ext4 rw 0 1' >/etc/fstab
"""


def make(directory: Path, suite: str) -> Path:
    """Make the disk in ``directory``; its path."""
    root, log = directory / "root", directory / "log"
    argv = bootstrap.command(
        root,
        suite,
        [*PACKAGES, *TOOLS],
        keyrings=keyrings(directory),
        customize=[f'chroot "$1" sh -ec {shlex.quote(_FINISH)}'],
    )
    # Unlike in a lab's image, an initial RAM disk is made.
    argv = ["env", "INITRD=Yes", *argv]
    bootstrap.bootstrap(argv, log, Progress())
    path = directory / "cloud.raw"
    entry = directory / "entry.conf"
    entry.write_text(f"title Debian\nlinux /vmlinuz\ninitrd /initrd\noptions {CMDLINE}\n")
    loader = directory / "loader.conf"
    loader.write_text("timeout 0\n")
    on_esp = {
        "EFI/BOOT/BOOTX64.EFI": root / "usr/lib/systemd/boot/efi/systemd-bootx64.efi",
        "loader/loader.conf": loader,
        "loader/entries/debian.conf": entry,
        "vmlinuz": next((root / "boot").glob("vmlinuz-*")),
        "initrd": next((root / "boot").glob("initrd.img-*")),
    }
    with log.open("ab") as sink:
        disk.partition(path, SIZE, sink)
        disk.fill_root(path, SIZE, root, sink)
        disk.fill_esp(path, directory / "esp.fat", on_esp, sink)
        run(["sgdisk", "--verify", path], timeout=60, log=sink)
    (directory / "esp.fat").unlink()
    isolate.remove_tree(root)
    return path


if __name__ == "__main__":
    sys.stdout.write(f"{make(Path(sys.argv[1]), load('mariadb').suite)}\n")

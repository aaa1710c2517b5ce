"""A built image boots: by its kernel directly, and by firmware from its own ESP.

Needs QEMU, and an image: ``LAB_TEST_IMAGE`` names a directory with a built one, otherwise
it is that of the shared installation.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from string import Template
from typing import Any

import pytest

from lab.guest.seed import SeedFile, pack
from lab.imagebuild import manifest
from lab.imagebuild.manifest import BuiltImage
from lab.imagebuild.recipe import load
from lab.units import GIB
from lab.wait import Deadline, attempts
from tests.e2e.e2e_site import Site

pytestmark = [pytest.mark.e2e, pytest.mark.rare]

BOOT_TIMEOUT = 120.0
STOP_TIMEOUT = 60.0
OVMF = ("/usr/share/OVMF/OVMF_CODE.fd", "/usr/share/OVMF/OVMF_CODE_4M.fd")
MAC = "52:54:00:4c:00:01"
_CPUS = {"tcg": "max,cx16=off", "kvm": "host"}


@pytest.fixture(scope="module")
def built(request: pytest.FixtureRequest) -> BuiltImage:
    """The image of the installation that the end-to-end tests share, or a ready one."""
    if ready := os.environ.get("LAB_TEST_IMAGE"):
        return manifest.read(Path(ready))
    site: Site = request.getfixturevalue("image")
    key = site.lab("image", "show", "mariadb", "-o", "json").json["key"]
    found = manifest.read(site.home.image(key))
    disk = site.home.storage / "images" / key / "base" / "os" / "base.raw"
    return replace(found, disks={"os": disk})


def seed(directory: Path, image: BuiltImage) -> Path:
    """The seed disk of a cluster of one."""
    my_cnf = Template((load(image.recipe).directory / "my.cnf").read_text()).substitute(
        server_id=1, buffer_pool="192M", node_address="127.0.0.1", node_name="n1",
        cluster_name="lab", cluster_address="gcomm://", log_directory="/var/lib/mysql",
        flush_method="O_DIRECT", flush_log=1, doublewrite="ON", io_capacity=200,
    )  # fmt: skip
    network = (
        f"OUTER_MAC={MAC}\nOUTER_ADDRESS=10.0.2.15/24\nOUTER_GATEWAY=10.0.2.2\n"
        "INNER_MAC=none\nINNER_ADDRESS=none\n"
    )
    path = directory / "seed.tar"
    path.write_bytes(
        pack(
            {
                "/etc/hostname": SeedFile(b"n1\n"),
                "/etc/lab/network": SeedFile(network.encode()),
                image.config: SeedFile(my_cnf.encode()),
            }
        )
    )
    return path


@dataclass
class Machine:
    """A running QEMU with its sockets in ``directory``."""

    process: subprocess.Popen[bytes]
    directory: Path
    port: int

    def greeting(self) -> bytes:
        """The database's first packet, through the forwarded port."""
        for _ in attempts(Deadline.after(BOOT_TIMEOUT), first=0.1):
            self.alive()
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=2) as link:
                    if len(data := link.recv(128)) > 5:
                        return data
            except OSError:
                pass
        raise AssertionError(f"no database after {BOOT_TIMEOUT} s:\n{self.console()}")

    def run(self, *argv: str) -> str:
        """What ``argv`` prints in the guest, by the guest agent."""
        call = {"path": argv[0], "arg": list(argv[1:]), "capture-output": True}
        pid = self.agent("guest-exec", **call)["pid"]
        for _ in attempts(Deadline.after(30)):
            status = self.agent("guest-exec-status", pid=pid)
            if status["exited"]:
                out = base64.b64decode(status.get("out-data", "")).decode()
                err = base64.b64decode(status.get("err-data", "")).decode()
                assert status["exitcode"] == 0, err
                return out
        raise AssertionError(f"{argv} did not end")

    def agent(self, command: str, **arguments: object) -> Any:
        return self._ask("agent", {"execute": command, "arguments": arguments})

    def qmp(self, command: str) -> None:
        with socket.socket(socket.AF_UNIX) as link:
            link.settimeout(10)
            link.connect(str(self.directory / "qmp"))
            lines = link.makefile("rwb")
            lines.readline()
            for each in ("qmp_capabilities", command):
                lines.write(json.dumps({"execute": each}).encode() + b"\n")
                lines.flush()
                lines.readline()

    def ended(self) -> bool:
        """Whether the machine switches itself off in time."""
        try:
            return self.process.wait(STOP_TIMEOUT) == 0
        except subprocess.TimeoutExpired:
            return False

    def alive(self) -> None:
        assert self.process.poll() is None, self.console()
        for cry in ("Kernel panic", "lab: no root"):
            assert cry not in self.console(), self.console()

    def console(self) -> str:
        log = self.directory / "console.log"
        return log.read_text(errors="replace")[-6000:] if log.exists() else ""

    def prompt(self, *, timeout: float) -> bool:
        """Whether a shell answers on the serial console."""
        with socket.socket(socket.AF_UNIX) as link:
            link.settimeout(1)
            link.connect(str(self.directory / "console"))
            seen = b""
            for _ in attempts(Deadline.after(timeout), first=0.5):
                link.sendall(b"echo lab$((40 + 2))\n")
                try:
                    seen += link.recv(4096)
                except TimeoutError:
                    continue
                if b"lab42" in seen:
                    return True
        return False

    def _ask(self, name: str, message: object) -> Any:
        with socket.socket(socket.AF_UNIX) as link:
            link.settimeout(30)
            link.connect(str(self.directory / name))
            lines = link.makefile("rwb")
            lines.write(json.dumps(message).encode() + b"\n")
            lines.flush()
            answer = json.loads(lines.readline())
        assert "return" in answer, answer
        return answer["return"]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def machine(
    image: BuiltImage, directory: Path, how: Sequence[str], disk: Path, accelerator: str = "tcg"
) -> Iterator[Machine]:
    """A guest with ``disk``, started as ``how`` says; always ended at the end."""
    for tool in ("qemu-system-x86_64", "qemu-img"):
        if not shutil.which(tool):
            pytest.skip(f"{tool} is not installed")
    port = free_port()
    disk_format = "qcow2" if disk.suffix == ".qcow2" else "raw"
    console = f"socket,id=console,path={directory}/console,server=on,wait=off"
    argv = [
        "qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none",
        "-machine", f"q35,accel={accelerator}", "-cpu", _CPUS[accelerator], "-m", "768", *how,
        "-drive", f"file={disk},format={disk_format},if=none,id=os,snapshot=on",
        "-device", "virtio-blk-pci,drive=os,serial=lab-os,bootindex=1",
        "-drive", f"file={seed(directory, image)},format=raw,if=none,id=seed,readonly=on",
        "-device", "virtio-blk-pci,drive=seed,serial=lab-seed",
        "-netdev", f"user,id=net,restrict=on,hostfwd=tcp:127.0.0.1:{port}-:3306",
        "-device", f"virtio-net-pci,netdev=net,mac={MAC},romfile=",
        "-device", "virtio-rng-pci", "-device", "virtio-serial-pci",
        "-chardev", f"socket,id=agent,path={directory}/agent,server=on,wait=off",
        "-device", "virtserialport,chardev=agent,name=org.qemu.guest_agent.0",
        "-chardev", f"{console},logfile={directory}/console.log",
        "-serial", "chardev:console",
        "-qmp", f"unix:{directory}/qmp,server=on,wait=off",
    ]  # fmt: skip
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL)
    try:
        yield Machine(process, directory, port)
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def short() -> Iterator[Path]:
    """A directory whose path leaves room for the name of a unix socket (108 bytes)."""
    with tempfile.TemporaryDirectory(prefix="lab-boot-", dir="/tmp") as path:
        yield Path(path)


def direct(image: BuiltImage) -> list[str]:
    return [
        "-kernel", str(image.kernel), "-initrd", str(image.initrd), "-append", image.cmdline
    ]  # fmt: skip


def test_direct_boot_on_a_grown_disk(built: BuiltImage, short: Path) -> None:
    """The fast path: SQL answers, the file system fills a larger disk, the agent stops it."""
    disk = short / "grown.qcow2"
    size = built.size + 4 * GIB
    subprocess.run(
        [
            "qemu-img",
            "create",
            "-q",
            "-f",
            "qcow2",
            "-b",
            built.disks["os"],
            "-F",
            "raw",
            disk,
            str(size),
        ],
        check=True,
    )
    began = time.monotonic()
    with machine(built, short, direct(built), disk) as guest:
        assert b"MariaDB" in guest.greeting()
        print(f"greeting after {time.monotonic() - began:.1f} s")  # noqa: T201
        root = guest.run("/usr/bin/stat", "-f", "-c", "%S %b", "/").split()
        assert int(root[0]) * int(root[1]) > size - GIB // 2
        assert "mariadbd" in guest.run("/usr/bin/journalctl", "-u", "mariadb", "--no-pager")
        assert guest.run("/usr/bin/hostname").strip() == "n1"
        assert guest.prompt(timeout=30)
        # What a boot may look like to the server: systemd-tmpfiles can be later than it.
        again = "systemctl stop mariadb && rm -rf /run/mysqld && systemctl start mariadb"
        guest.run("/bin/sh", "-c", again)
        failed = guest.run("/usr/bin/systemctl", "--failed", "--plain", "--no-legend")
        assert failed == ""
        with pytest.raises((AssertionError, ValueError, OSError)):
            guest.agent("guest-shutdown")  # does not answer: the guest is gone
        assert guest.ended(), guest.console()


def test_firmware_boot(built: BuiltImage, short: Path) -> None:
    """What bhyve does: firmware, boot loader, the same command line; the power button works."""
    boots_by_firmware(built, short, "tcg")


def boots_by_firmware(built: BuiltImage, short: Path, accelerator: str) -> None:
    """Skips without firmware."""
    firmware = next((path for path in OVMF if Path(path).exists()), None)
    if firmware is None:
        pytest.skip("OVMF is not installed (package ovmf)")
    variables = short / "vars.fd"
    shutil.copyfile(firmware.replace("CODE", "VARS"), variables)
    how = [
        "-drive", f"if=pflash,format=raw,readonly=on,file={firmware}",
        "-drive", f"if=pflash,format=raw,file={variables}",
    ]  # fmt: skip
    with machine(built, short, how, built.disks["os"], accelerator) as guest:
        assert b"MariaDB" in guest.greeting()
        cmdline = guest.run("/usr/bin/cat", "/proc/cmdline").split()
        assert [word for word in cmdline if not word.startswith("initrd=")] == built.cmdline.split()
        guest.run("/usr/bin/test", "-d", "/sys/firmware/efi")
        guest.qmp("system_powerdown")
        assert guest.ended(), guest.console()

"""``vm _run`` of the double of vm-bhyve, with a real guest: what bhyve would run, QEMU runs.

From the guest's vm-bhyve configuration, and from nothing else, it makes the machine that lib/vm-run
makes of it for bhyve(8): UEFI firmware, virtio-blk disks in their order with their serial numbers,
virtio-net cards on the switches' bridges, virtio console ports at sockets of the same names, a
serial port, a random number generator. ``networking``: with ``net`` in rc.json, bridges and taps
are real ones of the network namespace in which ``vm`` runs.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
from lab.hypervisor.libvirt.probe import tsc_khz
from tests.contract import vm_double_run
from tests.contract.vm_double import Machine

FIRMWARE = "/usr/local/share/uefi-firmware/BHYVE_UEFI.fd"
_PR_SET_PDEATHSIG = 1


class Qemu(vm_double_run.Bhyve):
    """The process ``bhyve: NAME``, which has a QEMU."""

    def run(self) -> int:
        self._m.vmm(self._name).touch()
        for signal_ in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(signal_, lambda got, _frame: self._signals.append(got))
        with self._taps() as taps:
            qemu = subprocess.Popen(
                [*self._machine(), *self._disks(), *self._cards(taps), *self._ports()],
                stdin=subprocess.DEVNULL,
                preexec_fn=_end_with_us,  # noqa: PLW1509  there are no threads here
            )
            title = self._m.root / "proc" / str(os.getpid())
            title.write_text(f"bhyve: {self._name}")
            while qemu.poll() is None:
                time.sleep(0.02)
                for signal_ in (signal.SIGTERM, signal.SIGUSR1):
                    if signal_ in self._signals:
                        self._signals.remove(signal_)
                        self._qmp("quit" if signal_ == signal.SIGUSR1 else "system_powerdown")
        return vm_double_run.FAILED if qemu.returncode else vm_double_run.POWERED_OFF

    @property
    def _directory(self) -> Path:
        return self._m.vm_dir / self._name

    def _machine(self) -> list[str]:
        assert self._conf["loader"] == "uefi"
        assert self._conf["utctime"] == "yes"
        khz = tsc_khz(Path("/proc/cpuinfo").read_text())  # bhyve's guests have no need of it
        return [
            "qemu-system-x86_64", "-name", self._name, "-nodefaults", "-no-user-config",
            "-display", "none", "-machine", "q35", "-accel", "tcg", "-cpu", "max,cx16=off",
            "-smp", self._conf["cpu"], "-m", self._conf["memory"], "-uuid", self._conf["uuid"],
            "-bios", FIRMWARE, "-rtc", "base=utc", "-no-reboot",
            "-serial", f"file:{self._directory}/com1", "-device", "virtio-rng-pci",
            "-qmp", f"unix:{self._directory}/qmp,server=on,wait=off",
            "-smbios", f"type=11,value=io.systemd.boot.kernel-cmdline-extra=tsc_early_khz={khz}",
        ]  # fmt: skip

    def _disks(self) -> Iterator[str]:
        for number in self._devices("disk"):
            disk = f"disk{number}"
            assert self._conf[f"{disk}_dev"] == "custom"
            path, kind = self._conf[f"{disk}_name"], self._conf[f"{disk}_type"]
            options = self._conf[f"{disk}_opts"].split(",")
            # The path needs no escapes: the driver refuses those with commas.
            drive = f"file={path},format=raw,if=none,id={disk}"
            drive += ",readonly=on" if "ro" in options else ""
            drive += ",cache=none" if "nocache" in options else ""
            (serial,) = (word[4:] for word in options if word.startswith("ser="))
            yield from ("-drive", drive)
            device = {"virtio-blk": "virtio-blk-pci", "nvme": "nvme"}[kind]
            yield from ("-device", f"{device},drive={disk},serial={serial},bootindex={number}")

    def _cards(self, taps: list[str]) -> Iterator[str]:
        for number, tap in enumerate(taps):
            mac = self._conf[f"network{number}_mac"]
            assert self._conf[f"network{number}_type"] == "virtio-net"
            yield from ("-netdev", f"tap,id=net{number},ifname={tap},script=no,downscript=no")
            yield from ("-device", f"virtio-net-pci,netdev=net{number},mac={mac},romfile=")

    def _ports(self) -> Iterator[str]:
        yield from ("-device", "virtio-serial-pci")
        for number in range(16):
            if name := self._conf.get(f"virt_console{number}"):
                path = self._directory / f"vtcon.{name}"
                yield from ("-chardev", f"socket,id=port{number},path={path},server=on,wait=off")
                yield from ("-device", f"virtserialport,chardev=port{number},name={name}")

    def _devices(self, kind: str) -> Iterator[int]:
        number = 0
        while f"{kind}{number}_type" in self._conf:
            yield number
            number += 1

    @contextlib.contextmanager
    def _taps(self) -> Iterator[list[str]]:
        taps = [f"t{os.getpid()}-{number}" for number in self._devices("network")]
        try:
            for number, tap in enumerate(taps):
                bridge = self._m.bridge(self._conf[f"network{number}_switch"])
                _ip("tuntap", "add", tap, "mode", "tap")
                _ip("link", "set", tap, "master", bridge, "up")
            yield taps
        finally:
            for tap in taps:
                _ip("link", "delete", tap, check=False)

    def _qmp(self, command: str) -> None:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as link:
            link.settimeout(5)
            link.connect(str(self._directory / "qmp"))
            lines = link.makefile("rwb")
            lines.readline()
            for each in ("qmp_capabilities", command):
                lines.write(json.dumps({"execute": each}).encode() + b"\n")
                lines.flush()
                lines.readline()


def _end_with_us() -> None:
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _ip(*arguments: str, check: bool = True) -> None:
    subprocess.run(["ip", *arguments], check=check, stderr=None if check else subprocess.DEVNULL)


def main(root: str, name: str) -> int:
    return vm_double_run.run(Machine(Path(root)), name, Qemu)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

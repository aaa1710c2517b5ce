"""libvirt's daemons, for tests in guests, where nobody else starts them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from lab.hypervisor.libvirt.connection import default_uri
from lab.wait import Deadline, until


@contextmanager
def libvirt() -> Iterator[None]:
    """libvirt, started for the block if nobody else did."""
    if _answers():
        yield
        return
    daemons = [
        subprocess.Popen([name], stderr=subprocess.DEVNULL) for name in ("virtlogd", "libvirtd")
    ]
    try:
        assert until(_answers, Deadline.after(60), first=0.2)
        yield
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
            daemon.wait(30)


def _answers() -> bool:
    argv = ["virsh", "-q", "-c", default_uri(), "version"]
    return subprocess.run(argv, capture_output=True, timeout=60, check=False).returncode == 0

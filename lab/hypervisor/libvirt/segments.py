"""Private segments: a multicast group for each installation, a UDP port for each lab."""

from __future__ import annotations

import socket

from lab.guest.network import segment_group


def free(home: str, segment: int) -> bool:
    """Whether no guest of the installation ``home`` is on ``segment``."""
    # Bound without SO_REUSEADDR, unlike in QEMU: so it fails while a guest uses it.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((segment_group(home), segment))
        except OSError:
            return False
        return True

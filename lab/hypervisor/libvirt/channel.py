"""The ports of a guest, as libvirt and QEMU lead to them."""

from __future__ import annotations

import json
import math
import socket
from typing import Any
from xml.etree import ElementTree as ET

import libvirt
import libvirt_qemu

from lab.errors import NotReady
from lab.hypervisor.agent import PERSONALISE
from lab.names import GuestName
from lab.wait import Deadline, attempts


class DomainPorts:
    """See ``lab.hypervisor.agent.Ports``; the agent's belongs to libvirt."""

    def __init__(self, domain: Any, guest: GuestName) -> None:
        self._domain = domain
        self._guest = guest

    def personalise(self, message: bytes, deadline: Deadline) -> str:
        """See Ports."""
        try:
            xml = ET.fromstring(self._domain.XMLDesc())  # noqa: S314  libvirt's own XML
        except libvirt.libvirtError as error:
            raise NotReady(f"{self._guest} does not run", details=[str(error)]) from None
        element = xml.find(f"devices/channel/target[@name='{PERSONALISE}']/../source")
        path = element.get("path", "") if element is not None else ""
        return _exchange(path, message, deadline, self._guest)

    def ask(self, request: dict[str, Any], timeout: float) -> Any:
        """See Ports."""
        text = json.dumps(request)
        deadline = Deadline.after(timeout)
        seconds = max(1, math.ceil(timeout))
        for _ in attempts(deadline, first=0.004, most=0.1):
            try:
                answer = libvirt_qemu.qemuAgentCommand(self._domain, text, seconds, 0)
            except libvirt.libvirtError as error:
                # Nothing was sent yet: the guest has not opened its port, or a restored one
                # has not run long enough for QEMU to say that it had.
                if "not connected" in str(error) and not deadline.passed:
                    continue
                raise NotReady(
                    f"the guest agent of {self._guest} does not answer", details=[str(error)]
                ) from None
            return json.loads(answer)["return"]
        raise NotReady(f"the guest agent of {self._guest} did not connect in {timeout:g} s")


def _exchange(path: str, message: bytes, deadline: Deadline, guest: GuestName) -> str:
    """Send ``message`` into a guest's port and return the line that comes back."""
    answer = b""
    with socket.socket(socket.AF_UNIX) as port:
        try:
            port.settimeout(max(deadline.left, 0.1))
            port.connect(path)
            port.sendall(message)
            while not answer.endswith(b"\n"):
                port.settimeout(max(deadline.left, 0.1))
                chunk = port.recv(65536)
                if not chunk:
                    raise NotReady(f"{guest} ended while it was made itself")
                answer += chunk
        except OSError as error:
            raise NotReady(f"{guest} does not answer at its port", details=[str(error)]) from None
    return answer.decode(errors="replace").strip()

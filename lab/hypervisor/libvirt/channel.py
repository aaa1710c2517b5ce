"""The ports of a guest: the agent's through libvirt, the other one at QEMU's socket."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree as ET

import libvirt
import libvirt_qemu

from lab.errors import NotReady
from lab.hypervisor.agent import PERSONALISE, loaded
from lab.hypervisor.lines import exchange
from lab.names import GuestName
from lab.progress import never_halt
from lab.wait import Deadline, attempts

_REFUSED = "unable to execute QEMU agent command"
"""How libvirt's text (src/qemu/qemu_agent.c) begins if the agent did answer: with an error."""


class DomainPorts:
    """See ``lab.hypervisor.agent.Ports``; the agent's belongs to libvirt."""

    def __init__(self, domain: Any, guest: GuestName) -> None:
        self._domain = domain
        self._guest = guest

    def personalise(
        self, message: bytes, deadline: Deadline, halt: Callable[[], None] = never_halt
    ) -> str:
        """See Ports."""
        try:
            xml = ET.fromstring(self._domain.XMLDesc())  # noqa: S314  libvirt's own XML
        except libvirt.libvirtError as error:
            raise NotReady(f"{self._guest} does not run", details=[str(error)]) from None
        element = xml.find(f"devices/channel/target[@name='{PERSONALISE}']/../source")
        path = element.get("path", "") if element is not None else ""
        return exchange(path, message, deadline, self._guest, halt)

    def ask(self, request: dict[str, Any], timeout: float) -> Any:
        """See Ports."""
        text = json.dumps(request)
        deadline = Deadline.after(timeout)
        seconds = max(1, math.ceil(timeout))
        for _ in attempts(deadline, first=0.004, most=0.1):
            try:
                answer = libvirt_qemu.qemuAgentCommand(self._domain, text, seconds, 0)
            except libvirt.libvirtError as error:
                # Nothing was sent yet: the guest has not opened its port, or a restored guest
                # has not run long enough for QEMU to report that it is open.
                if "not connected" in str(error) and not deadline.passed:
                    continue
                refused = _REFUSED in str(error)  # some versions name the kind first
                did = f"refused {request['execute']}" if refused else "does not answer"
                raise NotReady(
                    f"the guest agent of {self._guest} {did}", details=[str(error)]
                ) from None
            return loaded(answer.encode())["return"]
        raise NotReady(f"the guest agent of {self._guest} did not connect within {timeout:g} s")

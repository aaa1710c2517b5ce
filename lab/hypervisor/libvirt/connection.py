"""The connection to libvirt, and the translation of its errors."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import libvirt

from lab.errors import ROOM_RETRY, Conflict, HostUnfit, LabError, NotFound
from lab.hypervisor import Unanswered
from lab.hypervisor.libvirt import session

USE_SESSION = f"an ordinary user needs {session.URI} (the default): unset LAB_LIBVIRT_URI"


def default_uri() -> str:
    """The system's libvirt for root, else the user's, which needs no privileges."""
    return "qemu:///system" if os.geteuid() == 0 else session.URI


def connect(uri: str) -> Any:
    """An open connection to ``uri``; raises HostUnfit with the remedy."""
    _be_quiet()
    if uri.endswith("/session"):
        session.prepare()
    try:
        return libvirt.open(uri)
    except libvirt.libvirtError as error:
        raise _unreachable(uri, error) from None


@contextmanager
def translated(doing: str) -> Iterator[None]:
    """Translate libvirt's errors within the block; ``doing`` names the operation."""
    try:
        yield
    except libvirt.libvirtError as error:
        raise _translate(doing, error) from error


def absent(error: Exception) -> bool:
    """True if ``error`` means that the domain does not exist (any more)."""
    return (
        isinstance(error, libvirt.libvirtError)
        and error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN
    )


def _be_quiet() -> None:
    # Without a handler libvirt prints every error to stderr; they are raised here.
    libvirt.registerErrorHandler(lambda _context, _error: None, None)


def _unreachable(uri: str, error: libvirt.libvirtError) -> HostUnfit:
    text = str(error)
    if error.get_error_code() in (libvirt.VIR_ERR_AUTH_FAILED, libvirt.VIR_ERR_AUTH_CANCELLED) or (
        "Permission denied" in text
    ):
        return HostUnfit(
            f"no permission to use libvirt at {uri}",
            hint=USE_SESSION,
            details=[text],
        )
    return Unanswered(
        f"libvirt does not answer at {uri}",
        hint="`lab doctor` checks whether it is installed and running, `make setup` installs it",
        details=[text],
        retry_after=ROOM_RETRY,
    )


def _translate(doing: str, error: libvirt.libvirtError) -> LabError:
    code = error.get_error_code()
    details = [str(error)]
    if code == libvirt.VIR_ERR_NO_DOMAIN:
        return NotFound(f"{doing}: no such guest", details=details)
    # "already exists with uuid" if another home has the name, "is already active" if we have.
    taken = (libvirt.VIR_ERR_OPERATION_FAILED, libvirt.VIR_ERR_OPERATION_INVALID)
    if code == libvirt.VIR_ERR_DOM_EXIST or (code in taken and "already" in str(error)):
        return Conflict(
            f"{doing}: a guest of that name exists already",
            hint="`virsh list --all` shows it; another LAB_HOME may own it",
            details=details,
        )
    if code == libvirt.VIR_ERR_OPERATION_DENIED:
        return HostUnfit(f"{doing}: libvirt denies access", details=details)
    return HostUnfit(f"{doing}: libvirt reports an error", details=details)

"""The ``vm`` command, and the translation of its messages.

Messages: util::err, util::check_bhyve_support (lib/vm-util), core::__start, core::console,
core::poweroff (lib/vm-core), info::guest (lib/vm-info), switch::create and switch::remove
(lib/vm-switch), zfs::init (lib/vm-zfs) and lib/vm-base of vm-bhyve.
"""

from __future__ import annotations

from lab.errors import CommandFailed, Conflict, HostUnfit, LabError, NotFound
from lab.run import run

_SECONDS = 60.0
"""Timeout of a command in seconds: those used here wait for no guest, ``stop`` for a second."""

_SETUP = "`lab doctor` lists what is missing"
_ABSENT = (
    "does not seem to be a valid virtual machine",
    "doesn't appear to be a valid virtual machine",
    "doesn't appear to be a running virtual machine",
    "unable to locate virtual machine",
    "unable to locate specified guest",
)
_TAKEN = ("already exists",)
_RUNS = "appears to be running"
_UNFIT = {
    "can only be managed by root": ("vm-bhyve works for root only", "run lab as root"),
    "is not enabled in": ("vm-bhyve is not enabled", "sysrc vm_enable=YES"),
    "$vm_dir has not been configured": (
        "vm-bhyve has no directory for guests",
        "sysrc vm_dir=zfs:POOL/vm, `zfs create POOL/vm`, then `vm init`",
    ),
    "unable to locate mountpoint for ZFS dataset": (
        "vm-bhyve's dataset does not exist or is not mounted",
        "`sysrc vm_dir` names it; `zfs mount` mounts it",
    ),
    "ZFS support requested but ZFS not available": ("ZFS is not loaded", "kldload zfs"),
    "unable to load vmm.ko": ("the kernel module vmm cannot be loaded", "kldload vmm"),
    "virtualization is not supported": (
        "the processor offers no virtualisation, or the firmware disables it",
        "enable VT-x or AMD-V in the firmware's setup",
    ),
    "kernel vmm not initialised": (
        "the kernel module vmm does not work with this processor",
        "enable VT-x or AMD-V in the firmware's setup",
    ),
    "no unrestricted guest support": (
        "the processor cannot run guests that boot by firmware (no unrestricted guest)",
        "bhyve needs a newer processor for them; `lab doctor` reports what is missing",
    ),
    "unable to locate vm-bhyve libraries": (
        "the installation of vm-bhyve is incomplete",
        "pkg install -f vm-bhyve",
    ),
    "failed to create bridge interface": (
        "a bridge for the lab's switch could not be created",
        "`vm init`, then `kldstat` must list if_bridge",
    ),
}
"""Part of a message -> the error, and its remedy."""


def vm(doing: str, *arguments: str, timeout: float = _SECONDS) -> str:
    """The output of ``vm`` with ``arguments``; ``doing`` names the operation.

    Raises NotFound and Conflict if it reports that the guest is absent or exists; else HostUnfit.
    """
    try:
        done = run(["vm", *arguments], timeout=timeout, hint=_SETUP)
    except CommandFailed as failed:
        # stderr may have other messages too: sh reports errors in rc.conf there.
        raise meaning(doing, _refusal(failed.stdout) or failed.stderr) from failed
    # Before 1.6 the exit status of `vm start` is 0 also on errors.
    if refusal := _refusal(done.stdout):
        raise meaning(doing, refusal)
    return done.stdout


def _refusal(stdout: str) -> str:
    """The error lines of core::__start and util::err_inline."""
    return "\n".join(line for line in stdout.splitlines() if line.startswith("  ! "))


def meaning(doing: str, message: str) -> LabError:
    """The error for a message of vm-bhyve."""
    details = [line.strip() for line in message.splitlines() if line.strip()][-10:]
    for words, (what, hint) in _UNFIT.items():
        if words in message:
            return HostUnfit(f"{doing}: {what}", hint=hint, details=details)
    if any(words in message for words in _ABSENT):
        return NotFound(f"{doing}: no such guest", details=details)
    if _RUNS in message:
        return Conflict(
            f"{doing}: the guest runs already",
            hint="where `vm list` shows none: bhyvectl --destroy --vm=NAME ends it",
            details=details,
        )
    if any(words in message for words in _TAKEN):
        return Conflict(
            f"{doing}: the name exists already",
            hint="`vm list` and `vm switch list` show it; another LAB_HOME may own it",
            details=details,
        )
    return HostUnfit(f"{doing}: vm-bhyve reports an error", hint=_SETUP, details=details)

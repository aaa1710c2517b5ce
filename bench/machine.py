"""The facts of the machine without which figures mean nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from lab import host
from lab.errors import LabError
from lab.run import run
from lab.units import format_size

TOPICS = ("system", "libvirt", "qemu", "accelerator", "storage", "python")
"""What ``lab doctor`` says of these belongs beside figures."""


def facts(
    doctor: Iterable[Mapping[str, Any]],
    *,
    load: tuple[float, float, float],
    cpuinfo: str,
    memory: int,
    cores: int,
    commit: str = "",
) -> dict[str, str]:
    """The facts, by name, in the order in which they are to be read."""
    said = {str(finding["topic"]): str(finding["value"]) for finding in doctor}
    found = {
        "processors": f"{cores} ({model(cpuinfo)})",
        "memory": format_size(memory),
        **{topic: said[topic] for topic in TOPICS if topic in said},
        **({"commit": commit} if commit else {}),
        "load average before": ", ".join(f"{value:.2f}" for value in load),
    }
    # Where the scratch home was and which interpreter ran does not matter to anybody else.
    for topic in ("storage", "python"):
        if topic in found:
            found[topic] = found[topic].split(" at ")[0]
    return found


def caution(load: float, cores: int) -> str:
    """Why figures come out too slow, where others used the machine; empty if nobody did."""
    if load <= cores / 4:
        return ""
    return (
        f"The load average was {load:.2f} on {cores} cores before anything was measured: others"
        " used the machine, and times are longer than it needs."
    )


def model(cpuinfo: str) -> str:
    """The processor's name from /proc/cpuinfo."""
    for line in cpuinfo.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return "unknown"


def here(doctor: Iterable[Mapping[str, Any]], load: tuple[float, float, float]) -> dict[str, str]:
    """The facts of this machine; ``load``: its load averages before anything was measured."""
    return facts(
        doctor,
        load=load,
        cpuinfo=Path("/proc/cpuinfo").read_text(errors="replace"),
        memory=host.memory().total,
        cores=host.processors(),
        commit=commit(Path(__file__).parent),
    )


def commit(directory: Path) -> str:
    """What is measured, as git names it; empty where it cannot be known."""
    try:
        argv = ["git", "-C", str(directory), "describe", "--always", "--dirty"]
        return run(argv, timeout=30).stdout.strip()
    except LabError:
        return ""

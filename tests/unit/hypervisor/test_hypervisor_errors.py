"""libvirt's errors as ours: none of its own reaches a user."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.errors import Conflict, HostUnfit, LabError, NotFound

pytest.importorskip("libvirt", reason="no libvirt-python")

import libvirt

from lab.hypervisor.libvirt.connection import connect, translated
from lab.hypervisor.libvirt.driver import uninterrupted
from lab.hypervisor.libvirt.logs import last_lines, remove


class Refusal(libvirt.libvirtError):  # type: ignore[misc]  # libvirt has no types
    """An error of libvirt's with a code of our choice."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.args = (text,)  # libvirt's own class takes the thread's last error, of any test
        self.err = (code, 0, text, 0, None, None, None, 0, 0)


@pytest.mark.parametrize(
    ("code", "text", "expected"),
    [
        ("VIR_ERR_NO_DOMAIN", "Domain not found", NotFound),
        ("VIR_ERR_DOM_EXIST", "domain exists", Conflict),
        ("VIR_ERR_OPERATION_FAILED", "domain 'x' already exists with uuid", Conflict),
        ("VIR_ERR_OPERATION_INVALID", "domain 'x' is already active", Conflict),
        ("VIR_ERR_OPERATION_FAILED", "failed to start", HostUnfit),
        ("VIR_ERR_OPERATION_INVALID", "domain is not running", HostUnfit),
        ("VIR_ERR_OPERATION_DENIED", "read only access", HostUnfit),
        ("VIR_ERR_INTERNAL_ERROR", "process exited", HostUnfit),
    ],
)
def test_codes(code: str, text: str, expected: type[LabError]) -> None:
    with pytest.raises(expected, match="starting x") as error, translated("starting x"):
        raise Refusal(getattr(libvirt, code), text)
    assert error.value.details == (text,)


@pytest.mark.parametrize(("failures", "calls"), [(0, 1), (1, 2), (4, 5), (5, 5)])
def test_a_start_that_a_signal_interrupted(failures: int, calls: int) -> None:
    """Protects a lab from a signal that comes while Linux verifies libvirt's program."""
    text = "failed to load cgroup BPF prog: Resource temporarily unavailable"
    errors = [Refusal(libvirt.VIR_ERR_SYSTEM_ERROR, text) for _ in range(failures)]
    called = []

    def start() -> str:
        called.append(len(errors))
        if errors:
            raise errors.pop()
        return "started"

    if failures < calls:
        assert uninterrupted(start) == "started"
    else:
        with pytest.raises(libvirt.libvirtError, match=text):
            uninterrupted(start)
    assert len(called) == calls


def test_a_start_that_failed_is_not_repeated() -> None:
    def start() -> str:
        called.append("start")
        raise Refusal(libvirt.VIR_ERR_INTERNAL_ERROR, "process exited")

    called: list[str] = []
    with pytest.raises(libvirt.libvirtError, match="process exited"):
        uninterrupted(start)
    assert len(called) == 1


def test_a_libvirt_that_is_not_there() -> None:
    with pytest.raises(HostUnfit, match="does not answer") as error:
        connect("qemu+unix:///system?socket=/nowhere/at-all")
    assert error.value.hint
    assert error.value.details


def test_qemu_s_last_words_are_its_own_and_of_this_start() -> None:
    """Protects people from the reason why an earlier guest of the same name failed."""
    start = "2026-11-21 02:44:54.276+0000: starting up libvirt version: 9.0.0, qemu version: 7.2"
    argv = "LC_ALL=C \\\nPATH=/bin \\\n/usr/bin/qemu-system-x86_64 \\\n-name guest=x"
    early = "2026-11-21T02:44:54.6Z qemu-system-x86_64: could not set up port 1"
    late = "2026-11-21T02:45:54.6Z qemu-system-x86_64: load of migration failed"
    ended = "2026-11-21 02:45:54.804+0000: shutting down, reason=destroyed"
    log = f"{start}\n{argv}\n{early}\n{ended}\n{start}\n{argv}\n{late}\n{ended}\n"
    assert last_lines(log) == [late]
    assert last_lines("") == []


def test_logs_of_guests_are_removed_where_we_may(tmp_path: Path) -> None:
    """With their older parts, and nobody else's."""
    names = ["lab-a-n1.log", "lab-a-n1.log.0", "lab-a-n11.log", "lab-ab-n1.log", "other.log"]
    for name in names:
        (tmp_path / name).touch()
    remove(["lab-a-n1", "lab-absent-n1"], [str(tmp_path / "absent"), str(tmp_path)])
    assert sorted(path.name for path in tmp_path.iterdir()) == names[2:]

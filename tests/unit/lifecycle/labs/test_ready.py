"""What a failure shows of a console is for people."""

from __future__ import annotations

from pathlib import Path

from lab.lifecycle.nodes.readiness import crash, tail


def test_the_tail_of_a_console_has_no_control_sequences(tmp_path: Path) -> None:
    """Protects the terminal of who reads an error, and the reader."""
    log = tmp_path / "console.log"
    log.write_bytes(
        b"old\n[\x1b[0;32m  OK  \x1b[0m] Reached \x1b[0;1;39mmulti\x1b[0m.\r\n"
        b"\x1b[!p\x1b]104\x1b\\\x1b[?7h\x1b[6n\x1b[32766;32766H\n\nn2: press Enter\x07\xff\n"
    )
    assert tail(log, 2) == ["[  OK  ] Reached multi.", "n2: press Enter\N{REPLACEMENT CHARACTER}"]
    assert tail(tmp_path / "absent") == []


CRASH = b"""\
[    1.117] BUG: unable to handle page fault for address: ffff888003c01000\r
[    1.117] #PF: supervisor write access in kernel mode\r
[    1.117] CPU: 0 UID: 0 PID: 1 Comm: swapper/0 Not tainted 6.12.118+deb13-cloud-amd64\r
[    1.117] RIP: 0010:native_set_pte+0x4/0x10\r
[    1.118] Kernel panic - not syncing: Fatal exception in interrupt\r
[    1.118] ---[ end Kernel panic - not syncing: Fatal exception in interrupt ]---\r
"""


def test_a_crash_is_told_by_the_lines_that_say_why(tmp_path: Path) -> None:
    log = tmp_path / "console.log"
    assert crash(log, 0) == []
    log.write_bytes(b"[    0.9] systemd\n" + CRASH)
    said = crash(log, 0)
    assert [line.split("] ", 1)[1].split(":")[0] for line in said] == [
        "BUG",
        "#PF",
        "RIP",
        "Kernel panic - not syncing",
    ]
    with log.open("ab") as more:
        more.write(b"[    0.9] it was started again\n")
    assert crash(log, log.stat().st_size - 31) == []
    log.write_bytes(b"RIP: 0010:a warning\n")
    assert crash(log, 0) == []

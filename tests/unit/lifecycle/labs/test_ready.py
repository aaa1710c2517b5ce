"""What a failure shows of a console is for people."""

from __future__ import annotations

from pathlib import Path

from lab.lifecycle.nodes.readiness import tail


def test_the_tail_of_a_console_has_no_control_sequences(tmp_path: Path) -> None:
    """Protects the terminal of who reads an error, and the reader."""
    log = tmp_path / "console.log"
    log.write_bytes(
        b"old\n[\x1b[0;32m  OK  \x1b[0m] Reached \x1b[0;1;39mmulti\x1b[0m.\r\n"
        b"\x1b[!p\x1b]104\x1b\\\x1b[?7h\x1b[6n\x1b[32766;32766H\n\nn2: press Enter\x07\xff\n"
    )
    assert tail(log, 2) == ["[  OK  ] Reached multi.", "n2: press Enter\N{REPLACEMENT CHARACTER}"]
    assert tail(tmp_path / "absent") == []

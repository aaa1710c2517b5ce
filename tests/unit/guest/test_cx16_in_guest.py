"""What executes an instruction for HAProxy that the processors of some guests lack."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from lab.run import run
from tests import ROOT

SOURCE = ROOT / "images/haproxy/usr/lib/lab/cx16.c"
PROGRAM = """
static struct { unsigned long low, high; } __attribute__((aligned(16))) state = {1, 2};
static int swap(unsigned long low, unsigned long high)
{
    unsigned char equal;
    __asm__ volatile("lock cmpxchg16b %0; sete %1"
        : "+m"(state), "=q"(equal), "+a"(low), "+d"(high) : "b"(3UL), "c"(4UL) : "cc", "memory");
    return equal + 2 * (low == 1) + 4 * (high == 2);
}
int main(void)
{
    if (swap(7, 2) != 6 || state.low != 1 || state.high != 2) return 1;
    if (swap(1, 2) != 7 || state.low != 3 || state.high != 4) return 2;
    return 0;
}
"""
INSTRUCTION, ILLEGAL = bytes.fromhex("f0480fc70d"), bytes.fromhex("0f0b0fc70d")

pytestmark = pytest.mark.skipif(
    not shutil.which("cc") or platform.machine() != "x86_64", reason="needs cc on x86-64"
)


def test_it_does_what_the_processor_would(tmp_path: Path) -> None:
    """Protects proxies in emulated guests: here with an illegal instruction in its place."""
    (tmp_path / "program.c").write_text(PROGRAM)
    run(["cc", "-O1", "-o", tmp_path / "program", tmp_path / "program.c"], timeout=60)
    whole = (tmp_path / "program").read_bytes()
    assert whole.count(INSTRUCTION) >= 1
    (tmp_path / "without").write_bytes(whole.replace(INSTRUCTION, ILLEGAL))
    (tmp_path / "without").chmod(0o755)
    text = SOURCE.read_text()
    expected = "at[0] != 0xf0 || at[1] != 0x48"
    assert expected in text
    (tmp_path / "cx16.c").write_text(text.replace(expected, "at[0] != 0x0f || at[1] != 0x0b"))
    library = tmp_path / "cx16.so"
    run(["cc", "-shared", "-fPIC", "-nostdlib", "-o", library, tmp_path / "cx16.c"], timeout=60)
    env = os.environ | {"LD_PRELOAD": str(library)}
    assert subprocess.run([tmp_path / "program"], check=False, timeout=30).returncode == 0
    assert subprocess.run([tmp_path / "without"], check=False, timeout=30).returncode < 0
    assert subprocess.run([tmp_path / "without"], check=False, timeout=30, env=env).returncode == 0

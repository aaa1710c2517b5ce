"""A kernel of 55 bytes of code, so that guests are up a quarter of a second after QEMU.

It prints ``B`` when it boots and then a letter at each tick of the clock (18 a second), from
``a`` to ``z`` and again from ``a``; the next letter is kept in RAM. When the power button is
pressed it switches the machine off. So its console shows whether RAM was restored.
"""

from __future__ import annotations

# 16-bit code; the segment starts at the file's offset 0x200, where the loader jumps to.
_CODE = bytes.fromhex(
    "8cc8 8ed8"  # mov ax, cs; mov ds, ax
    "fb"  # sti
    "ba0206 b80001 ef"  # the ACPI timer's PM1_EN: let the power button be seen
    "baf803 b042 ee"  # 'B' to the serial port
    # again:
    "f4"  # hlt, until the clock ticks
    "baf803 a06000 ee"  # the letter at 0x60 to the serial port
    "fec0 3c7b 7502 b061 a26000"  # the next one, 'a' after 'z', to 0x60
    "ba0006 ed f6c401 74e4"  # PM1_STS: back to `again` unless the button was pressed
    "ba0406 b80020 ef"  # PM1_CNT: sleep type S5, which is off
    "ebdb"  # back to `again`
)


def kernel() -> bytes:
    """The kernel, as QEMU's ``-kernel`` takes it (Linux x86 boot protocol 2.2, setup only)."""
    image = bytearray(4096)
    image[0x1F1] = 1  # one sector of setup code after the boot sector
    image[0x1FE:0x200] = b"\x55\xaa"
    image[0x200:0x202] = b"\xeb\x62"  # jump over the header
    image[0x202:0x206] = b"HdrS"
    image[0x206:0x208] = b"\x02\x02"
    image[0x211] = 1
    image[0x260] = ord("a")
    image[0x264 : 0x264 + len(_CODE)] = _CODE
    return bytes(image)

"""A seed for guests of others: what cloud-init reads at the first boot of a vendor's cloud image.

Format: an ISO 9660 file system with the label ``cidata`` that holds ``user-data`` and
``meta-data`` (cloud-init's documentation, data source NoCloud). Our own guests have a faster way:
see ``lab.guest.seed``.
"""

from __future__ import annotations

import io
from collections.abc import Mapping

LABEL = "cidata"


def pack(script: bytes, files: Mapping[str, bytes], *, instance: str) -> bytes:
    """The seed disk. ``script`` is run as root, once, at the end of the first boot.

    ``files``: the files next to it, by name: lower-case letters, digits, dots and hyphens.
    ``instance``: cloud-init does what it does once for each of these names.
    """
    import pycdlib  # only who builds images in a guest needs it

    iso = pycdlib.PyCdlib()
    iso.new(interchange_level=4, vol_ident=LABEL, rock_ridge="1.09", joliet=3)
    meta = f"instance-id: {instance}\nlocal-hostname: builder\n".encode()
    buffer = io.BytesIO()
    for name, content in {**files, "meta-data": meta, "user-data": script}.items():
        iso.add_fp(
            io.BytesIO(content), len(content), f"/{name}", rr_name=name, joliet_path=f"/{name}"
        )
    iso.write_fp(buffer)
    iso.close()
    return buffer.getvalue()

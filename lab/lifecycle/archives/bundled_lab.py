"""A bundle with the lab itself in it, and what is made of that elsewhere."""

from __future__ import annotations

import time
from typing import IO, BinaryIO

from lab.bundle.packing import Parts
from lab.bundle.unpacking import unpacking
from lab.lifecycle.archives.snapshot_archive import export_snapshot, import_snapshot
from lab.lifecycle.core.context import Context
from lab.lifecycle.labs import bundle
from lab.requests.archives import Destination, ExportArchive, OpenBundle
from lab.views.bundles import BundleView
from lab.views.labs import LabView


def bundle_with_lab(ctx: Context, name: str, to: IO[bytes], *, why: str = "") -> BundleView:
    """Write the bundle of a lab as ``bundle`` does, and the archive of a snapshot behind it.

    Where no snapshot can be taken, the view says why. What of RAM and disks is secret stays in it.
    """

    def add_lab(label: str, parts: Parts) -> None:
        to = Destination(sink=parts)
        export_snapshot(ctx, ExportArchive(kind="snapshot", lab=name, which=label, to=to))

    return bundle.bundle(ctx, name, to, why=why, add_lab=add_lab)


def open_bundle(ctx: Context, source: BinaryIO, asked: OpenBundle, *, timeout: float) -> LabView:
    """A lab that is a clone of the one in a bundle; failed where its nodes do not get ready.

    The rest, and what is raised, as for ``import_snapshot``; InvalidSpec for what is no bundle, or
    one without a lab.
    """
    with unpacking(source) as found:
        said = found.manifest
        at = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(said.at))
        why = f", after: {said.why}" if said.why else ""
        ctx.progress.note("bundle", f"the lab {said.lab} as of {at}{why}")
        return import_snapshot(ctx, found.lab, asked, timeout=timeout, keep_failed=True)

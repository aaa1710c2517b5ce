"""A builder that makes nothing that boots: what the fake hypervisor takes for an image."""

from __future__ import annotations

import os
from pathlib import Path

from lab.config import enginefile
from lab.config.profile import VOLUMES, Layout
from lab.imagebuild import manifest
from lab.imagebuild.manifest import BuiltImage
from lab.imagebuild.recipe import Recipe
from lab.progress import Progress
from lab.units import MIB


def build(
    recipe: Recipe, out: Path, *, layout: Layout, progress: Progress, log: Path
) -> BuiltImage:
    """Write empty disks of 8 MiB with kernel, initrd and manifest, as ``build`` does."""
    _, _, series = enginefile.named(recipe.name).partition(":")
    with progress.step("bootstrap", "pretending to install"):
        log.write_text("a fake build\n", encoding="utf-8")
        kernel, initrd = out / "kernel", out / "initrd"
        disks = {name: out / f"{name}.raw" for name in VOLUMES[layout]}
        for path in (kernel, initrd):
            path.write_text(f"a fake {path.name}\n", encoding="utf-8")
    for disk in disks.values():
        disk.touch()
        os.truncate(disk, 8 * MIB)
    image = BuiltImage(
        recipe=recipe.name,
        disks=disks,
        kernel=kernel,
        initrd=initrd,
        cmdline="fake",
        engine=recipe.engine,
        engine_version=f"{series or '11.8'}.6",
        size=8 * MIB,
        user=recipe.user,
        uid=100,
        gid=100,
        service=recipe.service,
        config=recipe.config,
        packages={},
        digests={path.name: manifest.digest(path) for path in (*disks.values(), kernel, initrd)},
        option_file=(recipe.directory / "my.cnf").read_text(encoding="utf-8"),
    )
    manifest.write(image)
    return image

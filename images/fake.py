"""A builder that makes nothing that boots: what the fake hypervisor takes for an image."""

from __future__ import annotations

from pathlib import Path

from images import manifest
from images.key import image_key
from images.manifest import BuiltImage
from images.recipe import Recipe
from lab.progress import Progress
from lab.spec import MIB


def build(recipe: Recipe, out: Path, *, progress: Progress, log: Path) -> BuiltImage:
    """Write an empty disk of 8 MiB with kernel, initrd and manifest, as ``build`` does."""
    with progress.step("bootstrap", "pretending to install"):
        log.write_text("a fake build\n", encoding="utf-8")
        files = {name: out / name for name in ("disk.raw", "kernel", "initrd")}
        for path in files.values():
            path.write_bytes(b"")
    with files["disk.raw"].open("r+b") as disk:
        disk.truncate(8 * MIB)
    image = BuiltImage(
        recipe=recipe.name,
        key=image_key(recipe),
        disk=files["disk.raw"],
        kernel=files["kernel"],
        initrd=files["initrd"],
        cmdline="fake",
        engine=recipe.engine,
        engine_version="0.0",
        size=8 * MIB,
        user=recipe.user,
        uid=100,
        gid=100,
        service=recipe.service,
        config=recipe.config,
        packages={},
        digests={},
    )
    manifest.write(image)
    return image

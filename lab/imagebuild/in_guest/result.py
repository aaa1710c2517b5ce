"""What a builder made, read from the disk that it wrote it to.

A guest's output is not to be trusted: names, sizes, the manifest and all contents are checked.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import IO, Any

from lab.config.profile import VOLUMES, Layout
from lab.errors import HostUnfit, InvalidSpec, LabError, RecipeFailed
from lab.imagebuild import manifest
from lab.imagebuild.__main__ import FAILURE
from lab.imagebuild.manifest import MANIFEST, BuiltImage
from lab.imagebuild.recipe import Recipe
from lab.paths import writing
from lab.units import MIB

_FILES = {"kernel": 256 * MIB, "initrd": 512 * MIB, MANIFEST: MIB, FAILURE: MIB, "status": 1024}
"""What there may be besides disks and the log, and how large (bytes) at most."""
_LOG = "build.log"
_LOG_LIMIT = 64 * MIB
_CHUNK = MIB


def read(result: Path, out: Path, recipe: Recipe, layout: Layout, log: Path) -> BuiltImage:
    """Unpack the archive on the disk ``result`` into ``out``; the builder's log goes to ``log``.

    Raises what the build in the guest failed with, HostUnfit if the guest never came that far,
    InvalidSpec for what is invalid.
    """
    limits = {f"{name}.raw": recipe.disk for name in VOLUMES[layout]} | _FILES
    try:
        with tarfile.open(result, "r:") as archive:
            for member in archive:
                content = archive.extractfile(member) if member.isreg() else None
                limit = _LOG_LIMIT if member.name == _LOG else limits.get(member.name)
                if content is None or limit is None or member.size > limit:
                    raise _senseless(f"{member.name[:80]!r}, {member.size} bytes")
                path = log if member.name == _LOG else out / member.name
                with writing(path):
                    _write(content, path, member.size)
    except tarfile.TarError as error:
        raise _senseless(str(error)) from None
    except OSError as error:
        raise HostUnfit(f"the builder's disk {result} cannot be read: {error.strerror}") from error
    if not (out / "status").exists():
        raise HostUnfit(
            "the builder ended without a result",
            hint="is it a cloud image with cloud-init (NoCloud), python3 and apt?",
        )
    _raise_failure(out, log)
    return _checked(out, recipe, layout)


def _write(content: IO[bytes], path: Path, size: int) -> None:
    """Copy, leaving holes where there are zeros."""
    zeros = bytes(_CHUNK)
    with path.open("ab") as start:
        start.truncate(0)
    with path.open("r+b") as writer:
        writer.truncate(size)
        position = 0
        while chunk := content.read(_CHUNK):
            if chunk != zeros[: len(chunk)]:
                writer.seek(position)
                writer.write(chunk)
            position += len(chunk)


def _raise_failure(out: Path, log: Path) -> None:
    status, failure = out / "status", out / FAILURE
    ended = status.read_text(errors="replace").strip()
    status.unlink()
    if failure.exists():
        raise _failure(failure)
    if ended != "0":
        last = log.read_text(errors="replace").splitlines()[-10:] if log.exists() else []
        raise HostUnfit(
            f"the builder could not begin its work (status {ended[:20]})",
            hint=f"can it reach a mirror? the whole log is {log}",
            details=last,
        )


def _failure(path: Path) -> LabError:
    try:
        failure: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        what, hint = str(failure["what"]), str(failure["hint"])
        details = [str(line) for line in failure["details"]]
        code = int(failure["code"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return _senseless(FAILURE)
    kind = InvalidSpec if code == InvalidSpec.exit_code else HostUnfit
    if failure.get("recipe") is True:
        kind = RecipeFailed
    return kind(f"in the builder: {what}", hint=hint, details=details)


def _checked(out: Path, recipe: Recipe, layout: Layout) -> BuiltImage:
    image = manifest.read(out)
    disks = {name: out / f"{name}.raw" for name in VOLUMES[layout]}
    facts = (image.recipe, image.disks, image.kernel, image.initrd)
    if facts != (recipe.name, disks, out / "kernel", out / "initrd"):
        raise _senseless(MANIFEST)
    for path in (*disks.values(), image.kernel, image.initrd):
        if not path.is_file() or manifest.digest(path) != image.digests.get(path.name):
            raise InvalidSpec(f"{path.name} from the builder is incomplete")
    return image


def _senseless(what: str) -> InvalidSpec:
    return InvalidSpec(f"the builder's result is invalid: {what}")

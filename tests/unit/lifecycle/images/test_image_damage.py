"""An image whose files are not what was built is never used: the error says which one it is."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lab.errors import HostUnfit
from lab.imagebuild import manifest
from lab.lifecycle.captures import template
from lab.lifecycle.images import image
from lab.lifecycle.labs.down import down
from lab.lifecycle.labs.up import up
from lab.locks.named import lock
from lab.paths import Home
from lab.units import MIB
from tests.support.lifecycle_world import World, make_image, make_template, named


def _truncate(path: Path) -> None:
    path.write_bytes(b"")


def _overwrite(path: Path) -> None:
    status = path.stat()
    path.write_bytes(bytes(status.st_size))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("damage", [_truncate, _overwrite, Path.unlink])
@pytest.mark.parametrize("file", ["kernel", "initrd"])
def test_a_damaged_kernel_is_reported_and_the_image_can_be_made_again(
    world: World, file: str, damage: Callable[[Path], None]
) -> None:
    """Protects from guests that hang at boot without a reason."""
    with world.open() as ctx:
        make_image(ctx)
        (key,) = (view.key for view in image.images(ctx))
        path = ctx.home.image(key) / file
        damage(path)
        with pytest.raises(HostUnfit, match=str(path)) as failure:
            up(ctx, named("shop"))
        assert f"lab image rm {key}" in failure.value.hint
        image.remove(ctx, key)
        assert up(ctx, named("shop")).state == "ready"


def test_a_copy_of_an_image_is_as_good(world: World) -> None:
    """Protects homes that were restored from a backup: files have other times there."""
    with world.open() as ctx:
        make_image(ctx)
        (key,) = (view.key for view in image.images(ctx))
        kernel = ctx.home.image(key) / "kernel"
        shutil.copyfile(kernel, kernel.with_name("copy"))
        kernel.with_name("copy").replace(kernel)
        for path in _contents(ctx.home):
            os.utime(path)
        assert up(ctx, named("shop")).state == "ready"


def test_a_copy_of_an_image_is_read_once(world: World) -> None:
    """Protects the time of each command in a home that was restored from a backup."""
    with world.open() as ctx:
        make_image(ctx)
        (key,) = (view.key for view in image.images(ctx))
        path = ctx.home.image(key) / manifest.MANIFEST
        before, at, files = image.built(ctx, key), path.stat(), sorted(path.parent.iterdir())
        for file in (ctx.home.image(key) / "kernel", *_contents(ctx.home)):
            os.utime(file)
        make_template(ctx)
        found = image.built(ctx, key)
        assert found.seals.keys() == before.seals.keys()
        assert all(found.seals[name] != before.seals[name] for name in ("kernel", "os"))
        assert replace(found, seals=before.seals) == before
        assert (path.stat().st_mtime_ns, path.stat().st_mode) == (at.st_mtime_ns, at.st_mode)
        # A digest that no content has: nothing is compared with it any more.
        text = path.read_text()
        for name in ("kernel", "os.raw"):
            text = text.replace(found.digests[name], "0" * 64)
        path.write_text(text)
        image.check_disks(ctx, image.find(ctx, key))
        assert sorted(path.parent.iterdir()) == files


def test_a_home_that_cannot_be_written_is_only_read(world: World) -> None:
    """Protects commands that only look: a seal that cannot be recorded is no failure."""
    with world.open() as ctx:
        make_image(ctx)
        (key,) = (view.key for view in image.images(ctx))
        before = image.built(ctx, key).seals
        os.utime(ctx.home.image(key) / "kernel")
        with lock(ctx.home, "image", key):
            assert image.built(ctx, key).seals == before
        assert image.built(ctx, key).seals == before
        assert image.built(ctx, key).seals != before


def test_a_damaged_disk_is_reported_before_a_cluster_is_formed_of_it(world: World) -> None:
    with world.open() as ctx:
        make_image(ctx)
        (key,) = (view.key for view in image.images(ctx))
        for path in _contents(ctx.home):
            with path.open("r+b") as file:
                file.seek(MIB)
                file.write(b"\1")
        with pytest.raises(HostUnfit, match=f"images/{key}/base/os does not match"):
            up(ctx, named("shop"))
        assert template.templates(ctx) == []


def test_what_nobody_wrote_to_is_not_read_again(world: World) -> None:
    """Protects the time of a warm start: only size and times are compared."""
    with world.open() as ctx:
        up(ctx, named("shop"))
        down(ctx, "shop")
        (key,) = (view.key for view in image.images(ctx))
        found = image.built(ctx, key)
        assert set(found.seals) == {"os", "kernel", "initrd"}
        # A digest that no content has: it is not compared as long as the seals are the same.
        wrong = dict.fromkeys(found.digests, "0" * 64)
        path = ctx.home.image(key) / manifest.MANIFEST
        path.write_text(path.read_text().replace(found.digests["kernel"], wrong["kernel"]))
        assert up(ctx, named("shop")).state == "ready"


def _contents(home: Home) -> list[Path]:
    """All disks that the storage keeps."""
    return [path for path in (home.storage / "contents").iterdir() if path.is_file()]

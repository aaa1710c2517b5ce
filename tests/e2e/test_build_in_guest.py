"""An image built in a guest, as on hosts that cannot do it themselves.

It takes ten minutes under emulation.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.imagebuild import manifest
from lab.imagebuild.recipe import load
from tests.e2e import cloud_disk
from tests.e2e.e2e_site import PXC, Site

pytestmark = [pytest.mark.e2e, pytest.mark.rare]


def test_a_builder_makes_the_same_image(image: Site, tmp_path: Path) -> None:
    """Protects hosts without mmdebstrap: a cloud image that knows nothing of us will do."""
    cloud = cloud_disk.make(tmp_path, load("mariadb").suite)
    with image.sibling() as other:
        build = ("image", "build", "mariadb")
        other.lab(*build, env={"LAB_BUILDER": str(cloud)}, timeout=3600)
        assert other.settled() == []
        (key,) = other.lab("image", "ls", "-o", "name").stdout.split()
        assert key in image.lab("image", "ls", "-o", "name").stdout.split()
        theirs, ours = (manifest.read(site.home.image(key)) for site in (other, image))
        assert theirs.packages == ours.packages
        assert (theirs.uid, theirs.gid, theirs.cmdline) == (ours.uid, ours.gid, ours.cmdline)
        with other.up(*PXC, "--nodes", "1", "--cold", "--name", "built") as lab:
            assert other.sql(lab["name"], "n1", "SELECT 6 * 7") == [[42]]

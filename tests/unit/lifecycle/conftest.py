"""What tests of the lifecycle share: an installation on fakes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.lifecycle_world import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    """An installation on the fakes, with a home of its own."""
    return World(tmp_path / "home")

"""Labs of servers that have no TLS for a clone; on the fakes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lab.cli.terminal.show import lab_text
from lab.errors import InvalidSpec
from lab.fake.images import build
from lab.imagebuild import manifest
from lab.imagebuild.manifest import BuiltImage
from lab.lifecycle.labs.query import program, query
from lab.lifecycle.labs.up import up
from lab.lifecycle.nodes.connection import account_of
from lab.names import EVERYWHERE
from lab.observe.account import Account
from tests.support.lifecycle_world import World, named

WHY = "MariaDB 10.2.11 reads no other certificate while it runs: it has no TLS"


def _of(version: str) -> Callable[..., BuiltImage]:
    """A builder of images with a server of that version."""

    def build_it(*args: Any, **more: Any) -> BuiltImage:
        made = replace(build(*args, **more), engine_version=version)
        manifest.write(made)
        return made

    return build_it


def test_connections_without_tls_are_named(tmp_path: Path) -> None:
    with World(tmp_path, build=_of("10.2.11")).open() as ctx:
        view = up(ctx, named("shop", blueprint="single", nodes=1))
        account = account_of(ctx.home, ctx.store.labs.get("shop"))
        assert (account.ca, account.usable) == ("", True)
        assert query(ctx, "shop", None, "SELECT 1").rows == ((1,),)
        assert view.unencrypted == WHY
        assert f"unencrypted  {WHY}" in lab_text(view, 0.0)


def test_a_server_without_tls_is_not_published(tmp_path: Path) -> None:
    """Protects passwords and rows on networks."""
    with World(tmp_path, build=_of("10.2.11"), publish=EVERYWHERE).open() as ctx:
        with pytest.raises(InvalidSpec, match=f"n1 cannot be published at {EVERYWHERE}: {WHY}"):
            up(ctx, named("shop", blueprint="single", nodes=1))
        assert not ctx.store.labs.all()


@pytest.mark.parametrize(
    ("name", "option"), [("mariadb", "skip-ssl"), ("mysql", "ssl-mode=DISABLED")]
)
def test_the_client_uses_no_tls_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, option: str
) -> None:
    """Protects `lab sql`: MariaDB's client since 11.4 wants TLS by itself."""
    found = tmp_path / name
    found.write_text("#!/bin/sh\n")
    found.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    without = program(Account("lab", "x"), 3306, tmp_path / "options").content.splitlines()
    assert without[-1] == option
    assert not any(line.startswith("ssl-ca") for line in without)
    verified = program(Account("lab", "x", ca="/ca"), 3306, tmp_path / "options").content
    assert "ssl-ca=/ca" in verified
    assert option not in verified

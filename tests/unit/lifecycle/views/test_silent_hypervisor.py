"""A host whose hypervisor is silent: what only reads works from the record and the servers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import pytest

from lab.cli import main
from lab.cli.backend.local import Lifecycle, LocalSession
from lab.cli.backend.session import Session
from lab.config.settings import Settings
from lab.errors import NotReady
from lab.fake.hypervisor import FakeHypervisor
from lab.hypervisor import Unanswered, silent
from lab.lifecycle.core.context import open_for_reading
from lab.lifecycle.labs.up import up
from lab.lifecycle.nodes.inspect import lab, nodes_of
from lab.progress import Listener, Progress
from tests.support.lifecycle_world import World, lab_request

WHY = Unanswered("libvirt does not answer at test:///", hint="start it")


class Gone(Lifecycle):
    """Labs whose servers run, on a host whose hypervisor has gone; ``mute``: so have servers."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.mute: set[int] = set()

    def settings(self, flags: object) -> Settings:
        del flags
        return self.world.settings

    @contextmanager
    def open(self, settings: Settings, listener: Listener) -> Iterator[Session]:
        with self.world.open() as ctx:

            def sql_all(account: Any, port: int, *args: Any, **how: Any) -> Any:
                if port in self.mute:
                    raise NotReady("connection refused")
                return ctx.sql_all(account, port, *args, **how)

            def sql_text(account: Any, port: int, text: str, **_: Any) -> Any:
                yield from sql_all(account, port, [text], timeout=1.0)

            yield LocalSession(
                replace(
                    ctx,
                    settings=settings,
                    progress=Progress(listener),
                    sql_all=sql_all,
                    sql_text=sql_text,
                    hypervisor=silent(WHY),
                    unanswered=WHY,
                )
            )


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    world = World(tmp_path_factory.mktemp("silent"))
    with world.open() as ctx:
        up(ctx, lab_request("galera", "shop", nodes=2))
    return world


@pytest.fixture
def gone(world: World) -> Gone:
    return Gone(world)


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["ls"], "ready"),
        (["ls", "--exit-code"], "ready"),
        (["status", "shop"], "ready"),
        (["wait", "shop", "--timeout", "20s"], "ready"),
        (["wait", "shop", "--for", "online", "--timeout", "20s"], "ready"),
        (["env"], "LAB_DSN"),
        (["sql", "-e", "SHOW STATUS LIKE 'wsrep_cluster_size'"], "wsrep_cluster_size"),
        (["sql", "--all-nodes", "-e", "SHOW STATUS LIKE 'wsrep_cluster_size'"], "n2"),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, list) else "",
)
def test_what_only_reads_works(
    gone: Gone, capsys: pytest.CaptureFixture[str], words: list[str], shown: str
) -> None:
    """Protects who has to know what runs, and to save data, just while libvirtd is down."""
    assert main(words, lifecycle=gone) == 0
    out, err = capsys.readouterr()
    assert shown in out
    assert err.count("libvirt does not answer") == 1
    assert "start it" in err


def test_a_shell_is_opened(gone: Gone) -> None:
    """Protects `exec`, `ssh`, `cp` and `dump`: they go through a port, not through libvirt."""
    with (
        gone.open(gone.world.settings, lambda _: None) as session,
        session.ssh("shop", "n1") as way,
    ):
        assert way.argv[0] == "ssh"


def test_a_server_that_is_silent_as_well_is_unknown(gone: Gone) -> None:
    """Protects from "stopped" and from "its guest runs": neither was seen."""
    with gone.world.open() as ctx:
        gone.mute = {nodes_of(ctx, "shop")[1].sql_port}
    with gone.open(gone.world.settings, lambda _: None) as session:
        found = session.status("shop")
        assert [node.state for node in found.lab.nodes] == ["ready", "unknown"]
        assert found.lab.state == "unknown"
        assert found.lab.dsn


@pytest.mark.parametrize(
    "words",
    [
        ["down", "shop"],
        ["down", "shop", "--force"],
        ["stop", "shop"],
        ["start", "shop"],
        ["up", "galera", "--name", "other"],
        ["snapshot", "take", "shop", "--label", "before"],
        ["rollback", "shop", "--to", "origin"],
        ["exec", "shop", "--node", "1", "--agent", "--", "true"],
    ],
    ids=" ".join,
)
def test_what_changes_guests_fails_before_it_began(
    gone: Gone, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    """Protects labs from a removal or a start that only the record knows of."""
    before = gone.world.there()
    assert main(words, lifecycle=gone) == 5
    assert "libvirt does not answer" in capsys.readouterr().err
    assert gone.world.there() == before
    with gone.world.open() as ctx:
        assert lab(ctx, "shop").state == "ready"


def test_only_a_silent_hypervisor_is_passed_over(gone: Gone) -> None:
    """Protects the answer of a hypervisor that has one, and who connects to it."""
    settings = gone.world.settings

    class Refused(nullcontext[Any]):
        def __enter__(self) -> Any:
            raise WHY

    with open_for_reading(settings, opener=lambda *_: Refused()) as ctx:
        assert ctx.unanswered is WHY
        assert {found.lab.name for found in ctx.store.labs_with_nodes()} == {"shop"}
        with pytest.raises(Unanswered):
            ctx.hypervisor.guests()
    with open_for_reading(settings) as ctx:
        assert ctx.unanswered is None
        assert isinstance(ctx.hypervisor, FakeHypervisor)

"""The observed state: never ``ready`` while a requirement is unmet, and never late."""

from __future__ import annotations

import re
import struct
import threading
import time
from contextlib import suppress
from dataclasses import replace
from typing import get_args

import pytest
from pymysql.constants import CLIENT

from lab.config.settings import Settings
from lab.errors import NotReady
from lab.fake.hypervisor import FakeHypervisor
from lab.fake.inside import Inside
from lab.lifecycle.core.context import Context
from lab.lifecycle.labs import power
from lab.lifecycle.labs.query import client, query
from lab.lifecycle.labs.start import start
from lab.lifecycle.labs.up import up
from lab.lifecycle.nodes.inspect import lab, labs, status
from lab.locks.named import lock
from lab.names import EVERYWHERE, GuestName
from lab.observe.account import Account
from lab.observe.sql import ask as ask_sql
from lab.observe.sql import ask_all
from lab.observe.states import LAB_STATES, NODE_STATES, LabState, NodeState
from lab.wait import Deadline, until
from tests import ROOT
from tests.support.asking import asking
from tests.support.lifecycle_world import World, make_template, named

N1, N2, N3 = (GuestName(f"lab-shop-n{number}") for number in (1, 2, 3))


def make(ctx: Context) -> None:
    make_template(ctx)
    up(ctx, named("shop", nodes=3))


def shown(ctx: Context) -> tuple[str, list[str]]:
    """The state of the lab and of its nodes, the same whichever way it is asked for."""
    view = lab(ctx, "shop")
    states = [node.state for node in view.nodes]
    whole = status(ctx, "shop")
    assert [one.name for one in labs(ctx)] == ["shop"]
    assert labs(ctx)[0].state == whole.lab.state == view.state
    assert [node.state for node in whole.lab.nodes] == states
    assert (view.state == "ready") == all(one.met for one in whole.requirements)
    return view.state, states


def silent(ctx: Context, *ports: int, over: threading.Event) -> Context:
    """``ctx`` with servers that accept a connection and then answer nothing."""

    def say_nothing(port: int, _timeout: float) -> None:
        if port in ports:
            over.wait(30)
            raise NotReady("the test is over")

    return asking(ctx, say_nothing)


def test_a_node_left_alone_is_not_ready(world: World) -> None:
    """Protects scripts from writing to what is in no primary component: its guest still runs."""
    with world.open() as ctx:
        make(ctx)
        assert shown(ctx) == ("ready", ["ready"] * 3)
        power.stop(ctx, "shop", node="n3", force=True)
        assert shown(ctx) == ("degraded", ["degraded", "degraded", "stopped"])
        power.stop(ctx, "shop", node="n2", force=True)
        assert shown(ctx) == ("not-primary", ["not-primary", "stopped", "stopped"])
        power.stop(ctx, "shop", node="n1", force=True)
        assert shown(ctx) == ("stopped", ["stopped"] * 3)
        assert start(ctx, "shop", timeout=10).state == "ready"


def test_a_node_voted_out_is_not_ready(world: World) -> None:
    """Its server runs and answers, as Inconsistent and Disconnected."""
    with world.open() as ctx:
        make(ctx)
        assert isinstance(ctx.hypervisor, FakeHypervisor)

        def vote_out(inside: Inside) -> None:
            inside.apart = "inconsistent"

        ctx.hypervisor.servers.alter(N2, vote_out)
        state, nodes = shown(ctx)
        assert (state, nodes[1]) == ("degraded", "not-primary")


def test_nodes_that_stand_still_are_unreachable_within_a_second(world: World) -> None:
    """QEMU stopped by a signal, or a hung server: the port accepts, and nothing ever comes."""
    over = threading.Event()
    world.answer_timeout = 0.7
    with world.open() as ctx:
        make(ctx)
        ports = [node.sql_port for node in lab(ctx, "shop").nodes]
        try:
            for count, state in ((1, "degraded"), (3, "unreachable")):
                hung = silent(ctx, *ports[:count], over=over)
                began = time.monotonic()
                view = lab(hung, "shop")
                took = time.monotonic() - began
                assert view.state == state
                assert [node.state for node in view.nodes[:count]] == ["unreachable"] * count
                assert took < 3 * 0.7, "as long as one after the other"
                unmet = [one for one in status(hung, "shop").requirements if not one.met]
                assert unmet[0].found == "no answer within 0.7 s"
        finally:
            over.set()


def test_nodes_of_a_busy_host_are_ready_if_they_answer_late(world: World) -> None:
    """Of the limit a replica's source has a share: a whole chain is to answer within it.

    Guests of a busy host take a third of a second for a question; they are ready all the same.
    """
    world.answer_timeout = Settings.answer_timeout
    with world.open() as ctx:
        up(ctx, named("shop", blueprint="replication", nodes=3, topology="chain"))

        def answer_late(_port: int, timeout: float) -> None:
            time.sleep(min(0.3, timeout))
            if timeout < 0.3:
                raise NotReady("no answer in time")

        view = lab(asking(ctx, answer_late), "shop")
        assert [node.state for node in view.nodes] == ["ready"] * 3


def test_many_labs_share_one_limit(world: World) -> None:
    """Protects `lab ls`: ten unresponsive labs take no longer than one."""
    over = threading.Event()
    world.answer_timeout = 0.7
    with world.open() as ctx:
        make_template(ctx)
        for number in range(10):
            up(ctx, named(f"lab{number}"))
        ports = [node.sql_port for view in labs(ctx) for node in view.nodes]
        hung = silent(ctx, *ports[:-2], over=over)
        began = time.monotonic()
        try:
            assert [view.state for view in labs(hung)] == ["unreachable"] * 9 + ["ready"]
            assert time.monotonic() - began < 9 * 0.7 / 2, "one after the other takes twice that"
        finally:
            over.set()


@pytest.mark.rare
def test_a_node_that_never_ends_its_answer_does_not_take_all_threads(world: World) -> None:
    """A service is asked ten times a second; who is root in a node decides how it answers."""
    over = threading.Event()
    world.answer_timeout = 0.02
    with world.open() as ctx:
        up(ctx, named("shop", nodes=1))
        hung = silent(ctx, lab(ctx, "shop").nodes[0].sql_port, over=over)
        before = threading.active_count()
        try:
            for _ in range(100):
                assert lab(hung, "shop").state == "unreachable"
            assert threading.active_count() - before <= 64
        finally:
            over.set()
        world.answer_timeout = 10.0
        assert until(lambda: threading.active_count() <= before, Deadline.after(10))
    with world.open() as ctx:
        assert lab(ctx, "shop").state == "ready"


def test_a_lab_that_is_being_started(world: World) -> None:
    """The recorded state is `stopped` until the start has ended; the observed one is not."""
    with world.open() as ctx:
        make(ctx)
        ctx.store.labs.update("shop", state="stopped")
        assert lab(ctx, "shop").state == "degraded"
        with lock(ctx.home, "lab", "shop"):
            assert lab(ctx, "shop").state == "starting"


def test_a_server_that_answers_nothing_is_given_up_in_time() -> None:
    """The real client: connecting and the wait for the greeting have the caller's limit."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        began = time.monotonic()
        with pytest.raises(NotReady) as failed:
            ask_sql(Account("lab", "x"), server.getsockname()[1], "SELECT 1", timeout=0.412993)
        assert time.monotonic() - began < 5, "that of the library is 10 s"
        # The rest of a limit that several questions share, without what nobody reads.
        assert failed.value.details == ("no answer within 0.413 s",)


@pytest.mark.parametrize(
    "said", [b"\x00\x00\x00\x00", b"\x01\x00\x00\x00\n", b"\x04\x00\x00\x00\nab\x00"], ids=repr
)
def test_what_is_no_greeting_of_a_server_is_no_answer(said: bytes) -> None:
    """A port may be answered by a server that ends just then, or by another program."""
    import socket

    def answer(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection:
            connection.sendall(said)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=answer, args=[server])
        thread.start()
        with pytest.raises(NotReady, match="no SQL at"):
            ask_sql(Account("lab", "x"), server.getsockname()[1], "SELECT 1", timeout=5)
        thread.join()


@pytest.mark.parametrize("tls", [True, False])
def test_what_comes_before_tls_is_not_read_as_if_it_came_by_it(tls: bool) -> None:
    """Protects answers from who can write into a connection before it is encrypted."""
    import socket

    offered = CLIENT.PROTOCOL_41 | CLIENT.SSL | CLIENT.SECURE_CONNECTION | CLIENT.PLUGIN_AUTH
    greeting = b"\x0a11.8.9-MariaDB\0" + bytes(4) + b"12345678\0"
    greeting += struct.pack("<HBHHB", offered & 0xFFFF, 45, 2, offered >> 16, 21) + bytes(10)
    greeting += b"901234567890\0mysql_native_password\0"
    injected = struct.pack("<I", 7 | 2 << 24) + b"\0\0\0\2\0\0\0"

    def answer(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection, suppress(OSError):
            connection.sendall(struct.pack("<I", len(greeting)) + greeting + injected)
            connection.recv(1024)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=answer, args=[server])
        thread.start()
        account = Account("lab", "x", ca="any" if tls else "", verify=False)
        with pytest.raises(NotReady) as failed:
            ask_sql(account, server.getsockname()[1], "SELECT 1", timeout=5)
        thread.join()
    assert "sends more than its greeting" in str(failed.value.details)


def test_a_lost_authority_is_not_made_by_looking(world: World) -> None:
    """A new one would not have signed what the nodes show, and clients would be given it."""
    with replace(world, publish=EVERYWHERE).open() as opened:  # where others reach it: TLS alone
        make(opened)
        for path in (opened.home.ca, opened.home.ca_key):
            path.unlink()
        ctx = replace(opened, sql_all=ask_all)
        view = status(ctx, "shop")
        assert view.lab.state == labs(ctx)[0].state == "unreachable"
        assert "`lab stop` and `lab start` give nodes new certificates" in str(view.requirements)
        with pytest.raises(NotReady) as failed:
            query(ctx, "shop", "n1", "SELECT 1")
        assert "`lab start`" in str(failed.value.details)
        with pytest.raises(NotReady) as failed:
            client(ctx, "shop", "n1")
        assert "`lab start shop`" in failed.value.hint
        assert not opened.home.ca.exists()
        power.stop(opened, "shop")
        assert start(opened, "shop", timeout=10).state == "ready"
        assert opened.home.ca.exists()


@pytest.mark.parametrize(
    ("states", "kind", "page"),
    [(LAB_STATES, LabState, "docs/cli.md"), (NODE_STATES, NodeState, "docs/cli.md")],
)
def test_the_table_of_states(states: dict[str, str], kind: object, page: str) -> None:
    """Code and documentation have the same states, with the same meanings."""
    assert set(states) == set(get_args(kind))
    text = (ROOT / page).read_text()
    rows = dict(re.findall(r"^\| `([a-z-]+)` \| (.+) \|$", text, re.MULTILINE))
    lab_rows = re.search(r"#+ States of a lab\n(.*?)\n#", text, re.DOTALL)
    assert lab_rows
    assert rows  # the table is there
    for state, meaning in states.items():
        assert f"| `{state}` | {meaning} |" in lab_rows[1], state

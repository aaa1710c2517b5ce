"""Who is root in a guest decides what its ports say: nothing of that is more than an error."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lab.blueprints import Engine, Situation
from lab.blueprints.rejoin import remedies
from lab.errors import CommandFailed, Interrupted, NotReady
from lab.hypervisor import GuestChannel
from lab.hypervisor.agent import AgentChannel
from lab.lifecycle.core.parallel import each_until
from lab.names import GuestName
from lab.progress import never_halt
from lab.wait import Deadline
from tests.security.guest import behaving, channel

LIMIT = 0.6
"""Seconds that each exchange may take here."""

ASKED: dict[str, Callable[[GuestChannel], object]] = {
    "personalise": lambda way: way.personalise(b"clock 00\n", timeout=LIMIT),
    "run": lambda way: way.run(["/bin/true"], timeout=LIMIT),
    "clock": lambda way: way.clock(timeout=LIMIT),
}


@pytest.mark.parametrize("behaviour", ["silent", "endless", "drip", "http"])
@pytest.mark.parametrize("what", ASKED)
def test_every_answer_has_an_end(short: Path, behaviour: str, what: str) -> None:
    """Protects all labs: whoever waits for a guest forever holds locks, slots and threads."""
    with behaving(behaviour, f"unix:{short}/port"):
        tracemalloc.start()
        began = time.monotonic()
        try:
            with pytest.raises(NotReady):
                ASKED[what](channel(short / "port"))
            assert time.monotonic() - began < LIMIT + 5.0
            assert tracemalloc.get_traced_memory()[1] < 4_000_000
        finally:
            tracemalloc.stop()


def test_wrong_types_are_no_answers(short: Path) -> None:
    """Protects rounds over all labs from errors that nobody expects."""
    with behaving("wrong", f"unix:{short}/port"):
        way = channel(short / "port")
        for _ in range(18):
            for act in ASKED.values():
                with pytest.raises((NotReady, CommandFailed)):
                    act(way)
        assert way.ping(LIMIT) in (True, False)


class _Saying:
    """The ports of a guest whose program has one answer to everything."""

    def __init__(self, answer: str) -> None:
        self._answer = answer

    def personalise(
        self, message: bytes, deadline: Deadline, halt: Callable[[], None] = never_halt
    ) -> str:
        del message, deadline, halt
        return self._answer

    def ask(self, request: dict[str, Any], timeout: float) -> Any:
        raise NotReady(f"no agent for {request} in {timeout:g} s")


@pytest.mark.parametrize(
    "answer",
    [
        "", "ok ", "ok -1", "ok 1 2", "ok x", "ok 1.5", "ok \u0663", "ok 1_0", "ok " + "9" * 10,
        "okay", "OK", " ok", "ok\n", "error", "error ", "error zz", "error 7", "error 4a 4b",
        "fail 4a",
    ],
)  # fmt: skip
def test_an_answer_that_the_program_never_gives_is_none(answer: str) -> None:
    """Protects what is reported of a lab, and the record, from a number that a guest made up."""
    guest = GuestName("lab-evil-n1")
    with pytest.raises(NotReady, match="invalid answer to personalise"):
        AgentChannel(_Saying(answer), guest).personalise(b"", timeout=LIMIT)


@pytest.mark.parametrize(("answer", "ended"), [("ok", 0), ("ok 0", 0), ("ok 999999999", 999999999)])
def test_an_answer_has_the_number_of_ended_sessions(answer: str, ended: int) -> None:
    channel = AgentChannel(_Saying(answer), GuestName("lab-good-n1"))
    assert channel.personalise(b"", timeout=LIMIT) == ended


def test_who_waits_for_a_guest_can_be_stopped(short: Path) -> None:
    """Protects who cancels: a job ends though its guest keeps sending."""
    began = time.monotonic()

    def halt() -> None:
        if time.monotonic() - began > 0.3:
            raise Interrupted("the job was cancelled")

    with behaving("drip", f"unix:{short}/port"):
        way = channel(short / "port")
        with pytest.raises(Interrupted):
            way.personalise(b"clock 00\n", timeout=30, halt=halt)
    assert time.monotonic() - began < 10


def test_one_node_that_failed_ends_the_wait_for_the_others(short: Path) -> None:
    """Protects who cancels a job that waits for several nodes: the halt is raised in one."""
    pending = [Interrupted("the job was cancelled")]

    def halt() -> None:
        if pending and time.monotonic() - began > 0.3:
            raise pending.pop()

    began = time.monotonic()
    with behaving("drip", f"unix:{short}/port"):
        way = channel(short / "port")
        with pytest.raises(Interrupted, match="cancelled"):
            each_until(
                lambda _, still: way.personalise(b"clock 00\n", timeout=30, halt=still),
                [1, 2, 3],
                halt,
            )
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("seqno", ["²", "٣", "9" * 5000, "-1", "1e3", ""])
def test_a_position_that_is_no_number(seqno: str) -> None:
    """Protects a start from digits that are none to int()."""
    view = f"position\tabc:{seqno}\nserver\tinactive\nwsrep_last_committed\t{seqno}\n"
    situation = Situation({"n1": view, "n2": view}, True, True, {})
    engine = Engine("mariadb", "11.8", "", "", "mysql", 1, 1)
    found = remedies(situation, dict.fromkeys(("n1", "n2"), engine))
    assert {one.node for one in found} == {"n1", "n2"}


def test_a_long_line_of_a_program_is_cut() -> None:
    """Protects the record, which keeps errors, from what a guest's programs print."""
    assert len(CommandFailed(["x"], 1, stderr="y" * 9_000_000).details[0]) == 2048

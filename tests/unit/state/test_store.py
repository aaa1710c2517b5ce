"""Protects: what goes into the record comes out of it, and its errors teach."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from lab.errors import Conflict, LabError, NotFound
from lab.names import Owner
from lab.options import Options
from lab.paths import Home
from lab.spec import LabSpec
from lab.state.records import (
    ImageRecord,
    LabRecord,
    LabWithNodes,
    NodeRecord,
    TemplateRecord,
    requested,
)
from lab.state.store import Store


def lab(name: str = "pxc", **fields: Any) -> LabRecord:
    values: dict[str, Any] = {
        "name": name,
        "blueprint": "pxc",
        "engine": "pxc",
        "engine_version": "8.4",
        "image": "img",
        "node_count": 3,
        "memory": 8 << 30,
        "cpus": 1,
        "disk": 0,
        "state": "creating",
        "password": "s3cret",
        "user": "lab",
        "owner": "me",
        "created_at": 1.5,
    }
    return LabRecord(**{**values, **fields})


def node(lab_name: str, idx: int) -> NodeRecord:
    return NodeRecord(lab_name, f"n{idx}", idx, "member", f"lab-{lab_name}-n{idx}", 23300 + idx)


IMAGE = ImageRecord("img", "mariadb", "mariadb", "11.8", "building", 1.0, 1.0)
TEMPLATE = TemplateRecord(
    "tpl", "img", "fp", "building", warm=False, created_at=1, used_at=1,
    blueprint="galera", node_count=3, memory=8 << 30, cpus=1, disk=0,
)  # fmt: skip


def test_a_record_has_what_was_requested() -> None:
    """Protects branches and templates: the plan of their nodes follows from the record."""
    options = Options(topology="chain", delay=60.0, on=("n3",))
    spec = LabSpec("replication", nodes=5, memory=1 << 30, cpus=2, disk=8 << 30, profile="fast",
                   options=options.said)  # fmt: skip
    assert lab(**requested(spec, "fast")).spec == spec


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(Home(tmp_path / "home")) as opened:
        yield opened


def test_a_lab_comes_back_as_it_was(store: Store) -> None:
    full = lab(
        segment=24000, template="t", expires_at=9.25, ready_seconds=1.3, started="warm", why_cold=""
    )
    store.labs.add(full)
    store.labs.add(lab("b"))
    assert store.labs.get("pxc") == full
    assert store.labs.all() == [lab("b"), full]
    assert store.labs.find("absent") is None


def test_update_changes_only_what_is_said(store: Store) -> None:
    store.labs.add(lab())
    store.labs.update("pxc", state="ready", ready_seconds=2.0, started="cold", why_cold="no RAM")
    assert store.labs.get("pxc") == lab(
        state="ready", ready_seconds=2.0, started="cold", why_cold="no RAM"
    )


def test_a_name_is_taken_once(store: Store) -> None:
    store.labs.add(lab())
    with pytest.raises(Conflict, match="lab pxc exists already"):
        store.labs.add(lab(owner="other"))
    assert store.labs.get("pxc").owner == "me"


def test_a_mistyped_name_gets_a_hint(store: Store) -> None:
    with pytest.raises(NotFound) as caught:
        store.labs.get("shop")
    assert caught.value.hint == "`lab up pxc` makes one"
    store.labs.add(lab("shop"))
    with pytest.raises(NotFound) as caught:
        store.labs.get("shpo")
    assert caught.value.hint == "did you mean 'shop'?"
    with pytest.raises(NotFound) as caught:
        store.labs.update("zzz", state="ready")
    assert "lab ls" in caught.value.hint


def test_no_password_in_a_repr() -> None:
    assert "s3cret" not in repr(lab())
    assert "s3cret" not in repr(LabWithNodes(lab(), ()))


def test_no_password_in_a_traceback(store: Store) -> None:
    with pytest.raises(LabError, match="CHECK") as caught:
        store.labs.add(lab(state="nonsense"))
    shown = "".join(traceback.format_exception(caught.value))
    assert "INSERT INTO labs" in shown
    assert "s3cret" not in shown


def test_images_and_templates(store: Store) -> None:
    store.images.add(IMAGE)
    store.images.update("img", state="ready", build_seconds=41.0, size=646 << 20)
    assert store.images.get("img").size == 646 << 20
    store.templates.add(TEMPLATE)
    store.templates.update("tpl", state="ready", warm=True, form_seconds=195.0)
    assert store.templates.get("tpl").warm is True
    assert store.templates.get("tpl").memory == 8 << 30
    with pytest.raises(Conflict, match="template tpl exists"):
        store.templates.add(TEMPLATE)
    store.templates.remove("tpl")
    store.templates.remove("tpl")
    assert store.templates.all() == []


def test_nodes_vanish_with_their_lab(store: Store) -> None:
    store.labs.add(lab())
    store.nodes.add([node("pxc", 2), node("pxc", 1)])
    assert [n.name for n in store.nodes.of("pxc")] == ["n1", "n2"]
    store.nodes.update("pxc", "n1", role="primary", extra={"gtid": [1, 2]})
    assert store.nodes.get("pxc", "n1").extra == {"gtid": [1, 2]}
    store.nodes.remove("pxc", "n2")
    store.labs.remove("pxc")
    assert store.nodes.all() == []


def test_nodes_need_a_lab_and_a_name_of_their_own(store: Store) -> None:
    with pytest.raises(NotFound, match=r"no lab .pxc"):
        store.nodes.add([node("pxc", 1)])
    store.labs.add(lab())
    with pytest.raises(Conflict, match="node n1 already"):
        store.nodes.add([node("pxc", 1), node("pxc", 1)])
    assert store.nodes.of("pxc") == []
    with pytest.raises(NotFound, match="lab pxc has no node n7"):
        store.nodes.get("pxc", "n7")
    with pytest.raises(NotFound, match="lab pxc has no node n7"):
        store.nodes.update("pxc", "n7", role="primary")


def test_many_labs_in_four_queries(store: Store) -> None:
    with store.transaction():
        for number in range(200):
            store.labs.add(lab(f"l{number:03}"))
            store.nodes.add([node(f"l{number:03}", idx) for idx in (1, 2, 3)])
    seen: list[str] = []
    engine = store._database._current_engine()
    event.listen(engine, "before_cursor_execute", lambda *args: seen.append(args[2]))
    listed = store.labs_with_nodes()
    assert len(listed) == 200
    assert [n.idx for n in listed[7].nodes] == [1, 2, 3]
    assert listed[7].lab.name == "l007"
    assert len([text for text in seen if text.startswith("SELECT")]) == 4
    assert store.lab_with_nodes("l007") == listed[7]


def test_a_transaction_is_all_or_nothing(store: Store) -> None:
    with pytest.raises(Conflict), store.transaction():  # noqa: PT012  # the block is the point
        store.labs.add(lab())
        store.nodes.add([node("pxc", 1)])
        store.resources.intend(Owner("lab", "pxc"), "guest", "lab-pxc-n1")
        assert store.labs.get("pxc")
        store.labs.add(lab())
    assert store.labs.all() == []
    assert store.resources.all() == []


def test_an_error_caught_within_a_transaction_spoils_nothing(store: Store) -> None:
    store.labs.add(lab())
    with store.transaction():
        with pytest.raises(Conflict):
            store.labs.add(lab())
        store.labs.add(lab(store.free_name("pxc")))
    assert [record.name for record in store.labs.all()] == ["pxc", "pxc-2"]


def test_free_names(store: Store) -> None:
    assert store.free_name("pxc") == "pxc"
    assert store.free_name("pxc", {"pxc", "pxc-2", "shop"}) == "pxc-3"
    store.labs.add(lab("pxc"))
    assert store.free_name("pxc") == "pxc-2"
    store.resources.intend(Owner("lab", "pxc-2"), "volume", "labs/pxc-2/n1/os")
    assert store.free_name("pxc") == "pxc-3"  # of pxc-2 something is left
    long = "a" * 40
    store.labs.add(lab("a" * 24))
    assert store.free_name(long) == "a" * 22 + "-2"


def test_events(store: Store) -> None:
    for number in range(5):
        store.events.add("lab:pxc", "clone", "end", f"volume {number}", 0.5)
    store.events.add("", "gc", "note")
    latest = store.events.latest("lab:pxc", limit=2)
    assert [entry.text for entry in latest] == ["volume 3", "volume 4"]
    assert latest[0].seconds == 0.5
    assert len(store.events.latest()) == 6
    assert store.events.prune(latest[-1].at) == 4
    assert [entry.step for entry in store.events.latest()] == ["clone", "gc"]


def test_what_else_is_stored_leaves_the_version_of_labs(store: Store, tmp_path: Path) -> None:
    """Protects readers of a service: a job stores steps all the time, and changes a lab rarely."""
    with Store(Home(tmp_path / "home")) as other:
        other.labs.add(lab())
        labs, all_of_it = store.labs_version(), store.version()
        other.events.add("lab:pxc", "ready", "done")
        assert store.version() != all_of_it
        assert store.labs_version() == labs
        changes: list[Callable[[], object]] = [
            lambda: other.labs.update("pxc", protected=True),
            lambda: other.labs.update("pxc", protected=False),
            lambda: other.nodes.add([node("pxc", 1)]),
            lambda: other.labs.remove("pxc"),
        ]
        for change in changes:
            change()
            now = store.labs_version()
            assert now != labs
            assert store.labs_version() == now
            labs = now
        assert store.tokens_version() == store.tokens_version()


def test_the_version_of_many_labs_is_that_of_all(store: Store, tmp_path: Path) -> None:
    """Protects the service's loop from comparing for longer than reading would take."""
    with Store(Home(tmp_path / "home")) as other:
        with other.transaction():
            for number in range(501):
                other.labs.add(lab(f"lab{number}"))
        labs = store.labs_version()
        assert labs == store.version()
        taken = [_seconds(ask) for ask in (store.version, store.labs_version)]
        assert taken[1] < 10 * taken[0], "it read them each time"
        other.events.add("lab:lab1", "ready", "done")
        assert store.labs_version() != labs


def _seconds(ask: Callable[[], object]) -> float:
    """Processor time of a hundred questions."""
    began = time.thread_time()
    for _ in range(100):
        ask()
    return time.thread_time() - began

"""The client against a service on the fakes: what it returns, what it raises, what it undoes."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab import errors
from lab.client import Client, credentials
from lab.client.client import LabFields
from lab.client.heartbeat import alive
from lab.client.problem import error_of
from lab.config.labfile import KEYS
from lab.errors import (
    CommandFailed,
    Conflict,
    Forbidden,
    HostUnfit,
    InvalidSpec,
    LabError,
    LimitReached,
    NotFound,
    NotReady,
    StatementRefused,
    Unauthorized,
)
from lab.progress import Event
from lab.request import body_fields
from lab.requests.labs import CreateLab, RestartLab
from lab.requests.snapshots import TakeSnapshot
from lab.spec import LabSpec
from lab.wait import Deadline, until
from tests.support.answering import answering
from tests.support.serve_world import MEMORY, Site, site


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site(tmp_path_factory.mktemp("client")) as found:
        yield found


@pytest.fixture
def client(here: Site) -> Iterator[Client]:
    with Client(str(here.client.base_url), here.token(), patience=5.0) as found:
        yield found


def test_a_lab_for_a_block(client: Client) -> None:
    """Protects the promise of the block: a lab that is ready, then none, errors or not."""
    with client.lab("galera", nodes=2, memory=MEMORY, name="block") as lab:
        assert (lab.name, lab.state, len(lab.nodes)) == ("block", "ready", 2)
        assert lab.dsn == f"mysql://lab:{lab.password}@{lab.nodes[0].address}/"
        assert client.get("block") == lab
        assert [one.name for one in client.labs(state="ready")] == ["block"]
        assert lab.password not in repr(lab)
    with pytest.raises(NotFound):
        client.get("block")
    with pytest.raises(ZeroDivisionError), client.lab("galera", nodes=1, memory=MEMORY) as lab:
        raise ZeroDivisionError
    assert client.labs() == []
    with client.lab("galera", nodes=1, memory=MEMORY) as lab:
        client.delete(lab.name)  # as a lease that was over


def test_steps_are_heard_in_order(client: Client) -> None:
    """Protects progress: every step as it happens, the service's own bookkeeping left out."""
    heard: list[Event] = []
    spec = LabSpec("galera", nodes=1, memory=MEMORY)
    lab = client.create(spec, listener=heard.append)
    begun = [event.step for event in heard if event.state == "begin"]
    assert begun.index("clone") < begun.index("ready")
    assert "job" not in begun
    took = [event.seconds for event in heard if event.step == "ready" and event.state == "end"]
    assert took
    client.delete(lab.name, listener=heard.append)
    assert client.labs() == []


def test_what_can_be_done_with_a_lab(client: Client) -> None:
    """Protects the rest of the methods: each does what it says."""
    with client.lab("galera", nodes=2, memory=MEMORY, name="work", heartbeat=60, idle=900) as lab:
        assert (lab.heartbeat, lab.idle) == (60, 900)
        assert client.extend("work", 900).expires_at == pytest.approx(time.time() + 900, abs=20)
        assert client.protect("work").protected
        with pytest.raises(Conflict, match="protected"):
            client.delete("work")
        assert not client.protect("work", protected=False).protected
        assert client.heartbeat("work").heartbeat == 60
        assert client.power("kill", "work", "n2").state == "not-primary"
        assert client.power("start", "work", "n2").state == "ready"
        assert client.run(RestartLab(lab="work", node="n2", force=True)).state == "ready"
        assert client.power("stop", "work").state == "stopped"
        with pytest.raises(NotReady, match="lab work is stopped and will not become ready"):
            client.wait("work", timeout=5)
        client.power("start", "work")
        assert client.wait("work").state == "ready"
        with pytest.raises(CommandFailed) as failed:
            client.execute("work", "n1", ["no-such-program", "-x"])
        assert (failed.value.argv, failed.value.status) == (("no-such-program",), 127)
        assert client.jobs.get(lab.job).check().lab == "work"
        [image], [template] = client.images(), client.templates()[:1]
        assert client.image(image.recipe) == image
        assert (lab.image, template.blueprint) == (image.key, "galera")


def test_signs_of_life(client: Client) -> None:
    """Protects a long block from its own lab's short life."""
    with client.lab("galera", nodes=1, memory=MEMORY, heartbeat=10) as lab:
        first = client.get(lab.name).expires_at
        with alive(client.heartbeat, lab.name, 0.1):
            time.sleep(0.5)
        later = client.get(lab.name).expires_at
    assert first is not None
    assert later is not None
    assert later - first > 0.2


def test_lists_are_whole(client: Client, here: Site) -> None:
    """Protects who has many labs: the client asks for the parts behind the first."""
    names = [f"many-{letter}" for letter in "abc"]
    for name in names:
        client.create("galera", name=name, nodes=1, memory=MEMORY)
    asked = {"limit": 2}
    assert [item["name"] for item in client._wire.items("/v1/labs", asked)] == names
    with Client(str(here.client.base_url), here.admin) as admin:
        assert [lab.name for lab in admin.labs(project="shop")] == names
    for name in names:
        client.delete(name)


def test_fields_that_no_client_sets_are_refused(client: Client) -> None:
    """Protects from a typo, and from what only the service or its host says, being ignored."""
    with pytest.raises(TypeError, match="CreateLab has no field idle_time"):
        client.create("galera", idle_time=900)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="owner"):
        client.create("galera", owner="root")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="files"):
        client.datasets.create("crm", "lab:shop", files=("more.sql",))
    assert client.labs() == []


def test_editors_and_type_checkers_know_all_fields() -> None:
    """Protects those who write tests with the client: a typo is seen before they run."""
    further = set(body_fields(CreateLab)) - set(body_fields(LabSpec))
    assert set(LabFields.__annotations__) == KEYS.keys() | further


def test_refusals_are_our_errors(client: Client, here: Site) -> None:
    """Protects callers from HTTP: they catch what the lifecycle raises as well."""
    with pytest.raises(InvalidSpec, match="nope"):
        client.create("nope")
    with pytest.raises(InvalidSpec, match="combined with nodes"):
        client.create(LabSpec("galera"), nodes=1)
    with pytest.raises(InvalidSpec, match="1 to 9 nodes"):
        client.create("galera", nodes=12)
    with pytest.raises(LimitReached, match="limited to"):
        client.create("galera", nodes=1, memory=MEMORY, ttl=1e6)
    with pytest.raises(NotFound, match="absent"):
        client.extend("absent", 60)
    with pytest.raises(NotFound, match="no job"):
        client.jobs.follow("0-0", print)
    poor = Client(client.url, here.token("poor", project="poor", labs=0))
    with poor, pytest.raises(LimitReached, match="limited to 0 labs"):
        poor.create("galera", nodes=1, memory=MEMORY)
    with Client(client.url, "lab_nobody") as nobody, pytest.raises(Unauthorized):
        nobody.labs()


def test_what_runs_out_of_time_is_called_off(client: Client) -> None:
    """Protects the host from labs that nobody waits for."""
    with pytest.raises(NotReady, match="has not ended after"):
        client.create("galera", nodes=9, memory=MEMORY, name="late", timeout=0.01)
    assert client.labs() == []


def test_the_time_of_a_snapshot_is_limited(client: Client) -> None:
    """Its job continues, as that of a removal does."""
    with client.lab("galera", nodes=1, memory=MEMORY, name="work"):
        with pytest.raises(NotReady, match="has not ended after 0 s"):
            client.run(TakeSnapshot(lab="work", name="late"), timeout=0.0)
        assert until(lambda: client.snapshots.all("work")[1:], Deadline.after(20))


def test_an_interrupt_calls_off(client: Client) -> None:
    """Protects the host from Ctrl-C: at the first step, when only we know of the job."""

    def interrupt(_: Event) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        client.create("galera", nodes=2, memory=MEMORY, name="ctrl-c", listener=interrupt)
    assert client.labs() == []


REFUSED = (422, "application/problem+json", b'{"status": 422, "detail": "enough"}')


def test_a_request_that_may_have_arrived_is_the_same_request() -> None:
    """Protects from two labs for one request, and from a program that runs twice."""
    with answering((0, "", b""), (502, "text/html", b"<html>"), REFUSED) as (url, heard):
        with Client(url, "x") as poor, pytest.raises(InvalidSpec, match="enough"):
            poor.create("galera")
        assert len(heard) == 3
        assert len({headers["Idempotency-Key"] for headers in heard}) == 1
    with answering((0, "", b""), REFUSED) as (url, heard):
        with Client(url, "x") as poor, pytest.raises(HostUnfit, match="cannot be reached"):
            poor.execute("shop", "n1", ["reboot"])
        assert len(heard) == 1


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((200, "text/html", b"<html>"), "not JSON"),
        ((200, "application/json", b"[" * 100_000), "not JSON"),
        ((200, "application/json", b"[1]"), "not a valid lab"),
        ((301, "text/html", b""), "redirected"),
        ((404, "text/html", b"<html>"), "not an answer of lab serve"),
        ((500, "application/problem+json", b"[]"), "not an answer of lab serve"),
    ],
)
def test_what_is_no_service_is_told(answer: tuple[int, str, bytes], said: str) -> None:
    """Protects who mistook the URL: an error of ours, and the token goes nowhere else."""
    with answering(answer) as (url, heard), Client(url, "x") as poor:
        with pytest.raises(LabError, match=said):
            poor.get("shop")
        assert len(heard) == 1


def test_a_service_that_is_not_there_is_told_soon() -> None:
    """Protects who mistyped the URL from a long wait."""
    began = time.monotonic()
    nobody = Client("http://127.0.0.1:9", "secret", patience=0.3)
    with nobody, pytest.raises(HostUnfit, match="cannot be reached") as failed:
        nobody.labs()
    assert "secret" not in f"{failed.value} {failed.value.hint} {failed.value.details}"
    assert time.monotonic() - began < 8


def test_every_error_survives_the_way() -> None:
    """Protects the tree: a class that is added there arrives as itself."""
    from lab.api.core.problem import problem

    def kinds(root: type[LabError]) -> Iterator[type[LabError]]:
        yield root
        for kind in root.__subclasses__():
            yield from kinds(kind)

    ours = [kind for kind in kinds(LabError) if kind.__module__ == errors.__name__]
    assert len(ours) > 12
    for kind in ours:
        made: Any
        if kind is CommandFailed:
            made = CommandFailed(["mariadb"], -9, stderr="a\nb", where="n1", hint="h")
        elif kind is StatementRefused:
            made = StatementRefused(1146, "no such table\na\nb", "42S02")
        else:
            made = kind("what", hint="h", details=["a", "b"])
        back = error_of(json.loads(json.dumps(problem(made))))
        assert (type(back), back.what, back.hint, back.details) == (
            kind, made.what, made.hint, ("a", "b"),
        )  # fmt: skip
        if kind is CommandFailed and isinstance(back, CommandFailed):
            assert (back.argv, back.status, str(back)) == (("mariadb",), -9, str(made))
    assert type(error_of({"type": "urn:lab:error:of-tomorrow", "status": 409})) is Conflict
    limit = error_of({"status": 429}, retry_after=3.0)
    assert isinstance(limit, LimitReached)
    assert limit.retry_after == 3.0


def test_the_token_is_found_and_kept(tmp_path: Path) -> None:
    """Protects the token: from the environment or a file of the user, never printed."""
    env = {"XDG_CONFIG_HOME": str(tmp_path)}
    with pytest.raises(Unauthorized, match="none is configured") as none:
        credentials.find_token(env)
    assert str(tmp_path / "lab" / "token") in none.value.hint
    path = tmp_path / "lab" / "token"
    path.parent.mkdir()
    path.write_text("lab_1_secret\n")
    path.chmod(0o640)
    with pytest.raises(Forbidden, match="others may read") as shared:
        credentials.find_token(env)
    assert "secret" not in f"{shared.value} {shared.value.hint} {shared.value.details}"
    path.chmod(0o600)
    assert credentials.find_token(env) == "lab_1_secret"
    assert credentials.find_token({"LAB_TOKEN_FILE": str(path)}) == "lab_1_secret"
    assert credentials.find_token({**env, "LAB_TOKEN": "lab_2"}) == "lab_2"
    with pytest.raises(InvalidSpec) as odd:
        credentials.check_token("sec\nret")
    assert "sec" not in f"{odd.value} {odd.value.hint}".replace("security", "")
    assert "lab_1" not in repr(Client("http://127.0.0.1:9", "lab_1_secret"))


@pytest.mark.parametrize(
    "url", ["labs:80", "ftp://x", "http://", "http://u:secret@x", "http://x?a=secret", "http://x:p"]
)
def test_a_url_is_a_url(url: str) -> None:
    """Protects who mistypes, and secrets that do not belong there."""
    with pytest.raises(InvalidSpec) as wrong:
        credentials.check_url(url)
    assert "secret@" not in str(wrong.value)

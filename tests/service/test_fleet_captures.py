"""Captures follow demand: images, templates and datasets come from the host that has them."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from lab.fleet import authority
from lab.fleet.database import FleetDatabase, migrate
from lab.units import MIB
from lab.wait import Deadline, until
from tests.support.fleet_process import HOSTS, Fleet, up
from tests.support.postgres_server import NEEDED, postgres, programs
from tests.support.serve_process import Serving
from tests.support.serve_world import BODY


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A fleet's database."""
    if programs() is None:
        pytest.skip(NEEDED)
    with postgres() as found:
        migrate(found.url)
        yield found.url


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, url: str) -> Iterator[Fleet]:
    """Three hosts that have joined."""
    found = Fleet(tmp_path_factory.mktemp("fleet"), url)
    try:
        for name in HOSTS:
            found.start(name)
        yield found
    finally:
        found.close()


def texts(host: Serving, job: str) -> list[str]:
    """What a job reported, which ended."""
    answer = host.ask("GET", f"/v1/jobs/{job}/events", Accept="text/event-stream")
    assert answer.status_code == 200, answer.text
    lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    return [json.loads(line)["text"] for line in lines]


def down(host: Serving, *names: str) -> None:
    for name in names:
        assert host.ask("DELETE", f"/v1/labs/{name}?wait=60").status_code == 204


def _made_here(said: list[str]) -> list[str]:
    return [text for text in said if "build" in text or "first use" in text]


def test_a_template_is_fetched(fleet: Fleet) -> None:
    """Protects the second host from building an image and forming a cluster, which takes long."""
    h1, h2, h3 = (fleet.hosts[name] for name in HOSTS)
    first = up(h1, "first", on="h1")
    second = up(h3, "second", on="h2")
    assert second["started"] == first["started"] == "warm"
    said = texts(h3, second["job"])
    assert any("fetching the template" in text and "from h1" in text for text in said), said
    assert _made_here(said) == [], "\n".join(said)
    ours, theirs = (host.ask("GET", "/v1/templates").json() for host in (h1, h2))
    assert [one["warm"] for one in theirs] == [True]
    assert ours[0]["form_seconds"] == theirs[0]["form_seconds"], "it was formed once"
    third = up(h3, "third", on="h2")
    assert not any("fetching" in text for text in texts(h2, third["job"]))
    # Another cluster of the same image: the image is here by now, the cluster is formed.
    other = up(h3, "other", on="h3", blueprint="single", nodes=1)
    said = texts(h3, other["job"])
    assert any("fetching the image" in text for text in said), said
    down(h3, "first", "second", "third", "other")


def test_two_jobs_fetch_once(fleet: Fleet) -> None:
    """Protects two jobs that need the same at the same time from each other."""
    h1, h2, _ = (fleet.hosts[name] for name in HOSTS)
    more = {"memory": 416 * MIB}
    up(h1, "first", on="h1", **more)
    jobs = [
        h2.ask("POST", "/v1/labs", {**BODY, **more, "name": name, "host": "h2"}).json()["id"]
        for name in ("a", "b")
    ]
    ended = [h2.ask("GET", f"/v1/jobs/{job}?wait=60").json()["state"] for job in jobs]
    assert ended == ["succeeded", "succeeded"]
    said = [text for job in jobs for text in texts(h2, job)]
    assert len([text for text in said if "fetching the template" in text]) == 2, "begun and ended"
    assert _made_here(said) == [], "\n".join(said)
    down(h2, "first", "a", "b")


def test_a_dataset_is_fetched(fleet: Fleet) -> None:
    """Protects data: a lab of it may be on any host, and a version is the same on all."""
    h1, h2, h3 = (fleet.hosts[name] for name in HOSTS)
    up(h3, "origin", on="h1")
    made = h1.ask("POST", "/v1/datasets?wait=60", {"name": "shop", "source": "lab:origin"})
    assert made.status_code == 201, made.text

    def known() -> bool:
        return bool(h3.ask("GET", "/v1/hosts/h1").json()["datasets"] == ["shop@1"])

    assert until(known, Deadline.after(20))
    lab = up(h3, "mine", on="h2", dataset="shop")
    assert lab["image"] == made.json()["versions"][0]["image"]
    there = h2.ask("GET", "/v1/datasets/shop").json()
    assert [one["version"] for one in there["versions"]] == [1]
    up(h3, "more", on="h3")
    again = h3.ask("POST", "/v1/datasets", {"name": "shop", "source": "lab:more"})
    assert (again.status_code, "shop@1" in again.json()["detail"]) == (409, True)
    made = h1.ask("POST", "/v1/datasets/shop/refresh?wait=60")
    assert made.status_code == 201, made.text

    def newer() -> bool:
        return "shop@2" in h3.ask("GET", "/v1/hosts/h1").json()["datasets"]

    assert until(newer, Deadline.after(20))
    copied = h2.ask("POST", "/v1/datasets/shop/refresh")
    assert (copied.status_code, "was imported" in copied.json()["detail"]) == (422, True)
    latest = up(h3, "latest", on="h2", dataset="shop")
    assert latest["image"] == made.json()["versions"][-1]["image"], "not the latest of h2"
    absent = h3.ask("POST", "/v1/labs", {**BODY, "dataset": "shop@3"})
    assert absent.status_code == 404
    down(h3, "mine", "latest", "more")
    # The number of a version that another host has is not given again.
    assert h1.ask("DELETE", "/v1/datasets/shop@2?wait=60").status_code == 204
    assert h1.ask("POST", "/v1/datasets/shop/refresh?wait=60").status_code == 201
    there = h1.ask("GET", "/v1/datasets/shop").json()["versions"]
    assert [one["version"] for one in there] == [1, 3]
    engine = up(h3, "engine", on="h3", dataset="shop", engine="mariadb")
    assert engine["image"] == there[-1]["image"]
    down(h3, "engine", "origin")


def test_data_of_another_project_is_not_fetched(fleet: Fleet) -> None:
    """Protects data: who must not see it on its host does not get it on another."""
    h1, h2, _ = (fleet.hosts[name] for name in HOSTS)
    up(h1, "origin", on="h1")
    made = h1.ask("POST", "/v1/datasets?wait=60", {"name": "own", "source": "lab:origin"})
    assert made.status_code == 201, made.text

    def known() -> bool:
        return "own@1" in h2.ask("GET", "/v1/hosts/h1").json()["datasets"]

    assert until(known, Deadline.after(20))
    token = h2.ask("POST", "/v1/tokens", {"name": "ci", "scope": "use", "project": "ci"}).json()
    ci = Serving(h2.process, h2.url, token["text"], h2.talk)
    try:
        asked = {**BODY, "dataset": "own", "host": "h2"}
        assert ci.ask("POST", "/v1/labs?wait=30", asked).status_code == 404
    finally:
        ci.client.close()
    down(h1, "origin")


def test_nobody_else_is_given_archives(fleet: Fleet) -> None:
    """Protects data from whoever reaches the API, with whatever token."""
    h1 = fleet.hosts["h1"]
    for path in ("/v1/fleet/archives", "/v1/labs/x/../../fleet/archives"):
        with (
            pytest.raises(InvalidStatus) as caught,
            connect(
                f"ws{h1.url.removeprefix('http')}{path}",
                additional_headers={"Authorization": f"Bearer {h1.token}"},
            ),
        ):
            pass
        assert caught.value.response.status_code in (403, 404), path


def test_a_host_that_was_removed_is_given_nothing(fleet: Fleet, url: str) -> None:
    """Protects data from a machine that was a host once: its certificate is valid for a year."""
    h1 = fleet.hosts["h1"]
    database = FleetDatabase(url)
    try:
        own = authority.identify(database, "stranger")
    finally:
        database.close()
    tls = ssl.create_default_context(cadata=own.authority.decode())
    with TemporaryDirectory() as place:
        for name, content in (("crt", own.own.certificate), ("key", own.own.private)):
            (Path(place) / name).write_bytes(content)
        tls.load_cert_chain(f"{place}/crt", f"{place}/key")
    peers = h1.ask("GET", "/v1/hosts/h1").json()["url"]
    with (
        pytest.raises(InvalidStatus) as caught,
        connect(
            f"wss{peers.removeprefix('https')}/v1/fleet/archives", ssl=tls, server_hostname="h1"
        ),
    ):
        pass
    assert caught.value.response.status_code == 403


class Cut:
    """Passes connections on to a host; the first one breaks after some bytes of its answers."""

    def __init__(self, url: str, after: int) -> None:
        self._to, self._after = urlsplit(url), after
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"https://127.0.0.1:{self._listening.getsockname()[1]}"
        self.connections = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with suppress(OSError), self._listening:
            while True:
                client, _ = self._listening.accept()
                self.connections += 1
                most = self._after if self.connections == 1 else 1 << 40
                threading.Thread(target=self._both, args=(client, most), daemon=True).start()

    def _both(self, client: socket.socket, most: int) -> None:
        at = str(self._to.hostname), self._to.port or 0
        with client, socket.create_connection(at) as server:
            up = threading.Thread(target=self._carry, args=(client, server, 1 << 40), daemon=True)
            up.start()
            self._carry(server, client, most)
            up.join()

    def _carry(self, source: socket.socket, to: socket.socket, most: int) -> None:
        with suppress(OSError):
            while most > 0 and (data := source.recv(4096)):
                to.sendall(data)
                most -= len(data)
        for end in (source, to):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def test_a_transfer_is_resumed(fleet: Fleet, url: str) -> None:
    """Protects long transfers from beginning again when a connection breaks."""
    h1, h2, _ = (fleet.hosts[name] for name in HOSTS)
    more = {"memory": 448 * MIB}
    up(h1, "first", on="h1", **more)
    cut = Cut(h1.ask("GET", "/v1/hosts/h1").json()["url"], 12_000)
    database = FleetDatabase(url)
    try:
        before = database.run("SELECT url FROM lab.hosts WHERE name = 'h1'")[0].url
        database.run("UPDATE lab.hosts SET url = :url WHERE name = 'h1'", url=cut.url)
        lab = up(h2, "second", on="h2", **more)
        database.run("UPDATE lab.hosts SET url = :url WHERE name = 'h1'", url=before)
    finally:
        database.close()
        cut.close()
    said = texts(h2, lab["job"])
    assert any("it is resumed" in text for text in said), said
    assert cut.connections == 2
    assert lab["started"] == "warm"
    assert _made_here(said) == [], "\n".join(said)
    down(h2, "first", "second")

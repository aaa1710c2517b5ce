"""What the service keeps of messages that it sent."""

from __future__ import annotations

import http.server
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dbos import DBOS

from lab.api.events import webhooks
from lab.config.servefile import Serve
from lab.errors import HostUnfit
from lab.state.service import JobRecord
from lab.wait import Deadline, until
from tests.support.serve_world import site

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


def test_the_signature_is_that_of_standard_webhooks() -> None:
    """Protects receivers, who verify with its libraries: an example of its tests."""
    found = webhooks.signature(
        webhooks.secret_of(SECRET.encode()),
        "msg_p5jXN8AQM9LWM0D4loKWxJek",
        1614265330,
        b'{"test": 2432232314}',
    )
    assert found == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }
    named = webhooks.signature(b"x" * 24, "webhook-shop-1.5-2.5", 1, b"{}")
    assert named["webhook-id"] == "webhook-shop-1_5-2_5"


@pytest.mark.parametrize(
    "secret",
    [
        "0123456789abcdef0123456789abcdef",
        "whsec_",
        "whsec_c2hvcnQ=",
        f"whsec_{'A' * 88}",
        "whsec_not Base64: not Base64: not Base64",
        "WHSEC_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
    ],
)
def test_another_secret_is_refused(tmp_path: Path, secret: str) -> None:
    """Protects receivers from messages that their library refuses."""
    file = tmp_path / "secret"
    file.write_text(secret)
    serve = Serve(webhook="http://127.0.0.1:1/", webhook_secret=str(file))
    with pytest.raises(HostUnfit, match="has no key of Standard Webhooks") as refused:
        webhooks.open_webhook(serve, lambda _: None)
    assert secret == "whsec_" or secret not in str(refused.value)
    assert "openssl rand -base64 32" in refused.value.hint


@pytest.fixture
def hook() -> Iterator[tuple[str, list[str]]]:
    """The URL of one who listens, and what they heard: the event and its lab or dataset."""
    heard: list[str] = []

    class Ear(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            heard.append(f"{message['event']} {message['lab'] or message['dataset']}")
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Ear) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}", heard
        server.shutdown()


def test_messages_that_were_sent_are_forgotten(tmp_path: Path, hook: tuple[str, list[str]]) -> None:
    """Protects the disk of a service that runs for years."""
    url, heard = hook
    secret = tmp_path / "secret"
    secret.write_text(f"{SECRET}\n")
    sending: dict[str, Any] = {"webhook": url, "webhook_secret": str(secret), "warn_before": 90}
    # A sweep by itself, once the messages are forgotten, would send them again.
    with site(tmp_path / "home", **sending, sweep=3600.0) as here:
        here.make("reported", ttl=60)
        here.service.sweeper.sweep()

        def sent() -> bool | None:
            found = DBOS.list_workflows(name="webhook")
            return (sorted(heard) == ["expiring reported", "ready reported"]
                    and {one.status for one in found} == {"SUCCESS"}) or None  # fmt: skip

        assert until(sent, Deadline.after(20)), heard
        here.service.sweeper.prune(time.time() + 1)
        assert DBOS.list_workflows(name="webhook"), "a message would be sent again"
        here.service.sweeper.prune(time.time() + 91)
        assert DBOS.list_workflows(name="webhook") == []
        assert sorted(heard) == ["expiring reported", "ready reported"]


def test_each_branch_has_a_message(tmp_path: Path, hook: tuple[str, list[str]]) -> None:
    """Protects those who wait for labs by messages: a branch is one as well."""
    url, heard = hook
    secret = tmp_path / "secret"
    secret.write_text(f"{SECRET}\n")
    sending: dict[str, Any] = {"webhook": url, "webhook_secret": str(secret)}
    with site(tmp_path / "home", **sending) as here:
        here.make("shop")
        asked = {"name": "try", "at": "origin", "count": 2}
        made = here.ask("POST", "/v1/labs/shop/branches?wait=60", asked)
        assert made.status_code == 201, made.text
        wanted = ["ready shop", "ready try-1", "ready try-2"]
        assert until(lambda: sorted(heard) == wanted, Deadline.after(20)), heard


def test_refreshes_have_messages(tmp_path: Path, hook: tuple[str, list[str]]) -> None:
    """Protects operators of datasets: a refresh that failed is not found by chance."""
    url, heard = hook
    secret = tmp_path / "secret"
    secret.write_text(f"{SECRET}\n")
    sending: dict[str, Any] = {"webhook": url, "webhook_secret": str(secret)}
    with site(tmp_path / "home", **sending) as here:
        here.make("origin")
        body = {"name": "bench", "source": "lab:origin"}
        assert here.ask("POST", "/v1/datasets?wait=60", body).status_code == 201
        assert here.ask("POST", "/v1/datasets/bench/refresh?wait=60").status_code == 201
        assert here.ask("DELETE", "/v1/labs/origin?wait=60").status_code == 204
        assert here.ask("POST", "/v1/datasets/bench/refresh?wait=60").status_code == 404
        wanted = ["failed bench", "ready origin", "refreshed bench@2", "removed origin"]
        assert until(lambda: sorted(heard) == wanted, Deadline.after(20)), heard


def test_a_webhook_that_is_down_keeps_few_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects the service's threads; the oldest of too many messages are dropped, and counted."""
    monkeypatch.setattr(webhooks, "_WAITING", 100)
    secret = tmp_path / "secret"
    secret.write_text(f"{SECRET}\n")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/"
        sending: dict[str, Any] = {"webhook": url, "webhook_secret": str(secret)}
        with site(tmp_path / "home", **sending, sweep=3600.0) as here:
            assert here.service.core.ready.is_set()
            assert webhooks._hook is not None
            counts: list[int] = []
            webhooks._hook.dropped = counts.append
            before = threading.active_count()
            for number in range(200):
                record = JobRecord(
                    f"job-{number}", "create", f"lab-{number}", "shop", "", "failed", "", 1.0
                )
                webhooks.ended(record)
            assert threading.active_count() - before < 20
            waiting = DBOS.list_workflows(name="webhook", status="ENQUEUED")
            assert 90 <= len(waiting) <= 105
            assert waiting[-1].workflow_id == "webhook-job-199"
            assert sum(counts) >= 90

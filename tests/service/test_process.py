"""`lab serve` as a process: its first start, its end, limits, TLS, webhooks."""

from __future__ import annotations

import base64
import hmac
import http.server
import json
import re
import signal
import socket
import ssl
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from shutil import which
from urllib.parse import urlsplit

import httpx
import pytest

from lab.api.server import warn
from lab.run import run
from tests import ROOT
from tests.support.serve_process import configure, environment, serving
from tests.support.serve_world import BODY, settings_of


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return environment(tmp_path)


def test_the_first_start_and_the_end(env: dict[str, str]) -> None:
    """Protects the administrator's token, and labs from the service's end: they stay."""
    with serving(env) as first:
        path = Path(env["LAB_HOME"]) / "admin-token"
        assert path.stat().st_mode & 0o777 == 0o600
        assert first.ask("POST", "/v1/labs?wait=30", {**BODY, "name": "stays"}).status_code == 201
        first.process.send_signal(signal.SIGTERM)
        assert first.process.wait(15) == 0
        assert first.process.stdout is not None
        assert first.process.stdout.read().split() == [first.token]
        assert all(first.token not in line for line in first.talk)
        secret = [line for line in first.talk if '"token": "lab_' in line]
        assert secret == []
    for name in ("state.db", "jobs.db"):
        assert (Path(env["LAB_HOME"]) / name).stat().st_mode & 0o077 == 0
    with serving(env) as second:
        assert second.ask("GET", "/v1/labs/stays").json()["state"] == "ready"
        assert second.process.poll() is None
        logged = json.loads(second.until_logged('"getLab"'))
        assert (logged["path"], logged["status"]) == ("/v1/labs/stays", 200)
        assert logged["request"]
        second.process.kill()
        second.process.wait(10)
        assert second.process.stdout is not None
        assert second.process.stdout.read() == ""  # the token is printed once


def test_a_stream_ends_with_the_service(env: dict[str, str]) -> None:
    """Protects shutdown from clients who listen forever."""
    with serving(env) as found:
        headers = {"Authorization": f"Bearer {found.token}", "Accept": "text/event-stream"}
        with httpx.stream("GET", f"{found.url}/v1/events", headers=headers, timeout=30) as answer:
            lines = answer.iter_lines()
            assert next(lines) == "retry: 1000"
            job = found.ask("POST", "/v1/labs", BODY).json()["id"]
            seen = next(line for line in lines if line.startswith("data: "))
            assert json.loads(seen[6:])["job"] == job
            found.process.send_signal(signal.SIGTERM)
            for _ in lines:
                pass
        assert found.process.wait(20) == 0


def test_requests_have_limits(env: dict[str, str]) -> None:
    """Protects the service from what is too large, too slow, or tries too often."""
    configure(env, '[serve]\nbody_limit = "1K"\nrequest_timeout = 0.5\nfailed_auth = 3\n')
    with serving(env) as found:
        large = found.ask("POST", "/v1/labs", {**BODY, "name": "x" * 2000})
        assert (large.status_code, large.json()["type"]) == (413, "urn:lab:error:too-large")
        url = urlsplit(found.url)
        with socket.create_connection((url.hostname, url.port or 0), timeout=10) as slow:
            head = f"POST /v1/labs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {found.token}\r\n"
            slow.sendall(f"{head}Content-Length: 9\r\n\r\n{{".encode())
            assert b" 408 " in slow.recv(200)
        wrong = {"Authorization": "Bearer x"}
        for _ in range(3):
            assert httpx.get(f"{found.url}/v1/labs", headers=wrong, timeout=10).status_code == 401
        late = httpx.get(f"{found.url}/v1/labs", headers=wrong, timeout=10)
        assert late.status_code == 429
        assert 0 < int(late.headers["retry-after"]) <= 60
        assert found.ask("GET", "/v1/labs").status_code == 200
        assert httpx.get(f"{found.url}/readyz", timeout=10).status_code == 200


def test_tls_by_files_and_a_warning_without(
    env: dict[str, str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Protects tokens on the way: TLS works with two files, and its absence is reported."""
    for address, warned in (("127.0.0.1", False), ("::1", False), ("192.0.2.1", True)):
        caplog.clear()
        warn(settings_of(tmp_path, address=address))
        assert ("unencrypted" in caplog.text) is warned
    assert "reach SQL" not in caplog.text
    warn(settings_of(tmp_path, publish="10.0.0.5"))
    assert "others can reach SQL at 10.0.0.5" in caplog.text
    cert, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
         "-nodes", "-keyout", str(key), "-out", str(cert), "-days", "2",
         "-subj", "/CN=x", "-addext", "subjectAltName=IP:127.0.0.1"], timeout=30)  # fmt: skip
    configure(env, f'[serve]\ntls_cert = "{cert}"\ntls_key = "{key}"\n')
    with serving(env) as found:
        assert found.url.startswith("https://127.0.0.1:")
        answer = httpx.get(
            f"{found.url}/healthz", verify=ssl.create_default_context(cafile=cert), timeout=10
        )
        assert answer.text == "ok\n"


def test_a_webhook_is_signed_and_tried_again(env: dict[str, str], tmp_path: Path) -> None:
    """Protects receivers: one that was away gets events later, and can verify the sender."""
    heard: list[tuple[str, Mapping[str, str], bytes]] = []

    class Ear(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            heard.append((json.loads(body)["event"], dict(self.headers), body))
            self.send_response(503 if len(heard) == 1 else 204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    def until_heard(*events: str) -> None:
        end = time.monotonic() + 15
        while set(events) - {event for event, _, _ in heard[1:]}:
            assert time.monotonic() < end, heard
            time.sleep(0.05)

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Ear)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    secret = tmp_path / "secret"
    secret.write_text("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n")
    url = f"http://127.0.0.1:{server.server_address[1]}/hook"
    configure(env, f'[serve]\nwebhook = "{url}"\nwebhook_secret = "{secret}"\nsweep = 0.1\n')
    try:
        with serving(env) as found:
            made = found.ask("POST", "/v1/labs?wait=30", {**BODY, "name": "hook"}).json()
            found.ask("PATCH", "/v1/labs/hook", {"ttl": 60})
            until_heard("ready", "expiring")
            found.ask("DELETE", "/v1/labs/hook?wait=30")
            until_heard("removed")
    finally:
        server.shutdown()
        server.server_close()
    ready = [body for event, _, body in heard if event == "ready"]
    reported = json.loads(ready[0])
    assert (reported["lab"], reported["job"]) == ("hook", made["job"])
    again = [headers["webhook-id"] for event, headers, _ in heard if event == heard[0][0]]
    assert again[:2] == [again[0]] * 2
    for _, headers, body in heard:
        assert made["connection"]["password"].encode() not in body
        assert not [name for name in headers if name.startswith("Lab-")]
        signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
        key = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
        digest = base64.b64encode(hmac.digest(key, signed, "sha256")).decode()
        assert headers["webhook-signature"] == f"v1,{digest}"
        assert abs(int(headers["webhook-timestamp"]) - time.time()) < 300


def test_tokens_on_the_command_line(env: dict[str, str]) -> None:
    """Protects operators: tokens are made, listed and revoked without the service."""

    def lab(*words: str) -> str:
        argv = [sys.executable, "-m", "lab", "token", *words]
        return run(argv, env=env, timeout=30).stdout

    text = lab("create", "ci", "--project", "shop", "--max-labs", "2", "--ttl", "1d").strip()
    assert re.fullmatch(r"lab_[0-9a-f]{12}_[\w-]{43}", text)
    shown = json.loads(lab("ls", "-o", "json"))
    assert [(one["name"], one["project"], one["state"]) for one in shown] == [
        ("ci", "shop", "valid")
    ]
    assert "hash" not in shown[0]
    lab("revoke", "ci")
    assert "revoked" in lab("ls")


@pytest.mark.skipif(not (which("curl") and which("jq")), reason="needs curl and jq")
def test_the_script_in_the_docs_runs(env: dict[str, str]) -> None:
    """Protects those who copy docs/api.md: it makes a lab, tells its DSN and removes it."""
    page = (ROOT / "docs" / "api.md").read_text()
    script = page.split("## A lab for a script", 1)[1].split("```sh\n", 1)[1].split("```", 1)[0]
    with serving(env) as found:
        known = {"LAB_URL": found.url, "LAB_TOKEN": found.token, "CI_JOB": "1"}
        printed = run(["sh", "-eu", "-c", script], env={**env, **known}, timeout=60).stdout
        assert printed.startswith("mysql://lab:")
        gone = found.ask("GET", "/v1/jobs?kind=delete").json()["items"][0]
        assert found.ask("GET", f"/v1/jobs/{gone['id']}?wait=20").json()["state"] == "succeeded"
        assert found.ask("GET", "/v1/labs").json()["items"] == []


@pytest.mark.rare
def test_connections_without_a_request_are_closed(env: dict[str, str]) -> None:
    """Protects the service from those who open connections and say nothing, or too slowly."""
    configure(env, '[serve]\nrequest_timeout = "1s"\n')
    with serving(env) as found:
        port = int(found.url.rpartition(":")[2])
        head = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
        for said in (b"", head):
            began = time.monotonic()
            with socket.create_connection(("127.0.0.1", port), timeout=20) as slow:
                slow.sendall(said)
                assert slow.recv(100) == b""
            assert 0.9 < time.monotonic() - began < 10
        with socket.create_connection(("127.0.0.1", port), timeout=20) as patient:
            for pause in (0.0, 0.7):  # between two requests there is another limit
                time.sleep(pause)
                patient.sendall(head)
                time.sleep(0.5)
                patient.sendall(b"\r\n")
                answer = b""
                while not answer.endswith(b"\r\n\r\nok\n"):  # it may come in parts
                    answer += (came := patient.recv(1000))
                    assert came, answer
                assert answer.startswith(b"HTTP/1.1 200")

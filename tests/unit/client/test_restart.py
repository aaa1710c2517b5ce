"""The client and a service that is killed and restarted, as processes."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from lab.client import Client
from lab.progress import Event
from tests.support.serve_process import environment, serving
from tests.support.serve_world import MEMORY


@pytest.mark.rare
def test_a_service_that_restarts_is_waited_for(tmp_path: Path) -> None:
    """Protects pipelines from an upgrade of the service: one lab, all steps heard, nothing lost."""
    env = environment(tmp_path)
    heard: list[Event] = []
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    with ExitStack() as services:
        first = services.enter_context(serving(env, "--port", port))

        def hear(event: Event) -> None:
            heard.append(event)
            if len(heard) == 1:
                first.process.kill()
                first.process.wait(10)
                services.enter_context(serving(env, "--port", port))

        with Client(first.url, first.token) as client:
            lab = client.create("galera", nodes=2, memory=MEMORY, listener=hear)
            assert client.labs() == [lab]
            assert client.jobs.get(lab.job).check().lab == lab.name
    assert [event.step for event in heard].count("ready") >= 2  # its begin and its end

"""Hosts of a fleet, as processes on the fakes."""

from __future__ import annotations

import signal
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.support.serve_process import Serving, configure, environment, serving
from tests.support.serve_world import BODY

HOSTS = ("h1", "h2", "h3")
CONFIG = """
[serve]
database = "{url}"
host_name = "{name}"
host_labels = ["{label}"]
fleet_address = "127.0.0.1"
fleet_port = 0
sweep = 1.0
metrics = true
"""


class Fleet:
    """Hosts that run; each can be killed and started again."""

    def __init__(self, root: Path, url: str) -> None:
        self.hosts: dict[str, Serving] = {}
        self._held: dict[str, ExitStack] = {}
        self._environments: dict[str, dict[str, str]] = {}
        for number, name in enumerate(HOSTS):
            place = root / name
            place.mkdir()
            env = environment(place) | {
                "LAB_PORT_RANGE": f"{32000 + 200 * number}-{32199 + 200 * number}"
            }
            configure(env, CONFIG.format(url=url, name=name, label=f"l{number}"))
            self._environments[name] = env

    def start(self, name: str) -> Serving:
        held = ExitStack()
        self.hosts[name] = held.enter_context(serving(self._environments[name]))
        self._held[name] = held
        return self.hosts[name]

    def kill(self, name: str) -> None:
        self.hosts[name].process.send_signal(signal.SIGKILL)
        self.hosts[name].process.wait(20)
        self._held.pop(name).close()

    def close(self) -> None:
        for held in self._held.values():
            held.close()


def up(host: Serving, name: str, on: str = "", **more: Any) -> Any:
    body = {**BODY, "name": name, **({"host": on} if on else {}), **more}
    answer = host.ask("POST", "/v1/labs?wait=60", body)
    assert answer.status_code == 201, answer.text
    return answer.json()


def listed(host: Serving) -> dict[str, tuple[str, str]]:
    answer = host.ask("GET", "/v1/labs")
    assert answer.status_code == 200, answer.text
    items = answer.json()["items"]
    return {lab["name"]: (lab["host_name"], lab["state"]) for lab in items}

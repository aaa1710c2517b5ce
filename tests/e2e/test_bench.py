"""Benchmarks on real guests: sysbench in a client, and a comparison from warm snapshots."""

from __future__ import annotations

import json

import pytest

from tests.e2e.e2e_site import Site

pytestmark = [pytest.mark.e2e, pytest.mark.rare]

DATA = ("--rows", "200", "--warm-up", "2s")


def test_a_run_and_a_comparison(image: Site) -> None:
    """Protects the promise: each round begins from the same moment, and nothing is left."""
    with image.up("single", "--engine", "mariadb", "--client", "--memory", "512M") as view:
        name = view["name"]
        assert [node["role"] for node in view["nodes"]] == ["server", "client"]
        done = image.lab(
            "bench", "run", "oltp_read_write", name, "--threads", "1,2", "--seconds", "4", *DATA,
            "-o", "json", timeout=600,
        )  # fmt: skip
        found = done.json
        for step in found["steps"]:
            measured = step["measured"]
            assert measured["events"] > 0
            assert measured["series"]
            late = measured["latency"]
            assert 0 < late["p50"] <= late["p95"] <= late["p99"]
            server, client = step["nodes"]
            assert server["counters"]["Innodb_os_log_written"] > 0
            assert server["cpu"] > 0
            assert client["cpu"] > 0
            assert server["written"] is not None
            assert server["disk"] > 0
        assert image.sql(name, "n1", "SHOW DATABASES LIKE 'lab_bench'") == []
        left = image.lab("exec", name, "--agent", "--node", "n2", "--", "ls", "/run").stdout
        assert "lab-bench" not in left
        image.lab("branch", name, "other")
        try:
            compared = image.lab(
                "bench", "compare", "oltp_read_write", "--lab-a", name, "--lab-b", "other",
                "--rounds", "2", "--seconds", "3", "--order", "turns", *DATA, "-o", "json",
                timeout=1800,
            ).json  # fmt: skip
            assert compared["tps"]["verdict"] == "too few rounds"
            assert len(compared["rounds"]) == len(compared["equal"]) == 2
            assert all(one["a"] > 0 and one["b"] > 0 for one in compared["rounds"])
            for lab in (name, "other"):
                image.lab("wait", lab, "--timeout", "120s")
                assert image.sql(lab, "n1", "SHOW DATABASES LIKE 'lab_bench'") == []
                taken = json.loads(image.lab("snapshot", "ls", lab, "-o", "json").stdout)
                assert all(one["name"] != "bench" for one in taken)
        finally:
            image.lab("down", "other", code=None)
    image.lab("bench", "rm", found["id"])
    image.lab("bench", "rm", compared["id"])

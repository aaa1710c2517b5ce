"""What sysbench prints, and what a hostile client prints in its place."""

from __future__ import annotations

import msgspec
import pytest

from lab.bench import counters, sysbench, workloads
from lab.bench.workloads import WORKLOADS, Scale
from lab.errors import CommandFailed, InvalidSpec

RUN = b"""\
sysbench 1.0.20 (using system LuaJIT 2.1.0-beta3)

Running the test with following options:
Number of threads: 4
Report intermediate results every 1 second(s)
Target transaction rate: 50/sec

Threads started!

[ 1s ] thds: 4 tps: 146.77 qps: 3550.33 (r/w/o: 1477.64/1775.16/297.52) lat (ms,95%): 94.10 \
err/s: 0.00 reconn/s: 0.00
[ 1s ] queue length: 3, concurrency: 4
[ 2s ] thds: 4 tps: 0.00 qps: 12.00 (r/w/o: 1.00/1.00/10.00) lat (ms,95%): 0.00 err/s: 2.00 \
reconn/s: 0.00
[ 2s ] queue length: 61, concurrency: 4
Latency histogram (values are in milliseconds)
       value  ------------- distribution ------------- count
      10.000 |**************************************** 90
      20.000 |****                                     8
    1013.600 |*                                        2

SQL statistics:
    queries performed:
        read:                            18916
        write:                           22224
        other:                           3230
        total:                           44370
    transactions:                        100    (49.90 per sec.)
    queries:                             44370  (5492.12 per sec.)
    ignored errors:                      2      (0.10 per sec.)
    reconnects:                          0      (0.00 per sec.)

General statistics:
    total time:                          2.0078s
    total number of events:              100

Latency (ms):
         min:                                    0.45
         avg:                                   19.90
         max:                                 1013.41
         95th percentile:                       20.00
         sum:                                 1990.00

Threads fairness:
    events (avg/stddev):           25.0000/11.65
    execution time (avg/stddev):   2.0039/0.02

"""


def test_a_run() -> None:
    found = sysbench.parse(RUN, "tpcc_like")
    assert (found.events, found.queries, found.ignored, found.reconnects) == (100, 44370, 2, 0)
    assert found.tps == pytest.approx(49.8, abs=0.1)
    late = found.latency
    assert late is not None
    assert (late.low, late.mean, late.high) == (0.45, 19.9, 1013.41)
    assert (late.p50, late.p95, late.p99) == (10.0, 20.0, 1013.41)
    assert [(one.at, one.tps, one.queue, one.errors) for one in found.series] == [
        (1, 146.77, 3, 0.0), (2, 0.0, 61, 2.0)
    ]  # fmt: skip


def test_rates_are_in_json() -> None:
    """Protects `jq`: they are counted for results as well that were recorded without them."""
    found = msgspec.to_builtins(sysbench.parse(RUN, "tpcc_like"))
    assert (round(found["tps"], 1), round(found["qps"])) == (49.8, 22099)
    del found["tps"], found["qps"]
    assert msgspec.convert(found, sysbench.Measured) == sysbench.parse(RUN, "tpcc_like")


def test_a_run_of_no_event_has_no_latency() -> None:
    text = RUN.replace(b"total number of events:              100", b"total number of events: 0")
    assert sysbench.parse(text, "x").latency is None


def test_an_error_is_repeated() -> None:
    output = RUN + b"FATAL: mysql_drv_query() returned error 1054 (Unknown column 'x')\n"
    with pytest.raises(CommandFailed) as failed:
        sysbench.parse(output, "x")
    assert "1054 (Unknown column 'x')" in failed.value.stderr
    with pytest.raises(CommandFailed) as failed:
        sysbench.parse(b"", "x")
    assert failed.value.stderr == "it printed nothing"


def test_what_a_hostile_client_says_is_bounded() -> None:
    """Protects the host: neither time nor memory grows with what a guest prints."""
    line = b"[ %ds ] thds: 1 tps: 1.00 qps: 1.00 (r/w/o: 1/1/1) lat (ms,95%%): 1.00 err/s: 0.00\n"
    many = b"".join(line % number for number in range(sysbench.LONGEST_SERIES + 10))
    bars = b"      10.000 |*                    1\n" * 5000
    spaces = b"      10.000 |" + b"*" * 50_000 + b" " * 50_000 + b"\n"
    found = sysbench.parse(many + bars + spaces + b"\xff\x1b[2J\n" + RUN, "x")
    assert len(found.series) == sysbench.LONGEST_SERIES
    with pytest.raises(CommandFailed):
        sysbench.parse(RUN.replace(b"2.0078s", b"1e400s"), "x")


def test_the_password_is_in_the_file_only() -> None:
    content = sysbench.connection("lab", "s3cret=#", ["10.77.0.1"], 3306, "lab_bench")
    assert b"mysql-password=s3cret=#\n" in content
    assert not any("s3cret" in one for one in sysbench.options(4, seconds=5))
    with pytest.raises(InvalidSpec):
        sysbench.connection("lab", "a\nmysql-host=evil", ["10.77.0.1"], 3306, "x")


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_workload_has_its_numbers(name: workloads.WorkloadName) -> None:
    work = workloads.workload(name)
    scale = work.scaled(Scale())
    assert any(vars(scale).values())
    assert work.counted == bool(work.events(scale))
    assert all(one.startswith("--") for step in work.steps for one in work.options(scale, step))
    given = Scale(tables=7, rows=8, warehouses=9)
    kept = {key for key, value in vars(work.scaled(given)).items() if value}
    assert kept.isdisjoint(work.unused(given))


def test_counters_of_a_server_that_started_again_are_left_out() -> None:
    rows = [("Questions", "12"), ("Com_commit", "x"), ("Uptime", "3"), ("wsrep_received", 5)]
    before = counters.read(rows)
    assert before == {"Questions": 12, "wsrep_received": 5}
    assert counters.rise(before, {"Questions": 20, "wsrep_received": 1}) == {"Questions": 8}

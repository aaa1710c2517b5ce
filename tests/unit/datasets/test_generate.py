"""Protects datasets that are made up: the rows that the formats want, each time."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections import Counter
from collections.abc import Iterator

import pytest

from lab.datasets.dump import Statement, statements
from lab.datasets.generate import (
    INSERT_BYTES,
    estimate,
    generate,
    last_name,
    rows,
)
from lab.datasets.source import Generated, Sysbench, Tpcc
from lab.datasets.survey import survey
from tests.support.mariadb_server import NoServer, Server, server

TPCC = Tpcc(warehouses=1)
SYSBENCH = Sysbench(tables=2, rows=9000)


@pytest.fixture(scope="module")
def mariadb() -> Iterator[Server]:
    try:
        with server() as running:
            yield running
    except NoServer as reason:
        pytest.skip(str(reason))


def load(server: Server, what: Generated) -> None:
    server.ask(*(one.text.decode() for one in statements(generate(what))))


def test_sysbench_tables_on_a_server(mariadb: Server) -> None:
    load(mariadb, SYSBENCH)
    for table, count in rows(SYSBENCH).items():
        [found] = mariadb.ask(
            "SELECT COUNT(*), MIN(id), MAX(id), MIN(k) >= 1, MAX(k) <= 9000,"
            " SUM(c RLIKE '^([0-9]{11}-){9}[0-9]{11}$'),"
            f" SUM(pad RLIKE '^([0-9]{{11}}-){{4}}[0-9]{{11}}$') FROM sbtest.{table}"
        )
        assert found == (count, 1, count, 1, 1, count, count)
    keys = mariadb.ask("SHOW INDEX FROM sbtest.sbtest2")
    assert [key[2] for key in keys] == ["PRIMARY", "k_2"]
    tables = mariadb.ask("SELECT (SELECT c FROM sbtest.sbtest1 WHERE id = 1) ="
                         " (SELECT c FROM sbtest.sbtest2 WHERE id = 1)")  # fmt: skip
    assert tables == [(0,)]


@pytest.mark.rare  # 85 MB
def test_tpcc_tables_on_a_server(mariadb: Server) -> None:
    """Counts of clause 4.3, and the consistency conditions of clause 3.3.2 that they imply."""
    load(mariadb, TPCC)
    ask = mariadb.ask
    for table, count in rows(TPCC).items():
        [[found]] = ask(f"SELECT COUNT(*) FROM tpcc.{table}")
        assert found == pytest.approx(count, rel=0.02 if table == "order_line" else 0)
    assert ask("SELECT w_ytd = (SELECT SUM(d_ytd) FROM tpcc.district) FROM tpcc.warehouse") == [
        (1,)
    ]
    assert ask("SELECT SUM(o_ol_cnt) = (SELECT COUNT(*) FROM tpcc.order_line) FROM tpcc.orders"
               ) == [(1,)]  # fmt: skip
    assert ask(
        "SELECT COUNT(*) FROM tpcc.orders LEFT JOIN tpcc.new_orders ON no_o_id = o_id"
        " AND no_d_id = o_d_id AND no_w_id = o_w_id"
        " WHERE (o_carrier_id IS NULL) <> (no_o_id IS NOT NULL)"
    ) == [(0,)]
    assert ask("SELECT COUNT(DISTINCT o_d_id, o_c_id) FROM tpcc.orders") == [(30_000,)]
    [[original]] = ask("SELECT SUM(i_data LIKE '%ORIGINAL%') FROM tpcc.item")
    assert 8000 < original < 12_000
    assert ask("SELECT c_last FROM tpcc.customer WHERE c_id = 372 AND c_d_id = 3") == [
        ("PRICALLYOUGHT",)
    ]


def test_last_names_have_a_syllable_for_each_digit() -> None:
    """The example of clause 4.3.2.3."""
    assert last_name(371) == b"PRICALLYOUGHT"
    assert last_name(0) == b"BARBARBAR"


def digest(what: Generated, chunks: int) -> str:
    found = hashlib.sha256()
    for chunk in itertools.islice(generate(what), chunks):
        found.update(chunk)
    return found.hexdigest()[:16]


def test_a_seed_gives_the_same_bytes_everywhere() -> None:
    """Whatever Python runs; a change of the digest is a change of everybody's datasets."""
    assert digest(Sysbench(1, 1000, 7), 100) == "6f01bf516d6a69ae"
    assert digest(Tpcc(1, 7), 10) == "269646213c8bf3d9"
    assert digest(Sysbench(1, 1000, 8), 100) != digest(Sysbench(1, 1000, 7), 100)


def test_a_table_does_not_depend_on_others() -> None:
    def first(what: Sysbench) -> Statement:
        return next(one for one in statements(generate(what)) if one.text.startswith(b"INSERT"))

    assert first(Sysbench(1, 500)).text == first(Sysbench(3, 500)).text


def test_the_dump_is_whole_and_of_the_estimated_size() -> None:
    dump = list(generate(SYSBENCH))
    assert dump[-1].rstrip().splitlines()[-1].startswith(b"-- Dump completed")
    found = survey(dump)
    assert (found.databases, found.tables) == (("sbtest",), 2)
    assert found.size == pytest.approx(estimate(SYSBENCH), rel=0.1)
    sizes = [len(chunk) for chunk in dump if chunk.startswith(b"INSERT")]
    assert max(sizes) < INSERT_BYTES * 1.1
    assert Counter(re.findall(rb"CREATE INDEX (\w+)", b"".join(dump))) == {b"k_1": 1, b"k_2": 1}
    total = sum(len(chunk) for chunk in generate(TPCC))
    assert total == pytest.approx(estimate(TPCC), rel=0.1)

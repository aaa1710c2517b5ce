"""Dumps that are made up: the tables of sysbench's OLTP tests, and those of TPC-C.

Both are streams of SQL, the same for the same seed wherever they are made: a header, CREATE
TABLE, INSERTs of about 1 MB, the secondary indexes, and the last line that ``survey.completed``
looks for.

Formats: ``oltp_common.lua`` of sysbench 1.0 (tables ``sbtest1`` to ``sbtestN``); TPC-C 5.11,
clauses 1.3 (columns) and 4.3 (rows and values). The names of tables and columns are those of
Percona's tpcc-mysql. Not as specified: dates are constant, so that the data is, and the table
history has a key, without which groups of MySQL and Percona XtraDB Cluster refuse its rows.

``sysbench prepare``, which the images have, is no substitute. sysbench 1.0.20 makes the same rows
for each ``--rand-seed``; with two threads they are in other tables from run to run; with one it is
not faster than the client that reads this SQL (400,000 rows in an emulated guest: 47 to 50 s, and
43 to 49 s).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from lab.datasets.source import Generated, Sysbench, Tpcc
from lab.units import MIB
from lab.values import dataclass

INSERT_BYTES = MIB
"""Of one INSERT, about; a server takes 16 MiB unless it is configured otherwise."""

DATABASES: Mapping[type[Sysbench] | type[Tpcc], str] = {Sysbench: "sbtest", Tpcc: "tpcc"}
"""The database that each creates, and that must not exist."""

_DIGIT = bytes(b"0123456789"[value % 10] for value in range(256))
_LETTER = bytes(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789  "[value % 64]
                for value in range(256))  # fmt: skip
_TIME = b"'2024-01-01 00:00:00'"
_ROWS_AT_ONCE = 2000


def rows(what: Generated) -> dict[str, int]:
    """Table -> rows that ``generate`` makes; order lines are about ten for each order."""
    if isinstance(what, Sysbench):
        return {f"sbtest{number}": what.rows for number in range(1, what.tables + 1)}
    return {table.name: table.rows(what.warehouses) for table in _TPCC}


def estimate(what: Generated) -> int:
    """Bytes that ``generate`` makes, within a tenth; tables on disk need about as many."""
    if isinstance(what, Sysbench):
        digits = len(str(what.rows))
        return what.tables * (what.rows * (187 + 2 * digits) + 1000)
    return sum(table.rows(what.warehouses) * table.width for table in _TPCC) + 5000


def generate(what: Generated) -> Iterator[bytes]:
    """The dump, in chunks of about 1 MB."""
    database = DATABASES[type(what)]
    yield (
        f"-- {what}\nSET NAMES utf8mb4;\nSET unique_checks = 0;\nSET foreign_key_checks = 0;\n"
        f"CREATE DATABASE `{database}` CHARACTER SET utf8mb4;\nUSE `{database}`;\n"
    ).encode()
    yield from _sysbench(what) if isinstance(what, Sysbench) else _tpcc(what)
    yield b"SET foreign_key_checks = 1;\nSET unique_checks = 1;\n-- Dump completed\n"


def _inserts(table: str, values: Iterable[bytes]) -> Iterator[bytes]:
    """INSERTs of rows, each already within parentheses."""
    head = f"INSERT INTO `{table}` VALUES\n".encode()
    some: list[bytes] = []
    size = 0
    for row in values:
        some.append(row)
        size += len(row) + 2
        if size >= INSERT_BYTES:
            yield head + b",\n".join(some) + b";\n"
            some, size = [], 0
    if some:
        yield head + b",\n".join(some) + b";\n"


def _random(what: Generated, table: str) -> random.Random:
    """The numbers of a table, which do not depend on other tables."""
    return random.Random(f"{what.seed}:{table}")  # noqa: S311  # not a secret


def _sysbench(what: Sysbench) -> Iterator[bytes]:
    for number in range(1, what.tables + 1):
        name = f"sbtest{number}"
        yield (
            f"CREATE TABLE `{name}` (\n  id INTEGER NOT NULL AUTO_INCREMENT,\n"
            "  k INTEGER DEFAULT '0' NOT NULL,\n  c CHAR(120) DEFAULT '' NOT NULL,\n"
            "  pad CHAR(60) DEFAULT '' NOT NULL,\n  PRIMARY KEY (id)\n) ENGINE=InnoDB;\n"
        ).encode()
        yield from _inserts(name, _sysbench_rows(what.rows, _random(what, name)))
        yield f"CREATE INDEX k_{number} ON `{name}` (k);\n".encode()


_GROUPS = 15  # of eleven digits in a row: ten in c, five in pad
_SYSBENCH_ROW = b"(%d,%d,'" + b"-".join([b"%b"] * 10) + b"','" + b"-".join([b"%b"] * 5) + b"')"


def _sysbench_rows(count: int, numbers: random.Random) -> Iterator[bytes]:
    for first in range(1, count + 1, _ROWS_AT_ONCE):
        some = min(_ROWS_AT_ONCE, count + 1 - first)
        digits = numbers.randbytes(some * _GROUPS * 11).translate(_DIGIT)
        groups = [digits[at : at + 11] for at in range(0, len(digits), 11)]
        for row in range(some):
            k = int(numbers.random() * count) + 1
            yield _SYSBENCH_ROW % (first + row, k, *groups[row * _GROUPS : (row + 1) * _GROUPS])


@dataclass(frozen=True)
class _Table:
    """A table of TPC-C: rows are for each warehouse, or for all if it is shared."""

    name: str
    columns: str
    count: int
    width: int
    """Of a row in a dump, about."""
    make: Callable[[int, random.Random], Iterator[bytes]]
    """The rows of a warehouse, counted from 1."""
    shared: bool = False
    index: str = ""

    def rows(self, warehouses: int) -> int:
        return self.count * (1 if self.shared else warehouses)


ITEMS = 100_000
DISTRICTS = 10
CUSTOMERS = 3000
"""Of each district; each has one order."""
NEW_ORDERS = 900
"""Orders of each district that are not delivered: the last ones."""

_SYLLABLES = (
    b"BAR", b"OUGHT", b"ABLE", b"PRI", b"PRES", b"ESE", b"ANTI", b"CALLY", b"ATION", b"EING",
)  # fmt: skip
_C_LAST = 123
"""The constant C of the last names' NURand, clause 2.1.6.1."""


class _Texts:
    """Random letters and digits by the hundred thousand, which is faster than each alone."""

    def __init__(self, numbers: random.Random) -> None:
        self._numbers = numbers
        self._pool = b""
        self._at = 0

    def letters(self, low: int, high: int) -> bytes:
        """A text of ``low`` to ``high`` letters, digits and spaces."""
        return self._take(low + int(self._numbers.random() * (high - low + 1)))

    def _take(self, length: int) -> bytes:
        if self._at + length > len(self._pool):
            self._pool = self._numbers.randbytes(1 << 17).translate(_LETTER)
            self._at = 0
        self._at += length
        return self._pool[self._at - length : self._at]

    def number(self, low: int, high: int) -> int:
        """A whole number, both ends included."""
        return low + int(self._numbers.random() * (high - low + 1))

    def digits(self, length: int) -> bytes:
        return b"%0*d" % (length, self.number(0, 10**length - 1))

    def postal_code(self) -> bytes:
        return self.digits(4) + b"11111"

    def address(self) -> bytes:
        """Two streets, city, state and postal code, as values."""
        return b"'%b','%b','%b','%b','%b'" % (
            self.letters(10, 20), self.letters(10, 20), self.letters(10, 20), self.letters(2, 2),
            self.postal_code(),
        )  # fmt: skip

    def data(self) -> bytes:
        """26 to 50 letters; in a tenth of them ``ORIGINAL``, clause 4.3.3.1."""
        text = self.letters(26, 50)
        if self.number(1, 10) > 1:
            return text
        at = self.number(0, len(text) - 8)
        return text[:at] + b"ORIGINAL" + text[at + 8 :]

    def permutation(self, count: int) -> list[int]:
        """1 to ``count`` in any order; ``shuffle`` may change between versions of Python."""
        keys = [self._numbers.random() for _ in range(count)]
        return sorted(range(1, count + 1), key=lambda number: keys[number - 1])


def last_name(number: int) -> bytes:
    """Of 0 to 999, clause 4.3.2.3: a syllable for each digit."""
    return _SYLLABLES[number // 100] + _SYLLABLES[number // 10 % 10] + _SYLLABLES[number % 10]


def _warehouse(warehouse: int, numbers: random.Random) -> Iterator[bytes]:
    texts = _Texts(numbers)
    tax = texts.number(0, 2000)
    yield b"(%d,'%b',%b,0.%04d,300000.00)" % (
        warehouse, texts.letters(6, 10), texts.address(), tax,
    )  # fmt: skip


def _district(warehouse: int, numbers: random.Random) -> Iterator[bytes]:
    texts = _Texts(numbers)
    for district in range(1, DISTRICTS + 1):
        yield b"(%d,%d,'%b',%b,0.%04d,30000.00,%d)" % (
            district, warehouse, texts.letters(6, 10), texts.address(), texts.number(0, 2000),
            CUSTOMERS + 1,
        )  # fmt: skip


_CUSTOMER_ROW = b"(%d,%d,%d,'%b','OE','%b',%b,'%b',%b,'%b',50000,0.%04d,-10.00,10.00,1,0,'%b')"


def _customer(warehouse: int, numbers: random.Random) -> Iterator[bytes]:
    texts = _Texts(numbers)
    for district in range(1, DISTRICTS + 1):
        for customer in range(1, CUSTOMERS + 1):
            spread = (texts.number(0, 255) | texts.number(0, 999)) + _C_LAST
            yield _CUSTOMER_ROW % (
                customer, district, warehouse, texts.letters(8, 16),
                last_name(customer - 1 if customer <= 1000 else spread % 1000), texts.address(),
                texts.digits(16), _TIME, b"BC" if texts.number(1, 10) == 1 else b"GC",
                texts.number(0, 5000), texts.letters(300, 500),
            )  # fmt: skip


def _history(warehouse: int, numbers: random.Random) -> Iterator[bytes]:
    texts, number = _Texts(numbers), (warehouse - 1) * DISTRICTS * CUSTOMERS
    for district in range(1, DISTRICTS + 1):
        for customer in range(1, CUSTOMERS + 1):
            number += 1
            yield b"(%d,%d,%d,%d,%d,%b,10.00,'%b',%d)" % (
                customer, district, warehouse, district, warehouse, _TIME, texts.letters(12, 24),
                number,
            )  # fmt: skip


def _lines(numbers: random.Random) -> int:
    """How many lines the next order has, 5 to 15."""
    return 5 + int(numbers.random() * 11)


def _orders(warehouse: int, numbers: random.Random) -> Iterator[bytes]:
    texts, counts = _Texts(numbers), _line_counts(warehouse)
    for district in range(1, DISTRICTS + 1):
        for order, customer in enumerate(texts.permutation(CUSTOMERS), 1):
            delivered = order <= CUSTOMERS - NEW_ORDERS
            yield b"(%d,%d,%d,%d,%b,%b,%d,1)" % (
                order, district, warehouse, customer, _TIME,
                b"%d" % texts.number(1, 10) if delivered else b"NULL", _lines(counts),
            )  # fmt: skip


def _line_counts(warehouse: int) -> random.Random:
    """Orders and their lines must agree on how many there are: not of the seed."""
    return random.Random(f"lines:{warehouse}")  # noqa: S311


def _order_line(warehouse: int, numbers: random.Random) -> Iterator[bytes]:
    texts, counts = _Texts(numbers), _line_counts(warehouse)
    for district in range(1, DISTRICTS + 1):
        for order in range(1, CUSTOMERS + 1):
            delivered = order <= CUSTOMERS - NEW_ORDERS
            for line in range(1, _lines(counts) + 1):
                cents = 0 if delivered else texts.number(1, 999_999)
                yield b"(%d,%d,%d,%d,%d,%d,%b,5,%d.%02d,'%b')" % (
                    order, district, warehouse, line, texts.number(1, ITEMS), warehouse,
                    _TIME if delivered else b"NULL", *divmod(cents, 100), texts.letters(24, 24),
                )  # fmt: skip


def _new_orders(warehouse: int, _: random.Random) -> Iterator[bytes]:
    for district in range(1, DISTRICTS + 1):
        for order in range(CUSTOMERS - NEW_ORDERS + 1, CUSTOMERS + 1):
            yield b"(%d,%d,%d)" % (order, district, warehouse)


def _item(_: int, numbers: random.Random) -> Iterator[bytes]:
    texts = _Texts(numbers)
    for item in range(1, ITEMS + 1):
        yield b"(%d,%d,'%b',%d.%02d,'%b')" % (
            item, texts.number(1, 10_000), texts.letters(14, 24),
            *divmod(texts.number(100, 10_000), 100), texts.data(),
        )  # fmt: skip


def _stock(warehouse: int, numbers: random.Random) -> Iterator[bytes]:
    texts = _Texts(numbers)
    for item in range(1, ITEMS + 1):
        places = b"','".join([texts.letters(24, 24) for _ in range(DISTRICTS)])
        yield b"(%d,%d,%d,'%b',0,0,0,'%b')" % (
            item, warehouse, texts.number(10, 100), places, texts.data(),
        )  # fmt: skip


_STREETS = "{0}_street_1 VARCHAR(20), {0}_street_2 VARCHAR(20), {0}_city VARCHAR(20),"
_STREETS += " {0}_state CHAR(2), {0}_zip CHAR(9)"
_DISTS = ", ".join(f"s_dist_{number:02d} CHAR(24)" for number in range(1, DISTRICTS + 1))

_TPCC: Sequence[_Table] = (
    _Table(
        "item",
        "i_id INT NOT NULL, i_im_id INT, i_name VARCHAR(24), i_price DECIMAL(5,2),"
        " i_data VARCHAR(50), PRIMARY KEY (i_id)",
        ITEMS, 84, _item, shared=True,
    ),
    _Table(
        "warehouse",
        f"w_id SMALLINT NOT NULL, w_name VARCHAR(10), {_STREETS.format('w')},"
        " w_tax DECIMAL(4,4), w_ytd DECIMAL(12,2), PRIMARY KEY (w_id)",
        1, 108, _warehouse,
    ),
    _Table(
        "district",
        f"d_id TINYINT NOT NULL, d_w_id SMALLINT NOT NULL, d_name VARCHAR(10),"
        f" {_STREETS.format('d')}, d_tax DECIMAL(4,4), d_ytd DECIMAL(12,2), d_next_o_id INT,"
        " PRIMARY KEY (d_w_id, d_id)",
        DISTRICTS, 114, _district,
    ),
    _Table(
        "customer",
        "c_id INT NOT NULL, c_d_id TINYINT NOT NULL, c_w_id SMALLINT NOT NULL,"
        f" c_first VARCHAR(16), c_middle CHAR(2), c_last VARCHAR(16), {_STREETS.format('c')},"
        " c_phone CHAR(16), c_since DATETIME, c_credit CHAR(2), c_credit_lim BIGINT,"
        " c_discount DECIMAL(4,4), c_balance DECIMAL(12,2), c_ytd_payment DECIMAL(12,2),"
        " c_payment_cnt SMALLINT, c_delivery_cnt SMALLINT, c_data TEXT,"
        " PRIMARY KEY (c_w_id, c_d_id, c_id)",
        DISTRICTS * CUSTOMERS, 593, _customer,
        index="idx_customer ON customer (c_w_id, c_d_id, c_last, c_first)",
    ),
    _Table(
        "history",
        "h_c_id INT, h_c_d_id TINYINT, h_c_w_id SMALLINT, h_d_id TINYINT, h_w_id SMALLINT,"
        " h_date DATETIME, h_amount DECIMAL(6,2), h_data VARCHAR(24),"
        " h_id INT NOT NULL AUTO_INCREMENT PRIMARY KEY",
        DISTRICTS * CUSTOMERS, 71, _history,
    ),
    _Table(
        "orders",
        "o_id INT NOT NULL, o_d_id TINYINT NOT NULL, o_w_id SMALLINT NOT NULL, o_c_id INT,"
        " o_entry_d DATETIME, o_carrier_id TINYINT, o_ol_cnt TINYINT, o_all_local TINYINT,"
        " PRIMARY KEY (o_w_id, o_d_id, o_id)",
        DISTRICTS * CUSTOMERS, 48, _orders,
        index="idx_orders ON orders (o_w_id, o_d_id, o_c_id, o_id)",
    ),
    _Table(
        "new_orders",
        "no_o_id INT NOT NULL, no_d_id TINYINT NOT NULL, no_w_id SMALLINT NOT NULL,"
        " PRIMARY KEY (no_w_id, no_d_id, no_o_id)",
        DISTRICTS * NEW_ORDERS, 13, _new_orders,
    ),
    _Table(
        "order_line",
        "ol_o_id INT NOT NULL, ol_d_id TINYINT NOT NULL, ol_w_id SMALLINT NOT NULL,"
        " ol_number TINYINT NOT NULL, ol_i_id INT, ol_supply_w_id SMALLINT,"
        " ol_delivery_d DATETIME, ol_quantity TINYINT, ol_amount DECIMAL(6,2),"
        " ol_dist_info CHAR(24), PRIMARY KEY (ol_w_id, ol_d_id, ol_o_id, ol_number)",
        DISTRICTS * CUSTOMERS * 10, 76, _order_line,
        index="fkey_order_line_2 ON order_line (ol_supply_w_id, ol_i_id)",
    ),
    _Table(
        "stock",
        "s_i_id INT NOT NULL, s_w_id SMALLINT NOT NULL, s_quantity SMALLINT,"
        f" {_DISTS}, s_ytd DECIMAL(8,0), s_order_cnt SMALLINT, s_remote_cnt SMALLINT,"
        " s_data VARCHAR(50), PRIMARY KEY (s_w_id, s_i_id)",
        ITEMS, 331, _stock,
        index="fkey_stock_2 ON stock (s_i_id)",
    ),
)  # fmt: skip


def _tpcc(what: Tpcc) -> Iterator[bytes]:
    for table in _TPCC:
        yield f"CREATE TABLE `{table.name}` ({table.columns}) ENGINE=InnoDB;\n".encode()
        for warehouse in range(1, 2 if table.shared else what.warehouses + 1):
            numbers = _random(what, f"{table.name}:{warehouse}")
            yield from _inserts(table.name, table.make(warehouse, numbers))
        if table.index:
            yield f"CREATE INDEX {table.index};\n".encode()

"""The workloads: which script of sysbench's, or of ours in the image ``client``, runs for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, get_args

from lab.values import dataclass

WorkloadName = Literal[
    "oltp_read_write",
    "oltp_read_only",
    "oltp_write_only",
    "oltp_point_select",
    "oltp_insert",
    "oltp_delete",
    "oltp_update_index",
    "oltp_update_non_index",
    "select_random_points",
    "select_random_ranges",
    "tpcc-like",
    "import",
    "create-tables",
]
WORKLOADS: tuple[WorkloadName, ...] = get_args(WorkloadName)


@dataclass(frozen=True)
class Scale:
    """How much data there is; 0: the workload's own number."""

    tables: int = 0
    rows: int = 0
    """Of each table."""
    warehouses: int = 0


@dataclass(frozen=True)
class Workload:
    """What one workload is."""

    script: str
    usual: Scale
    steps: tuple[str, ...] = ("",)
    """What is measured one after the other, by name; one step needs none."""
    counted: bool = False
    """Whether it ends after so many events, and not after a time."""
    prepares: bool = True
    """Whether it has data that are made first."""

    def scaled(self, asked: Scale) -> Scale:
        """The numbers that apply; what the workload does not have is 0."""
        return Scale(
            *(
                (wanted or usual) if usual else 0
                for wanted, usual in (
                    (asked.tables, self.usual.tables),
                    (asked.rows, self.usual.rows),
                    (asked.warehouses, self.usual.warehouses),
                )
            )
        )

    def unused(self, asked: Scale) -> list[str]:
        """The names of numbers that were given, and that the workload does not have."""
        return [name for name, value in vars(asked).items() if value and not vars(self.usual)[name]]

    def events(self, scale: Scale) -> int:
        """How many events a step has; 0: as many as fit into its time."""
        return (scale.rows or scale.tables) if self.counted else 0

    def options(self, scale: Scale, step: str) -> list[str]:
        """The options of its script."""
        if self.script == "create_tables":
            return [f"--count={scale.tables}", *([f"--phase={step}"] if step else [])]
        if self.script == "tpcc_like":
            return [f"--warehouses={scale.warehouses}"]
        if self.script == "import":
            return []
        return [f"--tables={scale.tables}", f"--table_size={scale.rows}"]


_OLTP = Scale(tables=1, rows=10_000)
_OURS: Mapping[str, Workload] = {
    "tpcc-like": Workload("tpcc_like", Scale(warehouses=1)),
    "import": Workload("import", Scale(rows=5_000), counted=True),
    "create-tables": Workload(
        "create_tables", Scale(tables=200), ("create", "drop"), counted=True, prepares=False
    ),
}


def workload(name: WorkloadName) -> Workload:
    """The workload of that name."""
    return _OURS.get(name) or Workload(name, _OLTP)


CHECKS: Sequence[tuple[str, str]] = (
    (
        "1: w_ytd is the sum of d_ytd",
        (
            "SELECT COUNT(*) FROM {db}.warehouse WHERE w_ytd <>"
            " (SELECT SUM(d_ytd) FROM {db}.district WHERE d_w_id = w_id)"
        ),
    ),
    (
        "2: d_next_o_id - 1 is the highest order",
        (
            "SELECT COUNT(*) FROM {db}.district WHERE d_next_o_id - 1 <>"
            " (SELECT MAX(o_id) FROM {db}.orders WHERE o_w_id = d_w_id AND o_d_id = d_id)"
        ),
    ),
    (
        "3: new orders have no gap",
        (
            "SELECT COUNT(*) FROM (SELECT MAX(no_o_id) - MIN(no_o_id) + 1 - COUNT(*) AS gap FROM"
            " {db}.new_orders GROUP BY no_w_id, no_d_id) AS d WHERE gap <> 0"
        ),
    ),
    (
        "4: o_ol_cnt adds up to the order lines",
        (
            "SELECT COUNT(*) FROM (SELECT SUM(o_ol_cnt) AS n, o_w_id AS w, o_d_id AS d FROM"
            " {db}.orders GROUP BY o_w_id, o_d_id) AS o JOIN (SELECT COUNT(*) AS n, ol_w_id AS w,"
            " ol_d_id AS d FROM {db}.order_line GROUP BY ol_w_id, ol_d_id) AS l"
            " ON o.w = l.w AND o.d = l.d WHERE o.n <> l.n"
        ),
    ),
    (
        "5: a carrier or a new order",
        (
            "SELECT COUNT(*) FROM {db}.orders LEFT JOIN {db}.new_orders ON no_w_id = o_w_id AND"
            " no_d_id = o_d_id AND no_o_id = o_id"
            " WHERE (o_carrier_id IS NULL) <> (no_o_id IS NOT NULL)"
        ),
    ),
    (
        "6: each order has o_ol_cnt lines",
        (
            "SELECT COUNT(*) FROM {db}.orders WHERE o_ol_cnt <>"
            " (SELECT COUNT(*) FROM {db}.order_line WHERE ol_w_id = o_w_id"
            " AND ol_d_id = o_d_id AND ol_o_id = o_id)"
        ),
    ),
    (
        "7: delivered lines are of delivered orders",
        (
            "SELECT COUNT(*) FROM {db}.order_line JOIN {db}.orders ON o_w_id = ol_w_id AND"
            " o_d_id = ol_d_id AND o_id = ol_o_id"
            " WHERE (ol_delivery_d IS NULL) <> (o_carrier_id IS NULL)"
        ),
    ),
    (
        "8: w_ytd is the sum of its history",
        (
            "SELECT COUNT(*) FROM {db}.warehouse WHERE w_ytd <>"
            " (SELECT SUM(h_amount) FROM {db}.history WHERE h_w_id = w_id)"
        ),
    ),
    (
        "9: d_ytd is the sum of its history",
        (
            "SELECT COUNT(*) FROM (SELECT h_w_id AS w, h_d_id AS d, SUM(h_amount) AS paid FROM"
            " {db}.history GROUP BY h_w_id, h_d_id) AS h JOIN {db}.district"
            " ON d_w_id = h.w AND d_id = h.d WHERE d_ytd <> h.paid"
        ),
    ),
    (
        "10, with 12: c_ytd_payment is the sum of its history",
        (
            "SELECT COUNT(*) FROM {db}.customer JOIN (SELECT h_c_w_id AS w, h_c_d_id AS d,"
            " h_c_id AS c, SUM(h_amount) AS paid FROM {db}.history"
            " GROUP BY h_c_w_id, h_c_d_id, h_c_id) AS h"
            " ON h.w = c_w_id AND h.d = c_d_id AND h.c = c_id WHERE c_ytd_payment <> paid"
        ),
    ),
    (
        "12: c_balance + c_ytd_payment is what was delivered",
        (
            "SELECT COUNT(*) FROM {db}.customer LEFT JOIN (SELECT o_w_id AS w, o_d_id AS d,"
            " o_c_id AS c, SUM(ol_amount) AS had FROM {db}.orders JOIN {db}.order_line"
            " ON ol_w_id = o_w_id AND ol_d_id = o_d_id AND ol_o_id = o_id"
            " WHERE ol_delivery_d IS NOT NULL GROUP BY o_w_id, o_d_id, o_c_id) AS t"
            " ON t.w = c_w_id AND t.d = c_d_id AND t.c = c_id"
            " WHERE c_balance + c_ytd_payment <> COALESCE(had, 0)"
        ),
    ),
)
"""Consistency conditions of TPC-C, clause 3.3.2, by their numbers: each statement counts what
breaks the condition. 11 is left out, as it has the number of rows of the full size in it."""

"""A warm buffer pool: data pages that are in memory when a template is captured."""

from __future__ import annotations

from collections.abc import Sequence

from lab.datasets.queries import refused
from lab.errors import CommandFailed
from lab.lifecycle.core.context import Context
from lab.lifecycle.core.parallel import each
from lab.lifecycle.images.provenance import read_provenance
from lab.lifecycle.images.ready import Images
from lab.lifecycle.nodes.nodes import Node

_SQL = "/usr/lib/lab/sql"
QUERIES = ("/usr/lib/lab/load", "warm")
"""The program in the guest that runs the queries on its stdin."""
_SECONDS = 900.0
_SMALL = """\
WITH small AS (SELECT table_schema, table_name, SUM(data_length + index_length) OVER
(ORDER BY data_length + index_length, table_schema, table_name ROWS UNBOUNDED PRECEDING) AS total
FROM information_schema.tables WHERE engine = 'InnoDB' AND table_type = 'BASE TABLE' AND
table_schema NOT IN ('mysql', 'sys') AND CONCAT(table_schema, table_name) NOT REGEXP '[[:cntrl:]]'),
named AS (SELECT table_schema, table_name, CONCAT('`', REPLACE(table_schema, '`', '``'), '`.`',
REPLACE(table_name, '`', '``'), '`') AS full_name FROM small
WHERE total <= 0.7 * @@innodb_buffer_pool_size)
SELECT CONCAT('CHECKSUM TABLE ', full_name, ' EXTENDED') FROM named UNION ALL
SELECT CONCAT('SELECT COUNT(*) FROM ', full_name, ' FORCE INDEX (`',
REPLACE(index_name, '`', '``'), '`)') FROM named JOIN information_schema.statistics
USING (table_schema, table_name) WHERE seq_in_index = 1 AND index_name <> 'PRIMARY' AND
index_type = 'BTREE' AND index_name NOT REGEXP '[[:cntrl:]]'
/*M!100600 AND ignored = 'NO'*/ /*!80000 AND is_visible = 'YES'*/ LIMIT 10000""".replace("\n", " ")
"""Statements that read all pages of the smallest tables that fill the pool to seven tenths.

No statement can name an index that the optimizer is not to see.
"""


def warm_up(ctx: Context, nodes: Sequence[Node], images: Images) -> None:
    """Read data into the buffer pools of ``nodes``, if their image has any.

    Raises InvalidSpec for a query that the server refuses, NotReady and CommandFailed.
    """
    records = [ctx.store.images.find(image.key) for image in images.all]
    texts = {
        record.key: read_provenance(ctx, record).warm
        for record in records
        if record is not None and record.dataset
    }

    def read_data(node: Node) -> None:
        def run(*argv: str, stdin: str, timeout: float = _SECONDS) -> str:
            channel = ctx.hypervisor.channel(node.guest)
            output = channel.run(
                argv, stdin=stdin.encode(), timeout=timeout, halt=ctx.progress.halt
            )
            return output.decode(errors="replace")

        if text := texts[images[node.image].key]:
            try:
                run(*QUERIES, stdin=text, timeout=ctx.warm)
            except CommandFailed as error:
                raise refused(text, error.stderr) from None
        else:
            run(_SQL, stdin=run(_SQL, stdin=f"{_SMALL}\n"))

    with_data = [node for node in nodes if images[node.image].key in texts]
    if with_data:
        with ctx.progress.step("warm", "reading data into memory"):
            each(read_data, with_data)

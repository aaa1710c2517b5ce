"""Writes a directory as MySQL Shell does, of a server's databases: a writer made after its source.

(modules/util/dump/dumper.cc, text_dump_writer.cc and common/dump/utils.cc of mysql-shell: the
descriptions, how names and values are escaped, and what files are called.)
"""

from __future__ import annotations

import gzip
import json
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pymysql
import zstandard
from pymysql.converters import encoders

from tests.support.mariadb_server import Server

UNSAFE = ("binary", "blob", "bit", "geometry", "point", "linestring", "polygon")
"""What the types end with whose values are written in base64 or hexadecimal."""
ENDS = {"zstd": ".zst", "gzip": ".gz", "none": ""}
ESCAPES = {b"\0": b"0", b"\b": b"b", b"\n": b"n", b"\r": b"r", b"\t": b"t", b"\x1a": b"Z"}
TRUNCATED = 225
TO_TEXT: Any = dict(encoders.items())
"""No value of an answer is converted."""
PACKED: Mapping[str, Callable[[bytes], bytes]] = {
    "zstd": lambda data: zstandard.ZstdCompressor(level=1).compress(data),
    "gzip": gzip.compress,
    "none": bytes,
}


@dataclass
class Shell:
    """Options of a dump."""

    compression: str = "zstd"
    chunk: int = 0
    """Rows of a chunk; 0: tables are not chunked."""
    base64: bool = True
    value: str = "\t"
    enclosing: str = ""
    escape: str = "\\"
    row: str = "\n"
    users: str = ""
    """The script ``@.users.sql``."""
    partitions: bool = True
    version: str = "2.0.1"
    more: Mapping[str, object] = field(default_factory=dict)
    """Further keys of ``@.json``."""

    def dump(self, db: Server, top: Path, schemas: Sequence[str]) -> Path:
        """Write the directory ``top``."""
        top.mkdir()
        self.top, self.db, self.sizes = top, db, dict[str, int]()
        self.cut = dict[str, int]()
        bases = {name: self.base(encoded(name)) for name in schemas}
        about: dict[str, object] = {
            "dumper": "mysqlsh Ver 9.5.0 for Linux on x86_64 - for MySQL 9.5.0",
            "version": self.version, "origin": "dumpSchemas", "schemas": list(schemas),
            "basenames": bases, "defaultCharacterSet": "utf8mb4", "tzUtc": True,
            "bytesPerChunk": 64000000, "user": "root", "hostname": "h", "server": "h",
            "serverVersion": "8.4.7", "gtidExecuted": "", "consistent": True,
            "compatibilityOptions": [], "capabilities": [], "checksum": False,
            "begin": "2026-11-20 12:00:00", **self.more,
        }  # fmt: skip
        if self.users:
            about["users"] = ["'app'@'%'"]
            self.write("@.users.sql", self.users)
        self.write("@.json", json.dumps(about, indent=4))
        for file in ("@.sql", "@.post.sql"):
            self.write(file, HEAD)
        for name in schemas:
            self.schema(name, bases[name])
        self.write("@.done.json", json.dumps({
            "end": "2026-11-20 12:00:01", "dataBytes": sum(self.sizes.values()),
            "tableDataBytes": {}, "chunkFileBytes": self.sizes,
        }))  # fmt: skip
        return top

    def base(self, name: str) -> str:
        if len(name) <= TRUNCATED:
            return name
        short = name[:TRUNCATED]
        self.cut[short] = self.cut.get(short, -1) + 1
        return f"{short}{self.cut[short]}"

    def write(self, file: str, text: str) -> None:
        (self.top / file).write_text(text, encoding="utf-8")

    def schema(self, name: str, base: str) -> None:
        known = self.db.ask(
            "SELECT table_name, table_type FROM information_schema.tables WHERE table_schema ="
            f" '{literal(name)}' ORDER BY 1"
        )
        tables = [table for table, kind in known if kind == "BASE TABLE"]
        views = [table for table, kind in known if kind == "VIEW"]
        bases = {one: self.base(f"{encoded(name)}@{encoded(one)}") for one in (*tables, *views)}
        self.write(f"{base}.json", json.dumps({
            "schema": name, "includesDdl": True, "includesViewsDdl": True, "includesData": True,
            "tables": tables, "views": views, "events": [], "functions": [], "procedures": [],
            "basenames": bases,
        }))  # fmt: skip
        [[_, create]] = self.db.ask(f"SHOW CREATE DATABASE {quoted(name)}")
        create = create.replace("DATABASE ", "DATABASE /*!32312 IF NOT EXISTS*/ ", 1)
        self.write(f"{base}.sql", f"{HEAD}{create};\n\nUSE {quoted(name)};\n{self.routines(name)}")
        for table in tables:
            self.table(name, table, bases[table])
        for view in views:
            self.view(name, view, bases[view])

    def routines(self, schema: str) -> str:
        found = self.db.ask(
            "SELECT routine_type, routine_name FROM information_schema.routines WHERE"
            f" routine_schema = '{literal(schema)}' ORDER BY 1, 2"
        )
        text = "\n--\n-- Dumping routines for database\n--\n\n"
        for kind, name in found:
            row = self.db.ask(f"SHOW CREATE {kind} {quoted(schema)}.{quoted(name)}")[0]
            text += f"-- begin {kind.lower()} {schema}.{name}\n"
            text += f"/*!50003 DROP {kind} IF EXISTS {quoted(name)} */;\n"
            text += "/*!50003 SET @saved_sql_mode       = @@sql_mode */ ;\n"
            text += f"/*!50003 SET sql_mode              = '{row[1]}' */ ;\n"
            text += f"DELIMITER ;;\n{row[2]} ;;\nDELIMITER ;\n"
            text += "/*!50003 SET sql_mode              = @saved_sql_mode */ ;\n"
            text += f"-- end {kind.lower()} {schema}.{name}\n\n"
        return text

    def view(self, schema: str, name: str, base: str) -> None:
        columns = self.columns(schema, name)
        stand_in = ",\n".join(f" 1 AS {quoted(one)}" for one, *_ in columns)
        head = f"{HEAD}\n/*!50001 DROP VIEW IF EXISTS {quoted(name)}*/;\n"
        self.write(
            f"{base}.pre.sql",
            f"{head}/*!50001 CREATE VIEW {quoted(name)} AS SELECT \n{stand_in} */;\n",
        )
        [row] = self.db.ask(f"SHOW CREATE VIEW {quoted(schema)}.{quoted(name)}")
        self.write(f"{base}.sql", f"{head}/*!50001 {row[1]} */;\n")

    def columns(self, schema: str, table: str) -> list[tuple[str, str, str]]:
        return [
            (name, kind, extra)
            for name, kind, extra in self.db.ask(
                "SELECT column_name, data_type, extra FROM information_schema.columns WHERE"
                f" table_schema = '{literal(schema)}' AND table_name = '{literal(table)}'"
                " ORDER BY ordinal_position"
            )
        ]

    def table(self, schema: str, name: str, base: str) -> None:
        [row] = self.db.ask(f"SHOW CREATE TABLE {quoted(schema)}.{quoted(name)}")
        create = row[1].replace("CREATE TABLE ", "CREATE TABLE IF NOT EXISTS ", 1)
        self.write(
            f"{base}.sql",
            f"{HEAD}\n/*!40101 SET @saved_cs_client     = @@character_set_client */;\n"
            f"/*!50503 SET character_set_client = utf8mb4 */;\n{create};\n"
            "/*!40101 SET character_set_client = @saved_cs_client */;\n",
        )
        triggers = self.db.ask(
            "SELECT trigger_name FROM information_schema.triggers WHERE event_object_schema ="
            f" '{literal(schema)}' AND event_object_table = '{literal(name)}' ORDER BY 1"
        )
        if triggers:
            self.triggers(schema, [one for (one,) in triggers], base)
        columns = [one for one in self.columns(schema, name) if "GENERATED" not in one[2]]
        unsafe = [one for one, kind, _ in columns if kind.endswith(UNSAFE)]
        parts = self.parts(schema, name)
        extension = ("tsv" if self.value == "\t" else "csv") + ENDS[self.compression]
        options: dict[str, object] = {
            "schema": schema, "table": name, "columns": [one for one, *_ in columns],
            "defaultCharacterSet": "utf8mb4", "fieldsTerminatedBy": self.value,
            "fieldsEnclosedBy": self.enclosing, "fieldsOptionallyEnclosed": False,
            "fieldsEscapedBy": self.escape, "linesTerminatedBy": self.row,
        }  # fmt: skip
        if unsafe:
            options["decodeColumns"] = dict.fromkeys(
                unsafe, "FROM_BASE64" if self.base64 else "UNHEX"
            )
        self.write(f"{base}.json", json.dumps({
            "options": options, "triggers": [one for (one,) in triggers],
            "includesData": True, "includesDdl": True, "extension": extension,
            "chunking": bool(self.chunk), "compression": self.compression, "primaryIndex": [],
            "partitions": list(parts),
            "basenames": {part: f"{base}@{encoded(part)}" for part in parts},
        }))  # fmt: skip
        for part in parts or ("",):
            where = f"{base}@{encoded(part)}" if part else base
            rows = self.rows(schema, name, columns, unsafe, part)
            self.data(where, extension, rows)

    def parts(self, schema: str, table: str) -> list[str]:
        found = self.db.ask(
            "SELECT partition_name FROM information_schema.partitions WHERE table_schema ="
            f" '{literal(schema)}' AND table_name = '{literal(table)}'"
            " AND partition_name IS NOT NULL"
        )
        return [one for (one,) in found] if self.partitions else []

    def triggers(self, schema: str, names: Sequence[str], base: str) -> None:
        text = HEAD
        for name in names:
            row = self.db.ask(f"SHOW CREATE TRIGGER {quoted(schema)}.{quoted(name)}")[0]
            text += f"-- begin trigger {schema}.{name}\n"
            text += f"/*!50032 DROP TRIGGER IF EXISTS {quoted(name)} */;\nDELIMITER ;;\n"
            text += f"/*!50003 {row[2]} */;;\nDELIMITER ;\n-- end trigger {schema}.{name}\n\n"
        self.write(f"{base}.triggers.sql", text)

    def rows(
        self,
        schema: str,
        table: str,
        columns: Sequence[tuple[str, str, str]],
        unsafe: Sequence[str],
        part: str,
    ) -> list[bytes]:
        function = "TO_BASE64" if self.base64 else "HEX"
        wanted = ", ".join(
            f"{function}({quoted(one)})" if one in unsafe else quoted(one) for one, *_ in columns
        )
        of = f" PARTITION ({quoted(part)})" if part else ""
        with pymysql.connect(
            unix_socket=str(self.db.socket), user="root", charset="utf8mb4", use_unicode=False,
            conv=TO_TEXT,
        ) as connection, connection.cursor() as cursor:  # fmt: skip
            cursor.execute("SET SESSION time_zone = '+00:00'")
            cursor.execute(f"SELECT {wanted} FROM {quoted(schema)}.{quoted(table)}{of}")
            names = [one for one, *_ in columns]
            return [self.line(names, unsafe, row) for row in cursor.fetchall()]

    def line(self, names: Sequence[str], unsafe: Sequence[str], row: Sequence[Any]) -> bytes:
        values = []
        for name, value in zip(names, row, strict=True):
            text = value if value is None or isinstance(value, bytes) else str(value).encode()
            if text is not None and name in unsafe:
                text = text.replace(b"\n", b"")
            values.append(self.field(text))
        return self.value.encode().join(values) + self.row.encode()

    def field(self, text: bytes | None) -> bytes:
        escape, enclosing = self.escape.encode(), self.enclosing.encode()
        if text is None:
            return escape + b"N"
        special = escape + enclosing + self.value.encode()[:1] + self.row.encode()[:1]
        out = re.sub(
            rb"[\0\b\n\r\t\x1a%s]" % re.escape(special),
            lambda found: escape + ESCAPES.get(found[0], found[0]),
            text,
        )
        return enclosing + out + enclosing

    def data(self, base: str, extension: str, rows: Sequence[bytes]) -> None:
        if not self.chunk:
            self.file(f"{base}.{extension}", rows)
            return
        parts = [rows[at : at + self.chunk] for at in range(0, len(rows), self.chunk)] or [[]]
        for number, part in enumerate(parts):
            last = "@" if number == len(parts) - 1 else ""
            self.file(f"{base}@{last}{number}.{extension}", part)

    def file(self, name: str, rows: Sequence[bytes]) -> None:
        data = b"".join(rows)
        (self.top / name).write_bytes(PACKED[self.compression](data))
        (self.top / f"{name}.idx").write_bytes(struct.pack(">Q", len(data)))
        if self.version != "1.0.0":
            self.sizes[name] = len(data)


HEAD = """\
-- MySQLShell dump 2.0.1  Distrib Ver 9.5.0 for Linux on x86_64 - for MySQL 9.5.0, for Linux
--
-- Host: localhost
-- ------------------------------------------------------
-- Server version	8.4.7
"""


def encoded(name: str) -> str:
    """``name`` as a part of a file's: ASCII but letters, digits and ``-._~`` as ``%2F``."""
    return "".join(
        one if ord(one) > 127 or one.isalnum() or one in "-._~" else f"%{ord(one):02X}"
        for one in name
    )


def quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def literal(name: str) -> str:
    return name.replace("\\", "\\\\").replace("'", "''")

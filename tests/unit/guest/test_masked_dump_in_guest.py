"""The guest's program ``load`` dumps what a server has, and another loads it; both are real."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from lab.run import run
from lab.wait import Deadline, attempts
from tests.support.mariadb_server import NoServer, Server, client, server
from tests.unit.guest.test_identity_in_guest import program

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="a guest's programs run as root"),
    pytest.mark.skipif(not shutil.which("perl"), reason="perl is not installed"),
]

SECONDS = 120.0
ODD = "od`d"
SCHEMA = (
    "CREATE DATABASE shop CHARACTER SET utf8mb4",
    "CREATE TABLE shop.t (id INT PRIMARY KEY, name VARCHAR(60), seen INT DEFAULT 0)",
    "CREATE TABLE shop.audit (id INT AUTO_INCREMENT PRIMARY KEY, old VARCHAR(60))",
    "INSERT INTO shop.t (id, name) VALUES (1, 'Ada'), (2, 'Grace')",
    "CREATE DATABASE `od``d`",
    "CREATE TABLE `od``d`.t (id INT PRIMARY KEY)",
    "CREATE TRIGGER `od``d`.`o``ne` BEFORE INSERT ON `od``d`.t FOR EACH ROW SET NEW.id = 7",
    "USE shop",
    "SET sql_mode = 'ANSI_QUOTES,PIPES_AS_CONCAT'",
    (
        'CREATE DEFINER = "app"@"10.%" TRIGGER a_second AFTER UPDATE ON t FOR EACH ROW'
        " INSERT INTO audit (old) VALUES (OLD.name || ';' || 'second')"
    ),
    "SET sql_mode = DEFAULT",
    (
        "CREATE TRIGGER first AFTER UPDATE ON t FOR EACH ROW PRECEDES a_second"
        " BEGIN INSERT INTO audit (old) VALUES (CONCAT(OLD.name, ' first')); END"
    ),
    "CREATE VIEW names AS SELECT name FROM t",
    "CREATE FUNCTION twice (n INT) RETURNS INT DETERMINISTIC RETURN 2 * n",
    "CREATE PROCEDURE look () BEGIN SELECT twice(id) FROM t; END",
    "CREATE EVENT later ON SCHEDULE EVERY 1 DAY DISABLE DO INSERT INTO audit (old) VALUES ('x')",
)
DEFINITIONS = (
    (
        "SELECT trigger_schema, trigger_name, event_object_table, action_order, action_timing,"
        " event_manipulation, action_statement, definer, sql_mode, character_set_client,"
        " database_collation FROM information_schema.triggers ORDER BY 1, 2"
    ),
    (
        "SELECT routine_schema, routine_name, routine_definition, definer, sql_mode"
        " FROM information_schema.routines WHERE routine_schema = 'shop' ORDER BY 1, 2"
    ),
    "SELECT event_schema, event_name, event_definition, status FROM information_schema.events",
    (
        "SELECT table_schema, table_name, view_definition FROM information_schema.views"
        " WHERE table_schema = 'shop'"
    ),
    "SELECT * FROM shop.t ORDER BY id",
)


@dataclass(frozen=True)
class Guest:
    """A directory that stands for a guest with a server."""

    top: Path
    server: Server
    env: dict[str, str]

    def load(self, *argv: str) -> None:
        run([self.top / "load", *argv], timeout=SECONDS, env=self.env)

    def look(self) -> str:
        return run([self.top / "load", "look"], timeout=SECONDS, env=self.env).stdout

    def background(self, *argv: str) -> str:
        """A step that runs in the background; what it printed."""
        self.load(*argv)
        for _ in attempts(Deadline.after(SECONDS)):
            said = self.look()
            if said.startswith("done "):
                assert said.startswith("done 0"), said
                return said
        raise AssertionError(argv)


@pytest.fixture
def guests() -> Iterator[tuple[Guest, Guest]]:
    """Two, which have the same disk."""
    try:
        programs = [
            client("mariadb", "mariadb-client-core"),
            client("mariadb-dump", "mariadb-client"),
        ]
        with tempfile.TemporaryDirectory(prefix="lab-gm-", dir="/tmp") as path:
            disk = Path(path, "disk")
            disk.write_bytes(bytes(4 << 20))
            with server() as one, server() as other:
                found = []
                for number, db in enumerate((one, other)):
                    top = Path(path, str(number))
                    for name in ("run", "dev", "sys/vdb", "bin"):
                        (top / name).mkdir(parents=True)
                    (top / "sys/vdb/serial").write_text("lab-masked")
                    (top / "dev/vdb").symlink_to(disk)
                    here = (
                        ("/run/lab-load", f"{top}/run"),
                        ("/sys/block/", f"{top}/sys/"),
                        ("disk=/dev/", f"disk={top}/dev/"),
                    )
                    for name in ("load", "sql", "mysql.pl"):
                        program(name, top, db.socket, *here).chmod(0o755)
                    for where, _ in programs:
                        (top / "bin" / where.name).symlink_to(where)
                    env = programs[0][1] | {"PATH": f"{top}/bin:{os.environ['PATH']}"}
                    found.append(Guest(top, db, env))
                yield found[0], found[1]
    except NoServer as error:
        pytest.skip(str(error))


def test_triggers_see_nothing_of_the_masking(guests: tuple[Guest, Guest]) -> None:
    """Protects rows from triggers while they are masked, and all definitions from the way."""
    one, other = guests
    one.server.ask(*SCHEMA)
    before = [one.server.ask(question) for question in DEFINITIONS]
    assert [len(rows) for rows in before] == [3, 2, 1, 1, 2]
    one.load("triggers", "shop", ODD)
    assert one.server.ask(DEFINITIONS[0]) == []
    one.server.ask("UPDATE shop.t SET name = CONCAT('masked', id)")
    assert one.server.ask("SELECT COUNT(*) FROM shop.audit") == [(0,)]
    said = one.background("dump", "lab-masked", "shop", ODD)
    size = re.search(r"^(\d+) bytes", said, re.M)
    assert size is not None
    other.background("disk", "lab-masked", size[1])
    after = [other.server.ask(question) for question in DEFINITIONS]
    assert after[:-1] == before[:-1]
    assert [row[1] for row in after[-1]] == ["masked1", "masked2"]
    # They work, in their order.
    other.server.ask("CREATE USER app@'10.%'", "GRANT ALL ON shop.* TO app@'10.%'")
    other.server.ask("UPDATE shop.t SET name = 'x' WHERE id = 1")
    assert other.server.ask("SELECT old FROM shop.audit ORDER BY id") == [
        ("masked1 first",), ("masked1;second",)]  # fmt: skip


def test_masking_says_how_far_it_is(guests: tuple[Guest, Guest]) -> None:
    """Protects who waits for a large table: what a statement selected is seen while it runs."""
    one, _ = guests
    one.load("clear")
    (one.top / "run/sql.000000").write_text("SELECT 1;\nSELECT 2;\nDO GET_LOCK('lab', 60);\n")
    with one.server.connect() as holder, holder.cursor() as cursor:
        cursor.execute("SELECT GET_LOCK('lab', 0)")
        one.load("parts")
        for _ in attempts(Deadline.after(SECONDS)):
            if one.look() == "read 2\n":
                break
        else:
            raise AssertionError(one.look())
    for _ in attempts(Deadline.after(SECONDS)):
        if one.look().startswith("done 0"):
            return
    raise AssertionError(one.look())

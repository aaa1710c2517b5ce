"""Protects sources: a live server is dumped consistently, and its password appears nowhere."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.datasets.live import condition, dumping, require_server, table
from lab.datasets.selection import Selection
from lab.datasets.source import parse
from lab.errors import HostUnfit, InvalidSpec
from lab.lifecycle.datasets import dataset
from lab.lifecycle.datasets import spool as spools
from lab.lifecycle.images.provenance import INFO
from lab.requests.datasets import CreateDataset
from lab.run import run
from tests.support.lifecycle_world import World, make_image
from tests.support.mariadb_server import NoServer, Server, client, server
from tests.unit.lifecycle.datasets.test_engine import greeting

ALL = Selection()
PASSWORD = """hun"ter'2\\n #;%s"""
ESCAPED = '"' + PASSWORD.replace("\\", "\\\\").replace('"', r"\"") + '"'
SCHEMA = """
CREATE DATABASE shop CHARACTER SET latin1
CREATE DATABASE crm
CREATE TABLE shop.orders (id INT PRIMARY KEY, note BLOB)
INSERT INTO shop.orders VALUES (1, 0x00FF27), (2, 'two'), (3, NULL)
CREATE TABLE shop.log (id INT PRIMARY KEY, text TEXT)
INSERT INTO shop.log VALUES (1, 'long'), (2, 'longer')
CREATE TABLE crm.people (id INT PRIMARY KEY, name LONGTEXT)
INSERT INTO crm.people VALUES (1, 'Ada'), (2, 'Grace'), (3, REPEAT('x', 4000000))
CREATE VIEW crm.v AS SELECT id FROM shop.orders
CREATE TRIGGER shop.tr AFTER INSERT ON shop.orders FOR EACH ROW INSERT INTO shop.log VALUES (9, 'x')
CREATE PROCEDURE shop.p() SELECT 1
CREATE EVENT shop.e ON SCHEDULE EVERY 1 DAY DO DELETE FROM shop.log
CREATE USER reader@'127.0.0.1' IDENTIFIED BY "{password}"
GRANT ALL ON shop.* TO reader@'127.0.0.1'
GRANT ALL ON crm.* TO reader@'127.0.0.1'
GRANT SELECT ON mysql.* TO reader@'127.0.0.1'
CREATE USER poor@'127.0.0.1' IDENTIFIED BY "{password}"
GRANT SELECT ON shop.orders TO poor@'127.0.0.1'
"""


@pytest.fixture(scope="module")
def live() -> Iterator[tuple[Server, int]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--skip-networking=0", "--bind-address=127.0.0.1", f"--port={port}"]
    try:
        with server(options) as db:
            quoted = PASSWORD.replace("\\", "\\\\").replace('"', '\\"')
            db.ask(*SCHEMA.strip().replace("{password}", quoted).split("\n"))
            yield db, port
    except NoServer as error:
        pytest.skip(str(error))


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        found = [client("mariadb-dump", "mariadb-client"), client("mariadb", "mariadb-client-core")]
    except NoServer as error:
        pytest.skip(str(error))
    places = [str(path.parent) for path, _ in found]
    monkeypatch.setenv("PATH", os.pathsep.join([*places, os.environ["PATH"]]))
    monkeypatch.setenv("LAB_SOURCE_PASSWORD", PASSWORD)


def dsn(port: int, rest: str = "", user: str = "reader") -> str:
    return f"mysql://{user}@127.0.0.1:{port}/{rest}"


def of(text: str, work: Path, selection: Selection = ALL) -> spools.Spool:
    return spools.write(
        parse(text), [], work / "spool", "shop", lambda _: None, selection, dialect="mariadb"
    )


def lines(spool: spools.Spool) -> str:
    return spool.path.read_text(errors="surrogateescape")


def test_a_server_is_dumped_and_loaded_as_it_was(live: tuple[Server, int], tmp_path: Path) -> None:
    db, port = live
    tables = "CHECKSUM TABLE shop.orders, shop.log, crm.people EXTENDED"
    before = db.ask(tables)
    spool = of(dsn(port), tmp_path)
    assert set(spool.found.databases) == {"shop", "crm"}, "without those of the server"
    assert (spool.found.dialect, spool.found.complete) == ("mariadb", True)
    argv = [str(client("mariadb", "mariadb-client-core")[0]), "--no-defaults", "--skip-ssl"]
    argv += [f"--socket={db.socket}", "-uroot", "--batch", "--binary-mode"]
    db.ask("DROP DATABASE shop", "DROP DATABASE crm")
    run(argv, timeout=60, stdin=spool.path.read_bytes())
    assert db.ask(tables) == before
    for what, count in (("ROUTINES", 1), ("EVENTS", 1), ("TRIGGERS", 1)):
        column = f"{what[:-1]}_SCHEMA"
        text = f"SELECT COUNT(*) FROM information_schema.{what} WHERE {column} = 'shop'"
        assert db.ask(text) == [(count,)]
    assert "latin1" in db.ask("SHOW CREATE DATABASE shop")[0][1]


def test_accounts_of_a_server_as_a_whole(live: tuple[Server, int], tmp_path: Path) -> None:
    """With roles; those that images have are left out."""
    db, port = live
    db.ask(
        "CREATE ROLE clerk", "GRANT SELECT ON crm.* TO clerk", "GRANT clerk TO reader@'127.0.0.1'"
    )
    spool = of(dsn(port), tmp_path)
    assert (spool.found.notes, spool.found.complete) == ((), True)
    grants = "SHOW GRANTS FOR reader@'127.0.0.1'"
    before = db.ask(grants)
    argv = [str(client("mariadb", "mariadb-client-core")[0]), "--no-defaults", "--skip-ssl",
            "-uroot", "--batch", "--binary-mode"]  # fmt: skip
    try:
        with server() as other:
            run([*argv, f"--socket={other.socket}"], timeout=60, stdin=spool.path.read_bytes())
            assert other.ask(grants) == before
            assert other.ask("SELECT COUNT(*) FROM mysql.user WHERE is_role = 'Y'") == [(1,)]
    finally:
        db.ask("DROP ROLE clerk")
    spools.write(parse(dsn(port)), [], tmp_path / "m", "shop", lambda _: None, dialect="mysql")
    assert "CREATE USER" not in (tmp_path / "m").read_text(errors="surrogateescape")


def test_the_password_is_in_no_command_and_in_no_file_that_stays(
    live: tuple[Server, int], tmp_path: Path
) -> None:
    _, port = live
    seen: list[str] = []

    def look(_: int) -> None:
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                seen.append(path.read_text(errors="replace"))
            except OSError:
                continue
        assert {path.name for path in tmp_path.iterdir()} <= {"spool"}

    spools.write(parse(dsn(port)), [], tmp_path / "spool", "shop", look, dialect="mariadb")
    assert any("--single-transaction" in one for one in seen)
    assert not [one for one in seen if "hun" in one and "ter'2" in one]
    assert [path.name for path in tmp_path.iterdir()] == ["spool"]
    assert b"ter'2" not in (tmp_path / "spool").read_bytes()


def test_tables_rows_and_schemas_are_selected(live: tuple[Server, int], tmp_path: Path) -> None:
    _, port = live
    chosen = Selection(where=("shop.orders:id >= 2 AND id < 3",), schema_only=("crm.people",))
    text = lines(of(dsn(port), tmp_path, chosen))
    assert "INSERT INTO `orders` VALUES\n(2,0x74776F);" in text
    assert "INSERT INTO `log`" in text
    assert "CREATE TABLE `people`" in text
    assert "INSERT INTO `people`" not in text
    assert text.count("CREATE TABLE `orders`") == 1
    assert text.index("CREATE TABLE `orders`") < text.index("VIEW `v`")
    (tmp_path / "spool").unlink()
    chosen = Selection(tables=("shop.orders", "crm.people"))
    text = lines(of(dsn(port), tmp_path, chosen))
    assert "INSERT INTO `orders`" in text
    assert "INSERT INTO `people`" in text
    assert "CREATE TABLE `log`" not in text
    assert "PROCEDURE" not in text
    (tmp_path / "spool").unlink()
    text = lines(of(dsn(port, "crm"), tmp_path))
    assert "CREATE TABLE `people`" in text
    assert "CREATE TABLE `orders`" not in text


@pytest.mark.parametrize(
    ("user", "rest", "password", "selection", "said"),
    [
        ("reader", "", "wrong", Selection(), "Access denied"),
        ("reader", "shop", "", Selection(), "Access denied"),
        ("poor", "shop", PASSWORD, Selection(), "denied"),
        ("reader", "none", PASSWORD, Selection(), "no database 'none'"),
        ("reader", "mysql", PASSWORD, Selection(), "server's own"),
        ("reader", "", PASSWORD, Selection(tables=("shop.none",)), "no table shop.none"),
        ("reader", "crm", PASSWORD, Selection(schema_only=("shop.log",)), "not among"),
        ("reader", "", PASSWORD, Selection(where=("shop.log:nocolumn = 1",)), "nocolumn"),
    ],
)
def test_the_servers_words_are_shown(
    live: tuple[Server, int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    user: str,
    rest: str,
    password: str,
    selection: Selection,
    said: str,
) -> None:
    monkeypatch.setenv("LAB_SOURCE_PASSWORD", password)
    with pytest.raises(InvalidSpec) as failure:
        of(dsn(live[1], rest, user), tmp_path, selection)
    text = "\n".join([failure.value.what, failure.value.hint, *failure.value.details])
    assert said in text
    assert "ter'2" not in text
    assert {path.name for path in tmp_path.iterdir()} <= {"spool"}


@pytest.fixture
def greeted() -> Iterator[int]:
    """The port of a server that greets once, and no more."""
    with greeting(b"5.5.5-10.11.6-MariaDB") as port:
        yield port


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Programs in the place of MariaDB's, in a directory that everybody can read."""
    with tempfile.TemporaryDirectory() as work:
        Path(work).chmod(0o755)
        yield _recorded(Path(work), monkeypatch)


def _recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "programs"
    place.mkdir()
    said = "\\t".join(one.encode().hex() for one in ("--result-file=/x", "t"))
    for name, answer in (("mariadb", said), ("mariadb-dump", "")):
        path = place / name
        path.write_text(
            f"#!/bin/sh\nprintf '%s\\n' {name} $(id -u) \"$@\" >&2\nprintf '{answer}\\n'\n"
            f"cat /dev/stdin >&2; head -c 1 {tmp_path}/secret >&2; touch {tmp_path}/written\n"
            "[ $(basename $0) = mariadb ]\n"
        )
        path.chmod(0o755)
    (tmp_path / "secret").touch(0o600)
    (tmp_path / "secret").write_text("!")
    monkeypatch.setenv("PATH", f"{place}:/usr/bin:/bin")
    return tmp_path


def test_a_name_that_the_server_says_is_no_option(recorded: Path, greeted: int) -> None:
    """Protects the host's files: ``--result-file=/root/.ssh/authorized_keys`` is a valid name."""
    with pytest.raises(InvalidSpec, match="has the name of an option") as failure:
        of(dsn(greeted), recorded)
    assert "shop,crm" in failure.value.hint
    for wrong in ("-x", "--result-file=%2Fx", "shop,-B"):
        with pytest.raises(InvalidSpec, match="cannot be the name of a database"):
            parse(dsn(1, wrong))


def test_the_programs_that_dump_can_write_nothing(recorded: Path, greeted: int) -> None:
    """Protects the host: what reads a hostile server's answers has no rights of root."""
    (recorded / "programs/mariadb").write_text("#!/bin/sh\nprintf '73686f70\\t\\n'\n")
    with pytest.raises(InvalidSpec, match="the dump failed") as failure:
        of(dsn(greeted), recorded)
    said = "\n".join(failure.value.details)
    if os.geteuid() == 0:
        assert not (recorded / "written").exists()
        assert "ermission denied" in said
    assert dumping("10.11.6-MariaDB", ["--where=-x"], ["shop", "crm"])[-3:] == ["--", "shop", "crm"]


def test_the_list_of_a_servers_tables_has_an_end(recorded: Path, greeted: int) -> None:
    """Protects the service's memory: a hostile server lists tables without end."""
    (recorded / "programs/mariadb").write_text("#!/bin/sh\nexec yes 73686f70\n")
    with pytest.raises(InvalidSpec, match="more than 32 MiB"):
        of(dsn(greeted), recorded)


@pytest.mark.parametrize("name", ["6100", "61" * 300])
def test_a_name_that_no_server_has_is_refused(recorded: Path, greeted: int, name: str) -> None:
    """Protects from a traceback: no argument of a program has a zero byte, or any length."""
    (recorded / "programs/mariadb").write_text(
        f"#!/bin/sh\nprintf '73686f70\\t74\\n73686f70\\t{name}\\n'\n"
    )
    selection = Selection(tables=("shop.t",))
    with pytest.raises(InvalidSpec, match="the server's answer is invalid"):
        of(dsn(greeted), recorded, selection)


def test_more_tables_than_a_command_can_name(recorded: Path, greeted: int) -> None:
    """Protects from a traceback: those that are not dumped are named, each in an argument."""
    (recorded / "programs/mariadb").write_text(
        "#!/usr/bin/python3\n"
        "print('73686f70\\t\\n73686f70\\t74')\n"
        "for number in range(40000):\n"
        "    print('73686f70\\t' + f'{number:060d}'.encode().hex())\n"
    )
    with pytest.raises(InvalidSpec, match="too many tables") as failure:
        of(dsn(greeted), recorded, Selection(tables=("shop.t",)))
    assert "mariadb-dump" in failure.value.hint


def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        with pytest.raises(HostUnfit, match="cannot be reached") as failure:
            of(dsn(held.getsockname()[1]), tmp_path)
    assert failure.value.details == ("Connection refused",)


def test_a_server_that_does_not_want_us(tmp_path: Path) -> None:
    """Protects from a guess: a server that blocks this host says so in place of a greeting."""
    said = b"\xff\x69\x04Host '10.0.0.1' is blocked"
    refused = pytest.raises(HostUnfit, match="cannot be reached")
    with greeting(b"", said) as port, refused as failure:
        of(dsn(port), tmp_path)
    assert failure.value.details == ("Host '10.0.0.1' is blocked",)


def test_programs_that_are_missing_are_named(
    tmp_path: Path, greeted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    if any((Path(place) / "mariadb-dump").exists() for place in ("/usr/local/sbin", "/usr/sbin")):
        pytest.skip("mariadb-dump is in a directory that is always searched")
    with pytest.raises(HostUnfit, match="mariadb-dump is not installed") as failure:
        of(dsn(greeted), tmp_path)
    assert "mariadb-client" in failure.value.hint


def test_a_defaults_file_is_read_and_must_be_private(
    live: tuple[Server, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LAB_SOURCE_PASSWORD")
    place = tmp_path / "a place"
    place.mkdir()
    path = place / "my.cnf"
    path.write_text(f"[client]\nuser=nobody\npassword={ESCAPED}\n")
    path.chmod(0o644)
    chosen = Selection(defaults_file=str(path))
    with pytest.raises(InvalidSpec, match="can be read by others"):
        of(dsn(live[1], "crm"), place, chosen)
    path.chmod(0o600)
    assert "CREATE TABLE `people`" in lines(of(dsn(live[1], "crm"), tmp_path, chosen))


def test_selections_are_checked() -> None:
    shop = parse("mysql://a@b/shop")
    assert table("shop.a%2Eb%2Cc", "--tables") == ("shop", "a.b,c")
    assert condition("shop.t: a = ':' ") == (("shop", "t"), "a = ':'")
    require_server(Selection(tables=("shop.t",)), shop)
    for wrong in (
        Selection(tables=("shop",)),
        Selection(tables=("shop.",)),
        Selection(schema_only=(".t",)),
        Selection(where=("shop.t",)),
        Selection(where=("shop.t: ",)),
        Selection(where=("shop.t:a", "shop.t:b")),
        Selection(where=("shop.t:a",), schema_only=("shop.t",)),
    ):
        with pytest.raises(InvalidSpec) as failure:
            require_server(wrong, shop)
        assert failure.value.hint
    for one in (Selection(tables=("shop.t",)), Selection(where=("shop.t:a",))):
        with pytest.raises(InvalidSpec, match="not a live server") as failure:
            require_server(one, parse("generate:sysbench"))
        assert "--tables" in failure.value.hint


def test_a_refresh_repeats_what_was_selected(
    live: tuple[Server, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The password is asked for again: it is not stored."""
    monkeypatch.delenv("LAB_SOURCE_PASSWORD")
    path = tmp_path / "my.cnf"
    # The fake server knows neither engines nor conditional comments.
    path.write_text(
        f"[client]\npassword={ESCAPED}\n[mariadb-dump]\nskip-create-options\nno-create-db\n"
    )
    path.chmod(0o600)
    with World(tmp_path / "home").open() as ctx:
        make_image(ctx)
        dataset.create(
            ctx,
            CreateDataset(
                name="shop",
                source=dsn(live[1], "crm"),
                tables=("crm.people",),
                where=("crm.people:id = 2",),
                defaults_file=str(path),
            ),
        )
        view = dataset.refresh(ctx, "shop")
        assert (view.version, view.state) == (2, "ready")
        files = [one for one in (tmp_path / "home").rglob("*") if one.is_file()]
        files = [one for one in files if one.stat().st_size < 8 << 20]  # no disks
        assert not [one for one in files if b"ter'2" in one.read_bytes()]
        info = [one.read_text() for one in files if one.name == INFO]
        assert len(info) == 2
        assert all("crm.people:id = 2" in text for text in info)
        path.unlink()
        with pytest.raises(InvalidSpec, match=r"my\.cnf cannot be read"):
            dataset.refresh(ctx, "shop")
        assert [one.at for one in dataset.datasets(ctx)] == ["shop@1", "shop@2"]

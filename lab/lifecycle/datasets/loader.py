"""The loader: one server that is in no cluster, on clones of an image's disks.

It is booted as the blueprint ``single``; Galera's position in the data directory stays that of the
image. So nodes cloned from these disks form a cluster as nodes of the image do, without transfer.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from lab.blueprints import Engine, NodePlan, with_options
from lab.blueprints.dialects import dialect_of
from lab.config.profile import Profile
from lab.datasets import queries
from lab.errors import CommandFailed, InvalidSpec, NotReady
from lab.guest.identity import item
from lab.lifecycle.captures.warm import QUERIES
from lab.lifecycle.core.context import Context
from lab.lifecycle.core.release import forget_guests
from lab.lifecycle.images.provenance import TableFacts
from lab.lifecycle.images.ready import Image, Images
from lab.lifecycle.nodes.form import Formation, form
from lab.lifecycle.nodes.nodes import Node, volumes_of
from lab.lifecycle.nodes.nodes import plan as plan_nodes
from lab.lifecycle.nodes.ports import reserve_segment
from lab.lifecycle.nodes.start_slots import start_slot
from lab.names import Owner, VolumeName
from lab.options import NONE, OptionFile, Options
from lab.sizes import NodeSize
from lab.state.records import ResourceKind
from lab.storage import Volume
from lab.units import MIB
from lab.values import dataclass

_LOAD = "/usr/lib/lab/load"
_SQL = "/usr/lib/lab/sql"
_CALL_SECONDS = 60.0
_LONG_SECONDS = 900.0
_LOOK_EVERY = 1.0
_SHARE = 20
"""A look takes a twentieth of the guest's time at most: emulated, it starts programs slowly."""
_LONGEST = 10.0
"""Seconds between two looks, at most."""
_SILENT = 300.0
"""Seconds after which a guest that does not answer is given up: the server may keep it busy."""
_ERROR = re.compile(r"^(ERROR(?: \d+ \(\w+\))?)(?: at line \d+)?(: [^\n]*)", re.MULTILINE)
_PIECE = MIB
"""Bytes of SQL that are sent to the guest at once."""
_PARTS = "/run/lab-load/sql"
ROWS = "/run/lab-rows/rows"
"""The directory of rows in a file system for another guest."""
FIRST, LAST = "first.sql", "last.sql"
"""Files of it, which are executed before and after there are rows."""
_TABLES_AT_ONCE = 100
"""Tables in one call: the agent's arguments are bounded."""
_USERS = "table_schema NOT IN ('mysql', 'sys', 'information_schema', 'performance_schema')"
_TABLES_LIMIT = 10_000
_TABLES = (
    "SELECT table_schema, table_name, engine, table_rows, data_length + index_length"  # noqa: S608
    f" FROM information_schema.tables WHERE table_type = 'BASE TABLE' AND {_USERS}"
    f" LIMIT {_TABLES_LIMIT}"
)
_LINKS_LIMIT = 100
_ANALYSE = (
    "SELECT CONCAT('ANALYZE NO_WRITE_TO_BINLOG TABLE `', "  # noqa: S608
    "REPLACE(table_schema, '`', '``'), '`.`',"
    " REPLACE(table_name, '`', '``'), '`') FROM information_schema.tables"
    f" WHERE table_type = 'BASE TABLE' AND {_USERS}"
    " AND CONCAT(table_schema, table_name) NOT REGEXP '[[:cntrl:]]' LIMIT 10000"
)


class Refused(Exception):
    """The server's client ended with an error; the text is what it said."""


@dataclass(frozen=True)
class Server:
    """The running server of ``node``, and the further volumes that it has as disks."""

    ctx: Context
    node: Node
    images: Images
    segment: int
    more: tuple[VolumeName, ...]

    def run(self, *argv: str, stdin: bytes = b"", timeout: float = _CALL_SECONDS) -> str:
        """The output of a program in the guest; raises NotReady and CommandFailed."""
        channel = self.ctx.hypervisor.channel(self.node.guest)
        found = channel.run(argv, stdin=stdin, timeout=timeout, halt=self.ctx.progress.halt)
        return found.decode(errors="replace")

    def rows(self, question: str) -> list[list[str]]:
        """The rows of one statement without line ends; raises NotReady and CommandFailed."""
        output = self.run(_SQL, stdin=f"{question}\n".encode(), timeout=_LONG_SECONDS)
        return [line.split("\t") for line in output.splitlines()]

    def read(self, disk: str, size: int, loaded: Callable[[int], None]) -> None:
        """Execute the first ``size`` bytes of a disk; raises Refused, NotReady.

        ``loaded`` is called with the bytes that were read.
        """
        self.run(_LOAD, "disk", f"lab-{disk}", str(size))
        self._until_ended(lambda done: loaded(min(done, size)), size)
        loaded(size)

    def unpack(self, disk: str, size: int, unpacked: Callable[[int], None]) -> None:
        """Have the stream in the first ``size`` bytes of a disk as the data directory.

        The server stops. ``unpacked`` is called with the bytes that were read. Raises Refused,
        NotReady.
        """
        self.run(_LOAD, "unpack", f"lab-{disk}", str(size), self.engine.service)
        self._until_ended(lambda done: unpacked(min(done, size)), size)
        unpacked(size)

    def prepare(self, options: Sequence[str], *, prepared: bool) -> None:
        """Prepare the unpacked backup unless it is; raises Refused, NotReady.

        ``options``: lines of the option file of a server that has it.
        """
        apply = "no" if prepared else "yes"
        self.run(_LOAD, "prepare", self.engine.config_path, apply, *options)
        self._until_ended(lambda _: None)

    def adopt(self, *, upgrade: bool) -> None:
        """Start the server on the prepared backup, with the accounts of an image; raises the same.

        ``upgrade``: its system tables too.
        """
        self.run(_LOAD, "adopt", self.engine.service, "yes" if upgrade else "no")
        self._until_ended(lambda _: None)

    def execute(
        self, sessions: Sequence[Iterable[str]], answered: Callable[[int], None], size: int = 0
    ) -> None:
        """Execute the statements of sessions, at the same time; raises Refused, NotReady.

        They are in the guest's memory only, in files that are removed when they were read.
        ``answered`` is called with the sum of the numbers that each session selected last, and of
        the bytes that the server has read of a file of rows; ``size``: what that comes to.
        """
        if not sessions:
            return
        self.run(_LOAD, "clear")
        for number, statements in enumerate(sessions):
            self._send_all(number, statements)
        self.run(_LOAD, "parts")
        self._until_ended(answered, size)

    def _send_all(self, session: int, statements: Iterable[str]) -> None:
        pieces, piece = 0, bytearray()
        for statement in statements:
            piece += statement.encode() + b";\n"
            if len(piece) >= _PIECE:
                self._send(session, pieces, piece)
                pieces += 1
        self._send(session, pieces, piece)

    def forget_links(self) -> list[str]:
        """Remove whom the server follows, and how far: a line for each, ``link x``."""
        return self.run(_LOAD, "links", timeout=_LONG_SECONDS).splitlines()[:_LINKS_LIMIT]

    def dump(self, disk: str, databases: Sequence[str], *, accounts: bool) -> None:
        """Have a file system on a disk, with all of databases but their rows.

        ``accounts``: with those but an image's. Raises Refused, NotReady.
        """
        with_accounts = "yes" if accounts else "no"
        self.run(_LOAD, "dump", f"lab-{disk}", with_accounts, *_plain(databases))
        self._until_ended(lambda _: None)

    def export_tables(self, paths: Sequence[str]) -> None:
        """Copy tables of InnoDB there, ``database/table`` each; raises Refused, NotReady."""
        for at in range(0, len(paths), _TABLES_AT_ONCE):
            self.run(_LOAD, "export", *_plain(paths[at : at + _TABLES_AT_ONCE]))
            self._until_ended(lambda _: None)

    def import_tables(self, copied: Callable[[int], None], size: int) -> None:
        """Have the tables that were copied there, which are defined; raises Refused, NotReady.

        ``copied`` is called with bytes, of about ``size``.
        """
        self.run(_LOAD, "import")
        self._until_ended(copied, size)

    def open(self, disk: str) -> None:
        """Have the file system that another guest made on a disk; raises the same."""
        self.run(_LOAD, "open", f"lab-{disk}")

    def read_file(self, name: str) -> None:
        """Execute a file of it: ``FIRST`` or ``LAST``; raises Refused, NotReady."""
        self.run(_LOAD, "file", name)
        self._until_ended(lambda _: None)

    def close(self) -> dict[str, int]:
        """Leave the file system; files of rows in it, and their sizes in bytes."""
        output = self.run(_LOAD, "close", timeout=_LONG_SECONDS)
        lines = [re.fullmatch(r"([0-9]{1,18}) ([0-9]{1,18})", line) for line in output.splitlines()]
        if None in lines:
            raise _invalid()
        return {line[2]: int(line[1]) for line in lines if line}

    def set_triggers_aside(self, databases: Sequence[str]) -> None:
        """Drop the triggers of databases; ``dump`` has them nevertheless, after all rows."""
        self.run(_LOAD, "triggers", *_plain(databases), timeout=_LONG_SECONDS)

    def try_queries(self, text: str) -> None:
        """Raise InvalidSpec if the server refuses a query of a warm buffer pool."""
        try:
            self.run(*QUERIES, stdin=text.encode(), timeout=self.ctx.warm)
        except CommandFailed as error:
            raise queries.refused(text, error.stderr) from None

    def analyse(self) -> list[TableFacts]:
        """Have the server count its tables' rows and keys; what there is."""
        statements = self.run(_SQL, stdin=f"{_ANALYSE}\n".encode(), timeout=_LONG_SECONDS)
        self.run(_SQL, stdin=statements.encode(), timeout=_LONG_SECONDS)
        return self.tables()

    def tables(self) -> list[TableFacts]:
        """The tables, as the server knows them; not more than were asked for."""
        return [_table(row) for row in self.rows(_TABLES)[:_TABLES_LIMIT]]

    def forget(self) -> None:
        """Remove from a node of a lab what that was given: keys, and the password of its user."""
        self.run(_LOAD, "forget", timeout=_LONG_SECONDS)

    def rest(self, image: Image) -> None:
        """Stop the server cleanly and end its guest; its own disks can be cloned then."""
        engine = image.engine
        self.run(_LOAD, "rest", engine.service, engine.config_path, timeout=_LONG_SECONDS)
        self.ctx.hypervisor.stop(self.node.guest, force=True)  # its file systems are read-only
        self._forget(self.more)

    def discard(self, keep: Sequence[VolumeName] = ()) -> None:
        """End the guest, and destroy its disks but ``keep``."""
        self.ctx.hypervisor.stop(self.node.guest, force=True)
        volumes = [*volumes_of(self.node, self.images), *self.more]
        self._forget([volume for volume in volumes if volume not in keep])

    @property
    def engine(self) -> Engine:
        """The server's, as its image has it."""
        return self.images[self.node.image].engine

    def _forget(self, volumes: Sequence[VolumeName]) -> None:
        ctx, owner, guest = self.ctx, self.node.owner, self.node.guest
        ended: list[tuple[ResourceKind, str]] = [("guest", guest), ("segment", str(self.segment))]
        for volume in volumes:
            ctx.storage.destroy(volume)
            ended.append(("volume", str(volume)))
        forget_guests(ctx, [guest])
        ctx.home.seed(owner, self.node.name).unlink(missing_ok=True)
        for kind, ref in ended:
            ctx.store.resources.gone(owner, kind, ref)

    def _send(self, session: int, number: int, piece: bytearray) -> None:
        # The guest agent reads JSON a character at a time: emulated, a minute for half a MiB.
        part = item("file", f"{_PARTS}.{session}.{number:06}", "600", "0:0", bytes(piece))
        piece.clear()
        channel = self.ctx.hypervisor.channel(self.node.guest)
        channel.personalise(
            part.encode() + b"\n", timeout=_CALL_SECONDS, halt=self.ctx.progress.halt
        )

    def _until_ended(self, heard: Callable[[int], None], size: int = 0) -> str:
        """What the program in the background printed; raises Refused and NotReady.

        ``size``: of what it reads, in bytes; 0: not known.
        """
        began = last = time.monotonic()
        while True:
            self.ctx.progress.halt()
            asked = time.monotonic()
            try:
                output = self.run(_LOAD, "look")
                last = time.monotonic()
            except NotReady:
                if time.monotonic() - last > _SILENT:
                    raise
                continue
            first, _, rest = output.partition("\n")
            word, _, value = first.partition(" ")
            if word not in ("read", "done") or not re.fullmatch(r"[0-9]{1,18}", value):
                raise _invalid()
            if word == "done":
                if int(value):
                    raise Refused(rest)
                return rest
            heard(int(value))
            until = last + pause(last - asked, int(value), size, last - began)
            while (left := until - time.monotonic()) > 0:
                self.ctx.progress.halt()
                time.sleep(min(left, _LOOK_EVERY))


def pause(took: float, done: int, size: int, elapsed: float) -> float:
    """Seconds until the guest is asked again how far it is, whose last answer ``took`` seconds.

    ``done`` bytes of ``size`` were read in ``elapsed`` seconds: the end is to be seen soon.
    """
    seconds = min(_SHARE * took, _LONGEST)
    if size and done:
        seconds = min(seconds, elapsed * max(size - done, 0) / done / 2)
    return max(seconds, _LOOK_EVERY)


def boot(
    ctx: Context,
    owner: Owner,
    name: str,
    image: Image,
    size: NodeSize,
    profile: Profile,
    more: Sequence[Volume],
    options: Options = NONE,
) -> Server:
    """Boot a server on clones of the disks of ``image``, and with the disks ``more``.

    The image is kept from removal, the lock of ``owner`` is held. ``name``: the node's. Raises
    NotReady, InvalidSpec for ``options`` that the server refuses, and as storage and hypervisor
    do. What was made stays if it fails.
    """
    if more_options := dialect_of(image.engine).loading:
        options = replace(options, my_cnf=(OptionFile(more_options), *options.my_cnf))
    plan, images = with_options("single", options, 1), Images(image)
    # A load that fails is repeated from its start, so nothing must survive a crash before its end.
    fast = replace(profile, engine=replace(profile.engine, flush_log=0, doublewrite=False))
    nodes = tuple(plan_nodes(owner, [NodePlan(name, "server", size)], images))
    segment = reserve_segment(ctx, owner)
    formation = Formation(owner, images, plan, fast, nodes, segment, more=tuple(more))
    with start_slot(ctx, ours=True):  # the data come later
        form(ctx, formation, ctx.settings.ready_timeout)
    return Server(ctx, nodes[0], images, segment, tuple(volume.name for volume in more))


def put(ctx: Context, volume: VolumeName, content: Path | int) -> Volume:
    """A new volume with a file's content, which may be moved; or an empty one of so many bytes."""
    tags = {"owner": str(volume.owner), "node": volume.node}
    intent = ctx.store.resources.intend_all(volume.owner, [("volume", str(volume))])
    if isinstance(content, int):
        made = ctx.storage.create(volume, content, tags)
    else:
        made = ctx.storage.import_raw(volume, content, tags)
    ctx.store.resources.made(*intent)
    return made


def refused(error: Refused, where: str, *, secret: bool = False) -> InvalidSpec:
    """The error for what a server refused; ``where``: it was, in a word or two.

    The client prints the statement as well, which is not repeated: it may have a password.
    ``secret``: it has one, so what the server quotes of it is left out too.
    """
    return InvalidSpec(
        f"{where}: the server refused it", details=_message(str(error), secret=secret)
    )


def failed(error: CommandFailed, where: str) -> InvalidSpec:
    """The error of a statement that was executed directly, and refused."""
    return InvalidSpec(f"{where}: the server refused it", details=_message(error.stderr))


def _message(text: str, *, secret: bool = False) -> list[str]:
    """The server's words, without a number of a line, which is that of a file nobody has."""
    if found := _ERROR.findall(text):
        number, words = found[-1]
        if secret and (near := words.find(" near '")) >= 0:
            words = f"{words[:near]}; the statement has a password and is not shown"
        return [f"{number}{words}"]
    plain, is_statement = [], False
    for line in text.strip().splitlines():
        if line.startswith("----------"):
            is_statement = not is_statement
        elif not is_statement:
            plain.append(line)
    return plain[-5:]


def _plain(databases: Sequence[str]) -> Sequence[str]:
    """Return ``databases``; raises InvalidSpec for one with the name of an option."""
    if wrong := next((name for name in databases if name.startswith("-")), ""):
        raise InvalidSpec(
            f"the database {wrong[:64]!r} has the name of an option, and cannot be masked",
            hint="leave it out of the dump",
        )
    return databases


def _invalid() -> NotReady:
    return NotReady("the guest that loads the data sent an invalid answer")


def _table(row: Sequence[str]) -> TableFacts:
    database, name, engine, rows, size = (*row, "", "", "", "", "")[:5]
    counts = (int(text) if re.fullmatch(r"[0-9]{1,18}", text) else 0 for text in (rows, size))
    return TableFacts(database[:64], name[:64], engine[:64], *counts)

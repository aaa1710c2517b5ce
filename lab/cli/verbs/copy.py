"""``lab cp`` and ``lab dump``: files and data of nodes, through SSH."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, BinaryIO, cast

import typer

from lab.cli import complete, flags
from lab.cli.app import app_of, pick
from lab.cli.manual import manual
from lab.cli.terminal.child import run_child
from lab.cli.terminal.in_node import run_in_node
from lab.config.enginefile import family_of
from lab.datasets.scripts import Split
from lab.errors import CommandFailed, HostUnfit, InvalidSpec, LabError, NotFound, NotReady
from lab.lifecycle.nodes.ssh import scp_command
from lab.names import check_lab_name, parse_node
from lab.paths import remove_directory
from lab.run import environment, require
from lab.values import dataclass

if TYPE_CHECKING:
    from lab.views.labs import LabView, NodeView

_DAY = 86400.0
_IN_NODE = re.compile(r"(?P<lab>[a-z0-9-]+):(?:(?P<node>n?[0-9]+):)?(?P<path>/.*)", re.DOTALL)
_GLOB = re.compile(r"[\\*?\[\]]")
_STREAM = "-"

_WRITE = """\
[ ! -d "$1" ] || { printf '%s is a directory\\n' "$1" >&2; exit 1; }
exec cat >"$2"
"""
_PLACE = 'exec mv -f "$1" "$2"'
"""By a command of its own: to the first, the end of the data and of the connection are the same."""
_READ = """\
[ ! -d "$1" ] || {
    printf '%s is a directory: copy it to one, or use tar with `lab exec`\\n' "$1" >&2; exit 1
}
exec cat "$1"
"""

_DUMP = """\
set -eu
PATH=$PATH:/usr/sbin
dump=$1 own=$2
shift 2
if [ $# = 0 ]; then
    exec 3<<END
$(echo "SELECT schema_name FROM information_schema.schemata WHERE schema_name NOT IN \
('mysql', 'sys', 'information_schema', 'performance_schema') ORDER BY 1" | /usr/lib/lab/sql)
END
    while IFS= read -r name <&3; do [ -z "$name" ] || set -- "$@" "$name"; done
    exec 3<&-
    [ $# -gt 0 ] || { echo "the server has no database of users" >&2; exit 1; }
fi
case $(readlink -f "$(command -v "$dump" || :)" || :) in
*/mysqldump | */"$dump") ;;
*) # none, or that of another client, which the guest has besides
    echo "the build of this server has no $dump; add one that has it" >&2
    exit 1
    ;;
esac
exec "$dump" --no-defaults --socket=/run/mysqld/mysqld.sock --user=root ${own:+"$own"} --quick \
    --single-transaction --hex-blob --routines --events --triggers \
    --max-allowed-packet=1G --default-character-set=utf8mb4 --databases -- "$@"
"""
"""A shell's script: a program's dump, with one option of its own or an empty word, of the named
databases, or of all but the server's own."""


@dataclass(frozen=True)
class _Place:
    """A path in a node."""

    lab: str
    node: str
    path: str


@manual(
    "lab cp my.cnf shop:n2:/etc/mysql/conf.d/",
    "lab cp shop:n1:/var/log/mysql ./logs",
    "lab cp shop:n1:/var/lib/mysql/slow.log - | less",
    "zcat big.gz | lab cp - shop:n1:/root/big",
)
def cp(
    ctx: typer.Context,
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            autocompletion=complete.labs_and_files,
            help="A path here, LAB:NODE:/path, or - for stdin.",
        ),
    ],
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            autocompletion=complete.labs_and_files,
            help="The same; - is stdout. In a directory that exists, it gets the source's name.",
        ),
    ],
) -> int:
    """Copy a file or a directory to or from a node.

    It is read and written there as root. Modes and times are kept, links are followed.
    """
    app = app_of(ctx)
    places = (_place(source), _place(target))
    inside = [place for place in places if place is not None]
    if len(inside) != 1:
        raise InvalidSpec(
            "both paths are in nodes" if inside else "no path is in a node",
            hint="one of the two is LAB:NODE:/path, such as shop:n1:/etc/hosts"
            if not inside
            else "copy to a directory here first, or from one node to stdout, and on to the other",
        )
    [there] = inside
    if places[0] is None and source != _STREAM and not Path(source).exists():
        raise NotFound(f"there is no file {source}")
    with app.open() as session:
        opened = session.ssh(there.lab, there.node)
    with opened as way:
        if _STREAM in (source, target):

            def there_by(script: str, *words: str, stdin: bool = False) -> int:
                argv = ["sh", "-c", script, "sh", *words]
                return run_in_node(
                    way.argv, there.node, argv, app.interrupts,
                    stdin=stdin, timeout=_DAY, env=way.env,
                )  # fmt: skip

            if source == _STREAM:
                part = f"{there.path}.lab-cp-{secrets.token_hex(4)}"
                code = there_by(_WRITE, there.path, part, stdin=True) or there_by(
                    _PLACE, part, there.path
                )
            else:
                code = there_by(_READ, there.path)
            return CommandFailed.exit_code if code == 1 else code
        require("scp", package="openssh-client")
        login = way.argv[-1]
        if places[0] is not None:  # scp expands patterns in names of the other side
            words = [f"{login}:{_GLOB.sub(_escaped, there.path)}", _local(target)]
        else:
            words = [_local(source), f"{login}:{there.path}"]
        argv = scp_command(way.argv, *words)
        code = run_child(argv, app.interrupts, env=environment(way.env))
    return {0: 0, 1: CommandFailed.exit_code, 255: NotReady.exit_code}.get(code, code)


@manual(
    "lab dump shop --to shop.sql.gz",
    "lab dump shop --database crm --database mail > two.sql",
    "lab dump shop --to dumps/",
    "lab dump shop | lab sql other",
)
def dump(
    ctx: typer.Context,
    *,
    name: flags.Name = "",
    databases: Annotated[
        list[str] | None,
        typer.Option(
            "-D",
            "--database",
            metavar="NAME",
            show_default=False,
            help="Only this database; may be repeated. Default: all but the server's own.",
        ),
    ] = None,
    node: flags.Node = "",
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="FILE|DIR",
            show_default=False,
            help="A file instead of stdout, compressed if it ends in .gz, .bz2, .xz or .zst; or a"
            " new or empty directory (DIR/) for files of one database each.",
        ),
    ] = "",
) -> int:
    """Write a lab's data as SQL.

    `lab dataset create --from` and `lab sql` read it. The dump program of the node's server writes
    it, in one transaction: consistent for InnoDB. It has databases with their routines, events,
    triggers and views; accounts are not in it.
    """
    from lab.requests.labs import WakeLab

    app = app_of(ctx)
    wanted = databases or []
    for one in wanted:
        if not one or "\0" in one or "\n" in one:
            raise InvalidSpec(f"--database: {one!r} is not a name")
    with app.open() as session:
        lab = pick(session, name)
        view = session.lab(lab)
        if view.state == "asleep":
            view = session.run(WakeLab(lab=lab))
        where = flags.maybe_node(node) or _writer(view).name
        opened = session.ssh(lab, where)
    engine = next((one.engine for one in view.nodes if one.name == where), "") or view.engine
    program, own = (*family_of(engine).dump, "")[:2]
    argv = ["sh", "-c", _DUMP, "sh", program, own, *wanted]
    with opened as way, _opened(to) as sink:
        code = run_in_node(
            way.argv, where, argv, app.interrupts, stdin=False, timeout=_DAY, into=sink, env=way.env
        )
        if code:
            raise _Failed(where, code)
    return 0


class _Failed(LabError):
    """The dump program failed; it has said why on stderr."""

    def __init__(self, node: str, code: int) -> None:
        super().__init__(f"the dump of {node} is incomplete: its program ended with status {code}")
        self.exit_code = code if code > 128 else CommandFailed.exit_code  # type: ignore[misc]


def _place(text: str) -> _Place | None:
    """The path in a node that ``text`` is, None for one of this host; raises InvalidSpec."""
    found = _IN_NODE.fullmatch(text)
    if found is None:
        if re.match(r"[a-z0-9-]+:n?[0-9]+:", text):
            raise InvalidSpec(f"{text}: a path in a node begins with a slash")
        return None
    return _Place(check_lab_name(found["lab"]), parse_node(found["node"] or "n1"), found["path"])


def _local(path: str) -> str:
    """A path of this host as scp takes it: neither an option nor of another host."""
    return path if path.startswith("/") else f"./{path}"


def _escaped(found: re.Match[str]) -> str:
    return f"\\{found[0]}"


def _writer(lab: LabView) -> NodeView:
    """The node with a server that takes writes, or the first that runs; raises NotReady."""
    names = lab.endpoints.get("writers", lab.endpoints.get("rw", ()))
    servers = [node for node in lab.nodes if node.sql_port and "ro" not in node.services]
    running = [node for node in servers if node.state not in ("stopped", "paused")]
    first = next((node for node in running if node.name in names), None)
    if first is None and not running:
        raise NotReady(
            f"no node of {lab.name} with a server runs", hint=f"`lab start {lab.name}` starts it"
        )
    return first or running[0]


@contextmanager
def _opened(to: str) -> Iterator[IO[bytes] | None]:
    """The file, which appears when it is complete; None for stdout.

    A device or a pipe is written to as it is, and of a link the file that it names. What ends in
    a slash, or is a directory, is one of several files.
    """
    if not to:
        yield None
        return
    if to.endswith("/") or Path(to).is_dir():
        with _opened_directory(to) as split:
            yield cast("IO[bytes]", split)
        return
    given, path = Path(to), Path(os.path.realpath(to))
    beside = path.with_name(f".{path.name}.part-{secrets.token_hex(4)}")
    part = beside if given.is_file() or not given.exists() else given
    try:
        try:
            with _written(part, new=part is beside) as raw, _compressed(raw, given.suffix) as file:
                yield file
            if part is beside:
                part.replace(path)
        except OSError as error:
            raise LabError(f"{to} cannot be written: {error.strerror or error}") from None
    finally:
        beside.unlink(missing_ok=True)


@contextmanager
def _opened_directory(to: str) -> Iterator[Split]:
    """A new or empty directory, which has its files when all are complete."""
    path, part = Path(os.path.realpath(to)), f".part-{secrets.token_hex(4)}"
    is_there = path.is_dir()  # it keeps its owner and mode
    beside = path / part if is_there else path.with_name(f".{path.name}{part}")
    try:
        if is_there and next(path.iterdir(), None):
            raise InvalidSpec(f"{to} is not empty", hint="name a new directory")
        beside.mkdir()
        with closing(Split(lambda name: (beside / name).open("ab"))) as split:
            yield split
            split.complete()
        if is_there:
            for file in sorted(beside.iterdir()):
                file.replace(path / file.name)
        else:
            beside.replace(path)
    except OSError as error:
        raise LabError(f"{to} cannot be written: {error.strerror or error}") from None
    finally:
        remove_directory(beside)


def _written(path: Path, *, new: bool) -> BinaryIO:
    """A file that is written to; ``new``: one that nobody else made, nor leads elsewhere."""
    if not new:
        return path.open("wb")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags, 0o666), "wb")


def _compressed(file: BinaryIO, suffix: str) -> Any:
    """Open ``file`` for bytes that are compressed as ``suffix`` says."""
    if suffix == ".gz":
        import gzip

        return gzip.open(file, "wb", compresslevel=6)
    if suffix == ".bz2":
        import bz2

        return bz2.open(file, "wb")
    if suffix == ".xz":
        import lzma

        return lzma.open(file, "wb", preset=1)
    if suffix == ".zst":
        try:
            import zstandard
        except ImportError:
            raise HostUnfit(
                "the package zstandard, which writes .zst files, is not installed",
                hint="--to a file that ends in .gz or .xz",
            ) from None
        return zstandard.open(file, "wb")
    return nullcontext(file)

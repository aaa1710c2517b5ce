"""Every on-disk name of the program.

::

    <home>/                      0711, so that QEMU's own user can reach the files it is given
      state.db                   0600, holds the labs' passwords
      reserve                    0600, space that is given up when the disk is full
      ca.pem, ca.key             the authority of servers' certificates; the key 0600
      fleet/                     0700: id, host.key, host.crt and authority.crt of a fleet's host
      locks/<kind>.<name>.lock   0700
      storage/                   volumes of the file-backed driver
      images/<key>/              kernel, initrd and manifest of an image
      engines/<name>/            an added build: build.json, and the build as build.tar.gz
      templates/<key>/           the files of its capture: manifest.json, and per node <node>.seed,
                                 <node>.ram and <node>.state
      labs/<name>/               <node>.seed, private/ (0700), rollback during a rollback, and
                                 standby.log, what the making of the last standby printed
      labs/<name>/captures/<label>/    the files of a snapshot: manifest.json, and <node>.state with
                                       what differs from the template's RAM, or <node>.ram with all
      builds/<key>/              what is being made; nothing in it is ever used
      imports/<kind>.<key>/      0700, what arrives from elsewhere, until all of it is there
      uploads/<token>/<id>/      0700, dumps that clients of the service sent, until they are loaded
      logs/console/<guest>.log
      logs/images/<key>.log
      logs/ahead.log             what the making of the last labs ahead printed
      ahead.json                 0600, the lab of which more are made ahead
      bundles/                   0700, what was known of labs that failed, the latest ones
      reachable.json             which recipes' repositories answered, and when
      failures.json              which recipes failed within the last day
      run/                       sockets; 0700 unless root's
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import shlex
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from lab.errors import ROOM_RETRY, HostUnfit, InvalidSpec
from lab.names import CaptureRef, Owner
from lab.values import dataclass

if TYPE_CHECKING:
    from typing_extensions import Buffer

REACHABLE = 0o711
"""Mode of directories below which QEMU's user opens files."""
MANIFEST = "manifest.json"
"""The file of a capture that says what belongs to it."""
PRIVATE = 0o700
"""Mode of directories that hold secrets."""
_RENAME = "set LAB_HOME to another path"
_REFUSED = {'"': "apt", "?": "e2fsck"}
"""Characters that programs which build images cannot have in a path, with the first of these."""
_SOCKET_LIMIT = 107
"""Bytes of a unix socket's path on Linux (unix(7): sun_path, with its zero)."""
_SOCKET_NAME = 18
"""Bytes of the longest name of ours below the directory of sockets."""
HOME_LIMIT = _SOCKET_LIMIT - len("/run/") - _SOCKET_NAME
"""Bytes of the path of a home where guests have sockets."""
RESERVE = 2 << 20
"""Bytes that are kept for the record's journal, so that labs can be removed on a full disk."""
_LEAST = 256 << 10
"""Free bytes below which the reserve is given up: what one command may add to the journal."""
_FULL = (errno.ENOSPC, errno.EDQUOT)

_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class Home:
    """The directory that holds all that the program keeps. ``root`` is made absolute.

    The methods that take a name raise InvalidSpec if it could lead out of the home.
    """

    root: Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "root", self.root.expanduser().absolute())

    @property
    def id(self) -> str:
        """8 hex characters made from the root's real path: the ``home`` tag of what we own.

        It depends on nothing else, so it survives the loss of the state file.
        """
        from hashlib import sha256

        return sha256(os.fsencode(self.root.resolve())).hexdigest()[:8]

    @property
    def database(self) -> Path:
        """The state file."""
        return self.root / "state.db"

    @property
    def jobs_database(self) -> Path:
        """The database of the service's jobs, unless the setting ``database`` names another."""
        return self.root / "jobs.db"

    @property
    def admin_token(self) -> Path:
        """The token that the service's first start makes; only the user can read it."""
        return self.root / "admin-token"

    @property
    def ca(self) -> Path:
        """The certificate of the authority that signs those of servers; for everybody."""
        return self.root / "ca.pem"

    @property
    def ca_key(self) -> Path:
        """The key of that authority; only the user can read it."""
        return self.root / "ca.key"

    @property
    def bundles(self) -> Path:
        """Where bundles of labs that failed are kept."""
        return self.root / "bundles"

    @property
    def fleet(self) -> Path:
        """What this host has as a host of a fleet: its id, its key and certificates; 0700."""
        return self.root / "fleet"

    @property
    def locks(self) -> Path:
        """Where lock files are."""
        return self.root / "locks"

    @property
    def storage(self) -> Path:
        """The root of the storage drivers that keep volumes as files."""
        return self.root / "storage"

    @property
    def sockets(self) -> Path:
        """Where sockets are; the path is short because a socket's path must be (107 bytes)."""
        return self.root / "run"

    @property
    def templates(self) -> Path:
        """Where the templates' directories are."""
        return self.root / "templates"

    @property
    def labs(self) -> Path:
        """Where the labs' directories are."""
        return self.root / "labs"

    @property
    def engines(self) -> Path:
        """Where the builds of servers are that were added."""
        return self.root / "engines"

    @property
    def builds(self) -> Path:
        """Where things are made before they are moved to their place."""
        return self.root / "builds"

    @property
    def imports(self) -> Path:
        """Where what arrives from elsewhere gathers."""
        return self.root / "imports"

    @property
    def uploads(self) -> Path:
        """Where dumps are that clients of the service sent."""
        return self.root / "uploads"

    def upload(self, token: str, identity: str) -> Path:
        """The directory of a dump that was sent with a token."""
        return self.uploads / _part(token) / _part(identity)

    def uploaded(self, token: str) -> int:
        """Bytes of the dumps that were sent with a token, whole or in part."""
        size = 0
        for path in entries(self.uploads / _part(token), 2):
            with contextlib.suppress(FileNotFoundError):  # loaded by now
                size += path.stat().st_size
        return size

    def lock(self, kind: str, name: str) -> Path:
        """The lock file of a lab, template, image or snapshot."""
        return self.locks / f"{_part(kind)}.{_part(name)}.lock"

    def directory(self, of: Owner | CaptureRef) -> Path:
        """The directory of a lab, a template, an image or a capture.

        A template is one capture and has its files; a lab may have several captures.
        """
        owner = of.owner if isinstance(of, CaptureRef) else of
        path = self.root / f"{owner.kind}s" / _part(owner.name)
        if isinstance(of, CaptureRef) and owner.kind != "template":
            return path / "captures" / _part(of.label)
        return path

    def lab(self, name: str) -> Path:
        """The directory of a lab."""
        return self.directory(Owner("lab", name))

    def standby_log(self, lab: str) -> Path:
        """What the process that makes the next standby of a lab prints."""
        return self.lab(lab) / "standby.log"

    @property
    def ahead(self) -> Path:
        """What the labs are to be that are made ahead."""
        return self.root / "ahead.json"

    @property
    def ahead_log(self) -> Path:
        """What the process that makes labs ahead prints."""
        return self.root / "logs" / "ahead.log"

    def capture_directories(self, lab: str) -> list[Path]:
        """The directories of captures of a lab, also of incomplete ones."""
        return entries(self.directory(CaptureRef(Owner("lab", lab), MANIFEST)).parent)

    def captures(self, lab: str) -> list[str]:
        """The labels of captures of a lab that have a manifest; that of its origin has none."""
        return [one.name for one in self.capture_directories(lab) if (one / MANIFEST).exists()]

    def captured(self, lab: str) -> list[Path]:
        """The files of all captures of a lab."""
        return [path for one in self.capture_directories(lab) for path in entries(one)]

    def template(self, key: str) -> Path:
        """The directory of a template."""
        return self.directory(Owner("template", key))

    def image(self, key: str) -> Path:
        """The directory of an image's files (its disk is a volume)."""
        return self.directory(Owner("image", key))

    def seed(self, of: Owner | CaptureRef, node: str, image: str = "") -> Path:
        """The small disk from which a node reads its configuration at boot.

        ``image``: of a node whose system was replaced by that of another image, its key.
        """
        name = f"{_part(node)}@{_part(image)}" if image else _part(node)
        return self.directory(of) / f"{name}.seed"

    def private(self, owner: Owner) -> Path:
        """The directory of an owner's secrets, such as keys."""
        return self.directory(owner) / "private"

    def ram(self, capture: CaptureRef, node: str) -> Path:
        """The RAM image of a captured node."""
        return self.directory(capture) / f"{_part(node)}.ram"

    def device_state(self, capture: CaptureRef, node: str) -> Path:
        """The device state that goes with ``ram``."""
        return self.directory(capture) / f"{_part(node)}.state"

    def manifest(self, capture: CaptureRef) -> Path:
        """What a capture consists of, enough to use it when the state file is lost."""
        return self.directory(capture) / MANIFEST

    def build(self, key: str) -> Path:
        """The directory in which the thing with this key is made."""
        return self.builds / _part(key)

    def console_log(self, guest: str) -> Path:
        """What a guest wrote to its console."""
        return self.root / "logs" / "console" / f"{_part(guest)}.log"

    def console_logs(self, guest: str) -> list[Path]:
        """What there is of that: the log, and its older parts, to which virtlogd gives numbers."""
        log = self.console_log(guest)
        return [log, *log.parent.glob(f"{log.name}.[0-9]*")]

    def image_log(self, key: str) -> Path:
        """What the build of an image wrote."""
        return self.root / "logs" / "images" / f"{_part(key)}.log"

    def create(self) -> None:
        """Make all directories that are missing; raises HostUnfit.

        The mode of a directory that exists stays: it may be the user's choice.
        """
        self.check_name()
        make_directory(self.root, REACHABLE)
        make_directory(self.locks, PRIVATE)
        make_directory(self.imports, PRIVATE)
        make_directory(self.uploads, PRIVATE)
        for path in (
            self.storage,
            self.root / "images",
            self.templates,
            self.labs,
            self.builds,
            self.root / "logs",
            self.console_log("x").parent,
            self.image_log("x").parent,
        ):
            make_directory(path, REACHABLE)
        # Guests of an ordinary user run as that user; who reaches an agent's socket is root there.
        make_directory(self.sockets, PRIVATE if os.geteuid() else REACHABLE)
        self._keep_reserve()

    def check_name(self) -> None:
        """Raise HostUnfit if the path has characters that XML, terminals or tools cannot have."""
        try:
            text = os.fsencode(self.root).decode()
        except UnicodeDecodeError:
            raise HostUnfit(
                f"the path of the home is not UTF-8: {str(self.root)!a}", hint=_RENAME
            ) from None
        if wrong := next((one for one in text if not one.isprintable()), ""):
            raise HostUnfit(
                f"the path of the home has the character {wrong!a}: {text!a}", hint=_RENAME
            )
        if wrong := next((one for one in text if one in _REFUSED), ""):
            raise HostUnfit(
                f"the path of the home has the character {wrong}, which {_REFUSED[wrong]} cannot"
                f" have in a path: {text}",
                hint=_RENAME,
            )

    @property
    def size(self) -> int:
        """Bytes of its path."""
        return len(os.fsencode(self.root))

    def check_sockets(self) -> None:
        """Raise HostUnfit if the path is too long for sockets below it."""
        if self.size > HOME_LIMIT:
            raise HostUnfit(
                f"the path of the home has {self.size} bytes, {HOME_LIMIT} is the limit: the paths"
                " of sockets"
                f" below it have {_SOCKET_LIMIT} at most",
                hint="set LAB_HOME to a shorter path",
            )

    @property
    def full(self) -> bool:
        """Whether there is not even space for the record's journal."""
        return self._free(otherwise=_LEAST) < _LEAST

    def release_reserve(self) -> None:
        """Remove the reserve if the disk is full, so that removals can be recorded.

        The next command that finds space creates it again.
        """
        if self.full:
            with contextlib.suppress(OSError):
                (self.root / "reserve").unlink()

    def _free(self, *, otherwise: int) -> int:
        """Bytes that are free for us where the home is; ``otherwise`` if there is none yet."""
        try:
            status = os.statvfs(self.root)
        except OSError:
            return otherwise
        return status.f_bavail * status.f_frsize

    def _keep_reserve(self) -> None:
        path = self.root / "reserve"
        if path.exists() or self._free(otherwise=0) < 8 * RESERVE:
            return
        # Random, as file systems that compress would keep nothing for zeros.
        with contextlib.suppress(OSError):
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(fd, "wb") as file:
                file.write(os.urandom(RESERVE))

    def create_directory(self, owner: Owner) -> Path:
        """Make the directory of an owner and its private one; raises HostUnfit."""
        self.create()
        path = make_directory(self.directory(owner), REACHABLE)
        make_directory(self.private(owner), PRIVATE)
        return path


def from_user(text: str) -> Path:
    """A path that a user gave, which may begin with ``~`` or ``~USER``; raises InvalidSpec."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        name = text.partition("/")[0].removeprefix("~")
        raise InvalidSpec(
            f"{text!r} begins with the home of a user that is not known, {name!r}",
            hint="write the whole path; `./~...` is a file of that name",
        ) from None


def default_root(env: Mapping[str, str] | None = None) -> Path:
    """Where the home is unless something else is said, for the user we run as."""
    env = os.environ if env is None else env
    if os.geteuid() == 0:
        return Path("/var/lib/lab")
    data = env.get("XDG_DATA_HOME", "")
    # The XDG specification says to ignore a relative path.
    base = Path(data) if data.startswith("/") else Path("~/.local/share").expanduser()
    return base / "lab"


def make_directory(path: Path, mode: int) -> Path:
    """Make ``path`` with exactly ``mode`` whatever the umask; fine if it is there, and ours.

    Parents that are missing are made too. Raises HostUnfit, also if the directory, or a link in
    its place, belongs to another user than us or root, or all users can write to it: they could
    lead elsewhere what is written.
    """
    try:
        if not path.is_dir():
            path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                path.mkdir(mode)
                path.chmod(mode)
            if not path.is_dir():
                raise HostUnfit(
                    f"{path} is not a directory",
                    hint="move it, or set LAB_HOME to another place",
                )
        for found in (path.lstat(), path.stat()):
            if found.st_uid not in (0, os.geteuid()):
                raise HostUnfit(
                    f"{path} belongs to another user (uid {found.st_uid}), who could lead elsewhere"
                    " what is written there",
                    hint="become that user, set LAB_HOME to a directory of your own, or chown it",
                )
        if path.stat().st_mode & stat.S_IWOTH:
            raise HostUnfit(
                f"all users can write to {path}: what is there may not be ours",
                hint=f"`chmod o-w {shlex.quote(str(path))}`, or set LAB_HOME to a new directory",
            )
    except OSError as error:
        raise unwritable(path, error) from error
    return path


def entries(folder: Path, depth: int = 1) -> list[Path]:
    """What is ``depth`` levels below ``folder``, sorted; without what others removed meanwhile.

    Nothing if the folder itself is absent.
    """
    # pathlib's glob raises for a directory that vanishes before it is opened, until Python 3.13.
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        found = sorted(folder.iterdir())
        return found if depth == 1 else [each for one in found for each in entries(one, depth - 1)]
    return []


def remove_directory(directory: Path) -> None:
    """Remove a directory with all that is in it; fine if others do so, or did, as well."""
    import shutil

    while os.path.lexists(directory):
        with contextlib.suppress(FileNotFoundError):  # of one entry: others may be left
            shutil.rmtree(directory)


def unwritable(path: Path, error: OSError) -> HostUnfit:
    """The error for ``path`` in the home, which could not be written because of ``error``.

    That may be about another file, such as one that was to be copied: the message names it.
    """
    reason = error.strerror or str(error)
    named = Path(os.fsdecode(error.filename)) if isinstance(error.filename, str | bytes) else path
    other = not _is_part(named, path)
    if is_full(error):
        return no_space(named if other else path)
    return HostUnfit(
        f"{path} cannot be written: {f'{named}: ' if other else ''}{reason}",
        hint="set LAB_HOME to a directory you may write to, or become its owner",
    )


def _is_part(named: Path, path: Path) -> bool:
    """Whether an error about ``named`` is one about ``path``: its draft, its folder, its content.

    A name without a directory is one that is removed with its directory.
    """
    if path in (named, *named.parents) or named in path.parents or not named.is_absolute():
        return True
    return named.parent == path.parent and named.name.startswith(f"{path.name}.")


def is_full(error: OSError) -> bool:
    """Whether the system refused to write as there is no space, or no quota, left."""
    return error.errno in _FULL


def no_space(path: Path) -> HostUnfit:
    """The error for a ``path`` on a full file system, with the mount point of that."""
    return HostUnfit(
        f"{path} cannot be written: no space is left on the file system at {mount_point(path)}",
        hint="free some space there: `lab gc` removes leftovers, `lab down` a lab",
        retry_after=ROOM_RETRY,
    )


def mount_point(path: Path) -> Path:
    """Where the file system that ``path`` is on, or would be, is mounted."""
    found = path.absolute()
    while not found.exists() or not (found.is_mount() or found == found.parent):
        found = found.parent
    return found


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """For a block that writes ``path``: raises HostUnfit where the system refuses that.

    Nothing else belongs into it: another thing's OSError would be reported as this file's. A file
    that is written while something else is read, counted or run is a ``new_file``.
    """
    try:
        yield
    except OSError as error:
        raise unwritable(path, error) from error


def new_file(path: Path) -> io.BufferedWriter:
    """The new file ``path``, ours alone; what it does raises HostUnfit if the system refuses it."""
    return io.BufferedWriter(_NewFile(path))


class _NewFile(io.FileIO):
    def __init__(self, path: Path) -> None:
        self._path = path
        with writing(path):
            super().__init__(path, "xb", opener=_open_privately)

    def write(self, data: Buffer, /) -> int:
        with writing(self._path):
            return super().write(data)

    def truncate(self, size: int | None = None, /) -> int:
        with writing(self._path):
            return super().truncate(size)


def _open_privately(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


_AT_CWD, _EXCHANGE = -100, 2  # linux/fcntl.h, linux/fs.h


def exchange(one: Path, other: Path) -> bool:
    """Give each of two directories the place of the other, at one moment; False: not possible here.

    Only Linux can, and not with all file systems: OpenZFS from 2.2 on, NFS never. Raises OSError.
    """
    import ctypes

    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    paths = os.fsencode(one), os.fsencode(other)
    if rename(_AT_CWD, paths[0], _AT_CWD, paths[1], ctypes.c_uint(_EXCHANGE)) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
        return False
    raise OSError(number, os.strerror(number), str(other))


def sync(*paths: Path) -> None:
    """Wait until each file or directory is on stable storage."""
    for path in paths:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _part(name: str) -> str:
    if not _PART.fullmatch(name):
        raise InvalidSpec(f"{name!r} cannot be part of a file's name")
    return name

"""The one door to other programs: argv lists, a deadline, and errors that tell."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from lab.errors import CommandFailed, HostUnfit, NoProgram
from lab.locks import flock
from lab.values import dataclass
from lab.wait import Deadline

_PIPE = 1 << 16
_GRACE = 5.0
LONGEST_LINE = 1 << 16
"""Bytes of a line of a log that are kept together: a guest decides whether it ever ends."""

_SYSTEM = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
"""Directories of programs. Debian leaves some out of the PATH of ordinary users (sgdisk)."""

_UMASK = 0o022
"""Of programs of ours: their files are for whom their directory is for, whatever the caller's."""

_LOCALE = ("LC_", "LANG")
_OPTIONS = frozenset({
    "BASH_ENV", "BZIP", "BZIP2", "CDPATH", "ENV", "GREP_OPTIONS", "GZIP", "POSIXLY_CORRECT",
    "TAR_OPTIONS", "XZ_DEFAULTS", "XZ_OPT", "ZIPOPT",
})  # fmt: skip
"""Variables with options of programs."""


@dataclass(frozen=True)
class Completed:
    """What a command printed. Both texts are decoded as UTF-8, bad bytes replaced."""

    stdout: str
    stderr: str


def run(
    argv: Sequence[str | os.PathLike[str]],
    *,
    timeout: float,
    stdin: bytes = b"",
    log: IO[bytes] | None = None,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    keep: Sequence[int] = (),
    most: int | None = None,
    hint: str = "",
) -> Completed:
    """Run ``argv`` to its end and return what it printed.

    ``log`` receives both streams instead, as they come. ``keep``: open files that the
    command inherits, so that locks on them last as long as it runs, even if we are killed.
    ``most``: bytes that it may print on each stream, without ``log`` and ``stdin``: a stranger's
    program may never end printing. The command starts in a session of its own and is killed with
    all of its children after ``timeout`` seconds, if it prints more than ``most``, or when we are
    interrupted, so that it never outlives its caller's decision.

    Raises HostUnfit if the program is not installed, CommandFailed if it exits non-zero, runs into
    the deadline or prints more than it may.
    """
    command = [os.fspath(arg) for arg in argv]
    require(command[0])
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=log if log is not None else subprocess.PIPE,
        stderr=subprocess.STDOUT if log is not None else subprocess.PIPE,
        cwd=cwd,
        env=environment(env),
        pass_fds=keep,
        start_new_session=True,
        umask=_UMASK,
    )
    try:
        if most is None:
            out, err = process.communicate(stdin, timeout=timeout)
        else:
            out, err = _bounded(process, most, timeout)
    except subprocess.TimeoutExpired:
        _kill_session(process)
        raise CommandFailed(
            command, -9, stderr=f"timed out after {timeout:g} s", hint=hint
        ) from None
    except BaseException:
        _kill_session(process)
        raise
    stdout = (out or b"").decode(errors="replace")
    stderr = (err or b"").decode(errors="replace")
    if (status := process.returncode) != 0:
        raise CommandFailed(command, status, stderr=stderr or stdout, stdout=stdout, hint=hint)
    return Completed(stdout, stderr)


def start(
    argv: Sequence[str | os.PathLike[str]], *, log: Path, cwd: Path, env: Mapping[str, str]
) -> int:
    """Start a program that outlives us, in a session of its own; its process id.

    It reads nothing, and writes to ``log``, which is replaced; ``runs`` says whether it still does.
    It must have a limit of its own. ``env``: variables besides the usual. Raises HostUnfit if it or
    its log cannot be started.
    """
    command = [os.fspath(arg) for arg in argv]
    require(command[0])
    # Nobody waits for it: it is left to process 1, or reaped when the next one is started.
    _started[:] = [one for one in _started if one.poll() is None]
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(log, flags, 0o600), "wb") as file:
            flock.take(file.fileno(), shared=True)  # its own as well, for as long as it runs
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                cwd=cwd,
                env={**inherited(), **env},
                start_new_session=True,
                umask=_UMASK,
            )
    except OSError as error:
        raise HostUnfit(f"{command[0]} cannot be started: {error}") from error
    _started.append(process)
    return process.pid


def runs(log: Path) -> bool:
    """Whether a program that ``start`` started with that log still runs, also of another process.

    Raises HostUnfit if that cannot be found out.
    """
    try:
        handle = os.open(log, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise HostUnfit(f"{log} cannot be opened: {error.strerror}") from error
    try:
        return not flock.try_take(handle)
    finally:
        os.close(handle)


_started: list[subprocess.Popen[bytes]] = []
"""What ``start`` started and has not reaped yet."""


def _bounded(process: subprocess.Popen[bytes], most: int, timeout: float) -> tuple[bytes, bytes]:
    """All output of a program; raises CommandFailed once a stream has more than ``most`` bytes."""
    if process.stdin is None or process.stdout is None or process.stderr is None:
        raise AssertionError
    process.stdin.close()
    deadline = Deadline.after(timeout)
    output = {process.stdout: b"", process.stderr: b""}
    waiting = select.poll()
    open_pipes = {pipe.fileno(): pipe for pipe in output}
    for handle in open_pipes:
        waiting.register(handle, select.POLLIN)
    while open_pipes:
        ready = waiting.poll(max(0.0, deadline.left) * 1000)
        if not ready:
            raise subprocess.TimeoutExpired(process.args, timeout)
        for handle, _ in ready:
            pipe = open_pipes[handle]
            more = os.read(handle, most + 1)
            output[pipe] += more
            if len(output[pipe]) > most:
                _kill_session(process)
                argv = process.args if isinstance(process.args, list) else []
                raise CommandFailed(argv, -9, stderr=f"it printed more than {most} bytes")
            if not more:
                waiting.unregister(handle)
                del open_pipes[handle]
    process.wait(max(0.0, deadline.left))
    process.stdout.close()
    process.stderr.close()
    return output[process.stdout], output[process.stderr]


def lines(argv: Sequence[str], *, idle: float) -> Generator[str | None]:
    """The lines that ``argv`` prints to stdout, as they come, until it ends or we close it.

    None whenever no line came to its end for ``idle`` seconds: who reads them can end then. Lines
    are cut after ``LONGEST_LINE`` bytes. Raises HostUnfit if the program is not installed,
    CommandFailed if it exits non-zero.
    """
    require(argv[0])
    process = subprocess.Popen(
        list(argv),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment(),
        start_new_session=True,
        umask=_UMASK,
    )
    try:
        if process.stdout is None:
            raise AssertionError
        source, rest = process.stdout.fileno(), b""
        silent = Deadline.after(idle)
        while True:
            if silent.passed:
                yield None
                silent = Deadline.after(idle)
            if not _ready(source, select.POLLIN, silent.left):
                continue
            more = os.read(source, _PIPE)
            whole, rest = _pieces(rest + more, last=not more)
            for line in whole:
                yield line.decode(errors="replace")
                silent = Deadline.after(idle)
            if not more:
                break
        if process.wait() != 0:
            raise CommandFailed(list(argv), process.returncode)
    finally:
        _kill_session(process)


def _pieces(data: bytes, *, last: bool) -> tuple[list[bytes], bytes]:
    """The lines of ``data``, cut where they are too long, and what has no end yet."""
    *lines, rest = data.split(b"\n")
    starts = [(line, at) for line in lines for at in range(0, max(1, len(line)), LONGEST_LINE)]
    pieces = [line[at : at + LONGEST_LINE] for line, at in starts]
    while len(rest) > LONGEST_LINE:
        pieces.append(rest[:LONGEST_LINE])
        rest = rest[LONGEST_LINE:]
    return ([*pieces, rest], b"") if last and rest else (pieces, rest)


def output(
    argv: Sequence[str],
    *,
    stall: float,
    chunk: int,
    env: Mapping[str, str] | None = None,
    stdin: int = subprocess.DEVNULL,
    fenced: bool = False,
) -> Iterator[bytes]:
    """What ``argv`` writes to stdout, in pieces of ``chunk`` bytes (the last may be shorter).

    It is killed when the iterator is closed, or when no output for ``stall`` seconds.
    ``stdin``: an open file. ``fenced``: as the user of ``fence``.
    Raises HostUnfit if the program is not installed, CommandFailed as ``run`` does.
    """
    with _piped(argv, env, stdin=stdin, stdout=subprocess.PIPE, fenced=fenced) as process:
        if process.stdout is None:
            raise AssertionError
        source = process.stdout.fileno()
        piece = b""
        while True:
            if not _ready(source, select.POLLIN, stall):
                raise CommandFailed(argv, -9, stderr=f"no output for {stall:g} s")
            more = os.read(source, chunk - len(piece))
            piece += more
            if piece and (not more or len(piece) == chunk):
                yield piece
                piece = b""
            if not more:
                return


def feed(
    argv: Sequence[str],
    source: Iterable[bytes],
    *,
    stall: float,
    env: Mapping[str, str] | None = None,
    keep: Sequence[int] = (),
) -> None:
    """Run ``argv`` with the pieces of ``source`` as its stdin, to its end.

    It is killed when ``source`` raises, or when it took nothing for ``stall`` seconds. If it
    ends early, the rest of ``source`` is still read: what is wrong there is reported first.
    ``keep`` as in ``run``. Raises what ``source`` raises, HostUnfit and CommandFailed as
    ``run`` does.
    """
    with _piped(argv, env, stdin=subprocess.PIPE, keep=keep) as process:
        if process.stdin is None:
            raise AssertionError
        sink = process.stdin.fileno()
        os.set_blocking(sink, False)
        taking = True
        for piece in source:
            left = piece
            while left and taking:
                if not _ready(sink, select.POLLOUT, stall):
                    raise CommandFailed(argv, -9, stderr=f"it read no input for {stall:g} s")
                try:
                    left = left[os.write(sink, left[:_PIPE]) :]
                except BlockingIOError:
                    continue
                except BrokenPipeError:
                    taking = False
        process.stdin.close()
        try:
            process.wait(stall)
        except subprocess.TimeoutExpired:
            raise CommandFailed(argv, -9, stderr=f"it did not end for {stall:g} s") from None


class Conversation:
    """A running program that is written to and answers in lines; see ``conversation``."""

    def __init__(
        self, argv: Sequence[str], process: subprocess.Popen[bytes], errors: IO[bytes], stall: float
    ) -> None:
        if process.stdin is None or process.stdout is None:
            raise AssertionError
        self._argv = argv
        self._process = process
        self._errors = errors
        self._stall = stall
        self._to, self._from = process.stdin, process.stdout
        os.set_blocking(self._to.fileno(), False)

    def write(self, data: bytes) -> int:
        """Give ``data`` to the program; raises CommandFailed if it takes no more."""
        left = data
        while left:
            if not _ready(self._to.fileno(), select.POLLOUT, self._stall):
                raise CommandFailed(
                    self._argv, -9, stderr=f"it read no input for {self._stall:g} s"
                )
            try:
                left = left[os.write(self._to.fileno(), left[:_PIPE]) :]
            except BlockingIOError:
                continue
            except BrokenPipeError:
                raise self.ended() from None
        return len(data)

    def flush(self) -> None:
        """Nothing is ever held back."""

    def close(self) -> None:
        """Tell the program that nothing more comes."""
        self._to.close()

    def line(self, limit: int) -> bytes:
        """The next line, of at most ``limit`` bytes; raises CommandFailed if none comes."""
        found = b""
        while not found.endswith(b"\n") and len(found) < limit:
            if not _ready(self._from.fileno(), select.POLLIN, self._stall):
                raise CommandFailed(self._argv, -9, stderr=f"no answer for {self._stall:g} s")
            more = os.read(self._from.fileno(), 1)
            if not more:
                raise self.ended()
            found += more
        return found

    def ended(self) -> CommandFailed:
        """The error of a program that ended early."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_GRACE)
        self._errors.seek(0)
        status = self._process.poll()
        stderr = self._errors.read().decode(errors="replace")
        return CommandFailed(self._argv, -9 if status is None else status, stderr=stderr)


@contextlib.contextmanager
def conversation(argv: Sequence[str], *, stall: float) -> Iterator[Conversation]:
    """Run ``argv`` and talk to it; it is ended with the block.

    ``stall``: seconds that it may take nothing, or say nothing when it is asked. Raises
    HostUnfit if the program is not installed.
    """
    import tempfile

    require(argv[0])
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            list(argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment(),
            start_new_session=True,
            umask=_UMASK,
        )
        try:
            talk = Conversation(argv, process, errors, stall)
            yield talk
            talk.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE)
        finally:
            _kill_session(process)


_LOOK = 0.2
"""Seconds without output after which it is looked whether a program has ended."""
_TO_END = 10.0
"""Seconds that a program has to end after SIGTERM, before it is killed."""


@dataclass(frozen=True)
class Ended:
    """How a program ended that ran beside us."""

    code: int
    """128 + n if signal n ended it."""
    by_itself: bool
    """Whether it ended before it was asked to."""
    seconds: float
    """How long it ran."""
    lines: tuple[str, ...]
    """The last lines that it printed, on either stream."""


class Beside:
    """A program that runs beside us; see ``beside``."""

    def __init__(self, process: subprocess.Popen[bytes], lines: int) -> None:
        self._process = process
        self._began = time.monotonic()
        self._ended_at: float | None = None
        self._killed = threading.Event()
        self._lines: deque[str] = deque(maxlen=lines)
        self._reader = threading.Thread(target=self._read, name="beside", daemon=True)
        self._reader.start()

    @property
    def over(self) -> bool:
        """Whether it was seen to have ended."""
        return self._ended_at is not None

    def end(self) -> Ended:
        """End it with all of its children, by SIGTERM and some time later by SIGKILL."""
        by_itself = self._has_ended()
        try:
            self._signal(signal.SIGTERM)
            self._reader.join(_TO_END)
        finally:
            # Its number is not that of another program: it is waited for after this.
            self._signal(signal.SIGKILL)
            self._killed.set()
            self._reader.join(_GRACE)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_GRACE)
        status = self._process.returncode
        code = -signal.SIGKILL if status is None else status
        ended_at = self._ended_at or time.monotonic()
        return Ended(
            128 - code if code < 0 else code, by_itself, ended_at - self._began, tuple(self._lines)
        )

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _has_ended(self, how: int = os.WNOHANG) -> bool:
        """Whether it has ended; its number stays its own until it is waited for."""
        return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT | how) is not None

    def _read(self) -> None:
        """Keep the last lines, until it and its children have ended."""
        if self._process.stdout is None:
            raise AssertionError
        with self._process.stdout as pipe:
            rest = b""
            while not self._killed.is_set():
                if self._ended_at is None and self._has_ended():
                    self._ended_at = time.monotonic()
                if not _ready(pipe.fileno(), select.POLLIN, _LOOK):
                    continue
                more = os.read(pipe.fileno(), _PIPE)
                whole, rest = _pieces(rest + more, last=not more)
                self._lines.extend(line.decode(errors="replace") for line in whole)
                if not more:
                    break
            if rest:
                self._lines.append(rest.decode(errors="replace"))
        while self._ended_at is None and not self._killed.wait(_LOOK):
            if self._has_ended():
                self._ended_at = time.monotonic()


def beside(argv: Sequence[str], *, env: Mapping[str, str], lines: int) -> Beside:
    """Start a program of the user's that runs beside us until it is asked to end.

    It has nothing to read, a session of its own and the environment ``env``; ``lines``: how many of
    the last ones that it prints are kept. Raises NoProgram.
    """
    try:
        process = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=dict(env),
            start_new_session=True,
        )
    except OSError as error:
        raise NoProgram(f"cannot run {argv[0]!r}: {error.strerror}") from None
    try:
        return Beside(process, lines)
    except BaseException:  # an interrupt: nobody else knows of it
        _kill_session(process)
        raise


@contextlib.contextmanager
def on_terminal(argv: Sequence[str]) -> Iterator[int]:
    """Run ``argv`` on a raw terminal of its own, ended with the block; gives our end of that.

    Raises HostUnfit if the program is not installed.
    """
    import pty
    import tty

    require(argv[0])
    ours, its = (os.fdopen(end, "r+b", buffering=0) for end in pty.openpty())
    with ours:
        with its as end:
            tty.setraw(end.fileno())
            process = subprocess.Popen(
                argv,
                0,
                None,
                end,
                end,
                end,
                env=environment(),
                start_new_session=True,
                umask=_UMASK,
            )
        try:
            yield ours.fileno()
        finally:
            _kill_session(process)


@contextlib.contextmanager
def _piped(
    argv: Sequence[str],
    env: Mapping[str, str] | None,
    *,
    stdin: int = subprocess.DEVNULL,
    stdout: int = subprocess.DEVNULL,
    keep: Sequence[int] = (),
    fenced: bool = False,
) -> Iterator[subprocess.Popen[bytes]]:
    """A running command whose end is awaited, and checked if the block ends well."""
    import tempfile

    require(argv[0])
    user = fence() if fenced else None
    # a file: nobody has time to empty a pipe
    with tempfile.TemporaryFile() as talk:
        try:
            process = subprocess.Popen(
                list(argv),
                stdin=stdin,
                stdout=stdout,
                stderr=talk,
                env=environment(env),
                pass_fds=keep,
                start_new_session=True,
                umask=_UMASK,
                cwd=None if user is None else "/",
                user=None if user is None else user[0],
                group=None if user is None else user[1],
                extra_groups=None if user is None else (),
            )
        except PermissionError as error:
            who = "" if user is None else " by the user nobody"
            raise HostUnfit(f"{argv[0]} cannot be run{who}: {error.strerror}") from error
        try:
            yield process
            status = process.wait()
        finally:
            if process.returncode is None:
                _kill_session(process)
            for pipe in (process.stdin, process.stdout):
                if pipe:
                    pipe.close()
        if status != 0:
            talk.seek(0)
            raise CommandFailed(argv, status, stderr=talk.read().decode(errors="replace"))


def fence() -> tuple[int, int] | None:
    """User and group that own nothing, for programs that read what others wrote.

    None: we are not root, and such programs run as we do.
    """
    import pwd

    if os.geteuid() != 0:
        return None
    found = pwd.getpwnam("nobody")
    return found.pw_uid, found.pw_gid


def search_path(path: str | None = None) -> str:
    """Where programs are looked for: ``path`` (default: PATH), then the system's directories.

    An empty entry of a PATH is the working directory, where no program of ours is.
    """
    parts = (os.environ.get("PATH", os.defpath) if path is None else path).split(os.pathsep)
    parts = [part for part in parts if part]
    return os.pathsep.join([*parts, *(place for place in _SYSTEM if place not in parts)])


def inherited() -> dict[str, str]:
    """What programs of ours get of our environment: what changes how they work is set by us.

    Texts are English and UTF-8, times UTC; options that programs read from variables are not those
    of our caller.
    """
    kept = {name: value for name, value in os.environ.items() if name not in _OPTIONS}
    kept = {name: value for name, value in kept.items() if not name.startswith(_LOCALE)}
    return kept | {"LC_ALL": "C.UTF-8", "TZ": "UTC", "PATH": search_path()}


def environment(env: Mapping[str, str] | None = None) -> dict[str, str]:
    """``env`` (default: ``inherited``) with the PATH that ``find`` uses, for a program of ours."""
    found = inherited() if env is None else dict(env)
    return found | {"PATH": search_path(found.get("PATH"))}


def find(program: str) -> str | None:
    """The path of ``program``, None if it is not installed. The one search for all programs."""
    return shutil.which(program, path=search_path())


def require(program: str, *, package: str = "") -> str:
    """The path of ``program``; raises HostUnfit with the package to install."""
    path = find(program)
    if path is None:
        hint = f"install the package {package}" if package else "`lab doctor` lists what is missing"
        raise HostUnfit(f"{program} is not installed", hint=hint)
    return path


def _ready(handle: int, event: int, seconds: float) -> bool:
    """Wait until the pipe can be read or written, or its other end is gone."""
    poll = select.poll()
    poll.register(handle, event)
    return bool(poll.poll(seconds * 1000))


def _kill_session(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, 9)
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe:
            with contextlib.suppress(OSError):
                pipe.close()
    # one that hangs in the kernel (a pool whose disks are gone) takes no signal
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE)

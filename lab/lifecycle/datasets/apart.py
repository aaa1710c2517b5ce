"""Sources are read in a process of their own, which foreign bytes can slow down, fill and end.

What is in a dump or a backup is decompressed, split and checked there, under limits of memory and
processor time: so no input makes the process wait that has the service's threads. It is given a
request in a file, prints how many bytes it has written, and leaves an answer in another file. The
answer is as foreign as what it was read from, and is checked.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from lab import errors, run
from lab.config.enginefile import DialectName
from lab.datasets.dump import STATEMENT_LIMIT
from lab.datasets.selection import Selection
from lab.datasets.source import (
    BackupDirectory,
    BackupStream,
    DataArchive,
    DataDirectory,
    DumpDirectory,
    DumpFile,
    Server,
    Source,
    StandardInput,
    Sysbench,
    Tpcc,
)
from lab.datasets.survey import SIGNS
from lab.drafts import replaced
from lab.errors import CommandFailed, HostUnfit, InvalidSpec, LabError
from lab.lifecycle.datasets import spool as spools
from lab.lifecycle.datasets.spool import Spool
from lab.units import GIB, MIB, format_size
from lab.values import dataclass
from lab.wait import Deadline

MEMORY = 2 * GIB
"""Bytes of address space: a dump needs 100 MiB, the longest line of a directory 1 GiB."""
MEMORY_OF_SERVER = 4 * GIB
"""Bytes of address space with the client of a live server, which holds one of its rows."""
SECONDS = 24 * 3600
"""Of processor time: 100 MB a second are read."""
_STALL = 1800.0
_IDLE = 1.0
_LOOK_EVERY = 1.0
"""Seconds between two looks whether the process that waits is still there."""
_SAY_EVERY = 0.2
_ANSWER_LIMIT = 64 * MIB
_KINDS: Mapping[str, type[Any]] = {
    one.__name__: one
    for one in (
        DumpFile,
        DumpDirectory,
        BackupDirectory,
        BackupStream,
        DataDirectory,
        DataArchive,
        Server,
        Sysbench,
        Tpcc,
    )
}
_ERRORS = (errors.InvalidSpec, errors.HostUnfit, errors.NotFound, errors.LimitReached)

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class _Request:
    """What is to be read, and where to."""

    kind: str
    source: dict[str, Any]
    files: tuple[str, ...]
    path: str
    name: str
    dialect: DialectName
    selection: Selection = field(default_factory=Selection)
    limit: int = STATEMENT_LIMIT
    version: str = ""
    """Of the server that is to have it, like ``dialect``."""
    memory: int = MEMORY
    seconds: int = SECONDS


@dataclass(frozen=True)
class _Failure:
    kind: str
    what: str
    hint: str = ""
    details: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Answer:
    result: Any = None
    failure: _Failure | None = None


def spool(
    source: Source | None,
    files: Sequence[Path],
    path: Path,
    database: str,
    progress: Callable[[int], None],
    selection: Selection,
    *,
    limit: int = STATEMENT_LIMIT,
    dialect: DialectName,
    version: str = "",
    seconds: int = SECONDS,
) -> Spool:
    """``spool.write`` in a process of its own; raises the same, and for its limits InvalidSpec."""
    if isinstance(source, StandardInput):  # of a command's own user, who may wait
        return spools.write(
            source, files, path, database, progress, selection, limit=limit, dialect=dialect,
            version=version,
        )  # fmt: skip
    memory = MEMORY_OF_SERVER if isinstance(source, Server) else MEMORY
    names = tuple(map(str, files))
    request = _Request(
        "" if source is None else type(source).__name__,
        {} if source is None else _builtins(source),
        names,
        str(path),
        database,
        dialect,
        selection,
        limit,
        version,
        memory=memory,
        seconds=seconds,
    )
    found = _apart(request, str(source or "the SQL"), progress, Spool)
    return _check(found, path, str(source))


def _check(found: Spool, path: Path, name: str) -> Spool:
    """Return ``found``; raises LabError unless ``spool.write`` can have returned it."""
    odd = found.path != path or not path.is_file() or path.stat().st_size != found.size
    if odd or not found.found.signs.keys() <= SIGNS.keys() or not found.parts:
        raise _invalid(name)
    return found


def backup(
    source: BackupDirectory | BackupStream | DataDirectory | DataArchive,
    path: Path,
    version: str,
    dialect: DialectName,
    progress: Callable[[int], None],
    kind: type[Answer],
    *,
    seconds: int = SECONDS,
) -> Answer:
    """``physical.write`` in a process of its own; ``kind``: what that returns."""
    request = _Request(
        type(source).__name__,
        _builtins(source),
        (),
        str(path),
        "",
        dialect,
        version=version,
        seconds=seconds,
    )
    return _apart(request, str(source), progress, kind)


def _builtins(value: object) -> Any:
    return msgspec.to_builtins(value, enc_hook=str)


def _path(kind: type[Any], value: Any) -> Any:
    if kind is Path and isinstance(value, str):
        return Path(value)
    raise NotImplementedError


def _apart(
    request: _Request, name: str, progress: Callable[[int], None], kind: type[Answer]
) -> Answer:
    """What the process that reads has answered; it ends with the block that waits for it."""
    work = Path(request.path).parent
    asked, answered = work / "request", work / "answer"
    with replaced(asked) as file:
        file.write_bytes(msgspec.json.encode(request))
    main_of = _MAIN.format([one for one in sys.path if one], __name__)
    argv = [sys.executable, "-c", main_of, str(asked), str(answered), str(os.getpid())]
    done, stalled = 0, Deadline.after(_STALL)
    try:
        with contextlib.closing(run.lines(argv, idle=_IDLE)) as lines:
            for line in lines:
                if line is not None and line.isascii() and line.isdecimal() and len(line) < 18:
                    done, stalled = max(done, int(line)), Deadline.after(_STALL)
                progress(done)
                if stalled.passed:
                    raise HostUnfit(f"{name}: nothing could be read for {_STALL:g} s")
    except CommandFailed as error:
        raise _ended(error.status, request, name) from None
    finally:
        asked.unlink(missing_ok=True)
    return _read(answered, name, kind)


def _read(path: Path, name: str, kind: type[Answer]) -> Answer:
    try:
        with path.open("rb") as file:
            content = file.read(_ANSWER_LIMIT + 1)
        path.unlink()
        if len(content) > _ANSWER_LIMIT:
            raise _invalid(name)
        answer = msgspec.json.decode(content, type=_Answer)
        if (failure := answer.failure) is None:
            return msgspec.convert(answer.result, kind, dec_hook=_path)
    except (OSError, msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise _invalid(name) from error
    found = next((one for one in _ERRORS if one.__name__ == failure.kind), LabError)
    raise found(failure.what, hint=failure.hint, details=failure.details)


def _ended(status: int, request: _Request, name: str) -> LabError:
    if status in (-24, -9):  # SIGXCPU, and the kernel's last word
        return InvalidSpec(
            f"{name}: reading it takes more than {request.seconds} s of processor time,"
            " or more memory than there is",
            hint="load less, or in several files",
        )
    return LabError(f"{name}: the process that reads it ended with status {status}")


def _invalid(name: str) -> LabError:
    return LabError(f"{name}: the process that reads it sent an invalid answer")


# The process itself

_MAIN = """\
import sys
sys.path[:] = {!r}
from {} import main
main(*sys.argv[1:])
"""


def main(asked: str, answered: str, parent: str) -> None:
    """Read what the file ``asked`` says, and write ``answered``, unless ``parent`` ends."""
    threading.Thread(target=_end_with, args=(int(parent),), daemon=True).start()
    request = msgspec.json.decode(Path(asked).read_bytes(), type=_Request)
    _limit(request)
    reported, last = 0.0, 0

    def progress(done: int) -> None:
        nonlocal reported, last
        last = done
        if time.monotonic() - reported >= _SAY_EVERY:
            reported = time.monotonic()
            _say(done)

    try:
        answer = _Answer(_builtins(_result(request, progress)))
    except MemoryError:
        answer = _Answer(failure=_Failure("InvalidSpec", _too_large(request)))
    except LabError as error:
        kind = "HostUnfit" if isinstance(error, HostUnfit) else type(error).__name__
        answer = _Answer(failure=_Failure(kind, error.what, error.hint, error.details))
    _say(last)
    path = Path(answered)
    path.touch(0o600)
    path.write_bytes(msgspec.json.encode(answer))


def _end_with(parent: int) -> None:
    """End this process when ``parent`` has ended: a read may wait for bytes that never come."""
    never = threading.Event()
    while os.getppid() == parent:
        never.wait(_LOOK_EVERY)
    os._exit(1)  # nobody waits for an answer any more


def _say(done: int) -> None:
    sys.stdout.write(f"{done}\n")
    sys.stdout.flush()


def _result(request: _Request, progress: Callable[[int], None]) -> object:
    source = _source(request)
    path, files = Path(request.path), [Path(file) for file in request.files]
    if isinstance(source, BackupDirectory | BackupStream | DataDirectory | DataArchive):
        from lab.lifecycle.datasets import physical

        return physical.write(source, path, request.version, request.dialect, progress)
    return spools.write(
        source, files, path, request.name, progress, request.selection, limit=request.limit,
        dialect=request.dialect, version=request.version,
    )  # fmt: skip


def _source(request: _Request) -> Source | None:
    if not request.kind:
        return None
    found: Source = msgspec.convert(request.source, _KINDS[request.kind], dec_hook=_path)
    return found


def _too_large(request: _Request) -> str:
    text = f"{request.source.get('shown') or request.source.get('path') or 'the source'}"
    return f"{text}: reading it needs more than {format_size(request.memory)} of memory"


def _limit(request: _Request) -> None:
    import resource

    for what, most in (
        (resource.RLIMIT_AS, request.memory),
        (resource.RLIMIT_CPU, request.seconds),
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard = resource.getrlimit(what)
        least = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (least, least))

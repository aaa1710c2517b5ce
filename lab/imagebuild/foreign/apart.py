"""Foreign files are unpacked and read in a process of their own; their programs run in another.

The first sees nothing but the directory that it fills, and is nobody; the second has the libraries
of the release that the guests will have, is a user of its own, and can write nothing. Neither has a
network, and both have limits of memory, time and files.
"""

from __future__ import annotations

import json
import os
import re
import stat
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lab.distribution import extra
from lab.errors import CommandFailed, HostUnfit, InvalidSpec, LabError
from lab.imagebuild import bootstrap
from lab.imagebuild.added import BASE, Common
from lab.imagebuild.foreign import unpack
from lab.imagebuild.foreign.libraries import Choice
from lab.imagebuild.foreign.programs import Found, look
from lab.imagebuild.isolate import isolated
from lab.imagebuild.trust import keyrings
from lab.progress import Progress
from lab.run import fence, output, run
from lab.units import GIB, MIB
from lab.values import dataclass

FOREIGN = "foreign"
"""The directory that is all that the process which unpacks can see."""
TREE = "tree"
"""The directory of the unpacked build, in that."""
SYSTEM = "system"
"""The directory with the libraries of the guests' release."""
_SECONDS = 3600
_MEMORY = 3 * GIB
_ANSWER = 8 * MIB
_SIGNALS = 128
"""Above this a status says by which signal a program was ended."""
_ASK_SECONDS = 120.0
_SAID = 16384
"""Bytes that a program may print, on each stream: what it says of its version is one line."""
_SYSTEM_PACKAGES = ("base-files", "libc6", "libgcc-s1", "libstdc++6")
_MAIN = """\
import sys
sys.path[:] = {!r}
from {} import main
main(*sys.argv[1:])
"""
_VERSION = re.compile(r"\bVer (\d+\.\d+\.\d+)")
_LIBRARY = re.compile(r"[\w.+-]+\.so[\w.]*")
_SYMBOLS = re.compile(r"version `(\S{1,80})' not found")


def unpacked(source: Path, out: Path, kinds: Sequence[Common], most: int = unpack.BYTES) -> Found:
    """What is in a build, which is unpacked to ``out``/foreign/tree.

    ``kinds``: what builds can be. ``most``: bytes that it may take there. Raises InvalidSpec,
    HostUnfit.
    """
    with extra("host", "an added build"):
        import elftools  # noqa: F401  of that process
    main_of = _MAIN.format([one for one in sys.path if one], __name__)
    asked = json.dumps([asdict(kind) for kind in kinds])
    words = [str(source), str(out), asked, str(most)]
    argv = [*isolated(network=False), sys.executable, "-c", main_of, *words]
    answer = b""
    try:
        for piece in output(argv, stall=_SECONDS, chunk=1 << 16):
            answer += piece
            if len(answer) > _ANSWER:
                raise _invalid(source)
    except CommandFailed as error:
        why = "the process that reads it failed"
        if error.status < 0 or error.status > _SIGNALS:
            why = f"it takes more than {_SECONDS // 60} minutes, or more memory than there is"
        raise InvalidSpec(f"{source} cannot be read: {why}", details=error.details[-3:]) from None
    return _read(answer, source)


def _read(answer: bytes, source: Path) -> Found:
    """The answer of the process that read; it is as foreign as what it was read from."""
    import msgspec

    @dataclass(frozen=True)
    class Answer:
        found: Found | None = None
        what: str = ""
        hint: str = ""
        details: tuple[str, ...] = ()
        unfit: bool = False

    try:
        answered = msgspec.json.decode(answer, type=Answer)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise _invalid(source) from None
    if answered.found is None:
        kind = HostUnfit if answered.unfit else InvalidSpec
        raise kind(answered.what, hint=answered.hint, details=answered.details)
    texts = [answered.found.base, answered.found.server, *answered.found.library_paths]
    for table in (answered.found.programs, answered.found.files, answered.found.options):
        texts += [*table, *table.values()]
    if any(
        ".." in Path(one).parts or one.startswith("/") or not one.isprintable() for one in texts
    ):
        raise _invalid(source)
    return answered.found


def _invalid(source: Path) -> LabError:
    return LabError(f"{source}: the process that reads it sent an invalid answer")


def main(source: str, out: str, asked: str, most: str) -> None:
    """The process that unpacks and reads."""
    import encodings.cp437  # noqa: F401  of zip archives

    import elftools.elf.dynamic
    import elftools.elf.elffile
    import elftools.elf.gnuversions  # noqa: F401  all that is imported must be before the chroot

    kinds = [
        Common(**{name: _frozen(its) for name, its in one.items()}) for one in json.loads(asked)
    ]
    try:
        found = _unpack(Path(source), Path(out), kinds, int(most))
        answer: dict[str, Any] = {"found": asdict(found)}
    except Exception as error:  # noqa: BLE001  what it reads is a stranger's, and decides on it
        what = error.what if isinstance(error, LabError) else f"{source} cannot be read: {error!r}"
        answer = {"what": what, "unfit": isinstance(error, HostUnfit)}
        if isinstance(error, LabError):
            answer |= {"hint": error.hint, "details": list(error.details)}
    sys.stdout.write(json.dumps(answer))
    sys.stdout.flush()


def _frozen(value: Any) -> Any:
    return tuple(_frozen(one) for one in value) if isinstance(value, list) else value


def _unpack(source: Path, out: Path, kinds: Sequence[Common], most: int) -> Found:
    out = out / FOREIGN
    root = out / TREE
    root.mkdir(0o755, parents=True)
    tree, content = unpack.Tree(root, most), None
    with suppress(ImportError):  # what reads .zst files
        import zstandard  # noqa: F401
    _limit()
    handle = os.open(source, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if stat.S_ISDIR(os.fstat(handle).st_mode):
        # As the one who gives it: a build may be readable by root only.
        unpack.copy(handle, tree)
        os.close(handle)
    else:
        content = os.fdopen(handle, "rb")
    _confine(out)
    tree.root = Path("/") / TREE
    tree.links = [(Path("/") / path.relative_to(out), target) for path, target in tree.links]
    if content is not None:
        with content:
            unpack.unpack(content, tree, source.name)
    unpack.unpack_packed(tree)
    tree.finish()
    found = look(tree.root, kinds)
    return Found(**{**vars(found), "left_out": tuple(tree.left_out[:100])})


def _limit() -> None:
    """Limits of this process, before anything is read."""
    import resource

    for what, most in (
        (resource.RLIMIT_AS, _MEMORY),
        (resource.RLIMIT_CPU, _SECONDS),
        (resource.RLIMIT_FSIZE, unpack.BYTES),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, 256),
    ):
        _, hard = resource.getrlimit(what)
        least = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (least, least))


def _confine(out: Path) -> None:
    """See nothing but ``out``, and be nobody, to whom it is given."""
    user = fence()
    if user is not None:
        os.chown(out, *user)
        for top, directories, files in os.walk(out):
            for name in (*directories, *files):
                os.chown(Path(top) / name, *user, follow_symlinks=False)
        os.chroot(out)
        os.chdir("/")
        os.setgroups([])
        os.setgid(user[1])
        os.setuid(user[0])


def system(out: Path, choice: Choice, log: Path, progress: Progress) -> None:
    """Make ``out``/system: the C library and the libraries of a build, of its guests' release."""
    argv = bootstrap.command(
        out / SYSTEM,
        choice.suite,
        sorted({*_SYSTEM_PACKAGES, *choice.packages}),
        keyrings=keyrings(out),
        variant="extract",
    )
    bootstrap.bootstrap(argv, log, progress)
    for path, to in choice.links:
        link = ["ln", "-sf", "--", to, str(out / SYSTEM / path[1:])]
        run([*isolated(network=False), *link], timeout=60)


def version_text(out: Path, found: Found, program: str) -> str:
    """What a program of a build says of its version; raises InvalidSpec if it does not run."""
    paths = ":".join(f"{BASE}/{path}" for path in found.library_paths)
    script = Path(__file__).with_name("ask.sh")
    base = out / FOREIGN / TREE / found.base
    asked = ["sh", str(script), str(out / SYSTEM), str(base), paths, f"{BASE}/{program}"]
    argv = [*isolated(network=False), *asked, "--no-defaults", "--version"]
    try:
        answer = run(argv, timeout=_ASK_SECONDS, most=_SAID)
    except CommandFailed as error:
        missing = _missing("\n".join(error.details))
        raise InvalidSpec(
            f"{program} does not run with the libraries of its guests"
            + (f": there is no {', '.join(missing)}" if missing else ""),
            hint="use a build for Debian, or for an older system",
            details=error.details[-5:],
        ) from None
    return answer.stdout.strip()[:500]


def version(text: str) -> str:
    """The version in what a server says of itself; raises InvalidSpec."""
    match = _VERSION.search(text)
    if match is None:
        raise InvalidSpec(f"the server says no version: {text[:200]!r}")
    return match[1]


def _missing(text: str) -> list[str]:
    """The libraries, and the versions of symbols, that the dynamic linker did not find."""
    before = [line.partition(": cannot open")[0].split() for line in text.splitlines()
              if ": cannot open" in line]  # fmt: skip
    names = [words[-1] for words in before if words and _LIBRARY.fullmatch(words[-1])]
    return [*names, *_SYMBOLS.findall(text)]

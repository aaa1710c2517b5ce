"""The root file system: mmdebstrap, and what its failures mean."""

from __future__ import annotations

import re
import shlex
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from lab.errors import CommandFailed, HostUnfit, RecipeFailed
from lab.imagebuild.isolate import isolated
from lab.progress import Progress
from lab.run import inherited, run

TIMEOUT = 1800.0
"""Seconds that mmdebstrap may take: a slow line needs minutes."""

# What a lab's guest never reads. Locales and manuals are a third of the files.
_EXCLUDED = ("man", "doc", "locale", "info", "lintian", "bash-completion", "zoneinfo-icu")

_ENVIRONMENT = {
    "LC_ALL": "C.UTF-8",
    # Debian's own initramfs takes seconds to make and is not used.
    "INITRD": "No",
    # Percona's packages would tell Percona of their installation.
    "PERCONA_TELEMETRY_DISABLE": "1",
}

_NETWORK = re.compile(
    r"Temporary failure resolving|Could not resolve|Could not connect|Unable to connect"
    r"|Cannot initiate the connection|Connection (?:timed out|refused|failed)|connect \("
    r"|Network is unreachable|No route to host|Received HTTP code \d+ from proxy"
    r"|Failed to fetch|Some index files failed to download"
)
_NO_SPACE = re.compile(r"No space left on device|Disk quota exceeded|don't have enough free space")
_UNTRUSTED = re.compile(r"NO_PUBKEY|is not signed|not available to verify|BADSIG|EXPKEYSIG")
_ASIDE = re.compile(r"hook|chroot architecture|signed-by|received signal|^success")
_URL = re.compile(r"https?://[^\s']+")
_PHASE = re.compile(r"^I: ([a-z].*?)\.*$")


def command(
    root: Path,
    suite: str,
    packages: Sequence[str],
    *,
    mirror: str = "",
    keyrings: Sequence[Path] = (),
    setup: Sequence[str] = (),
    customize: Sequence[str] = (),
    variant: Literal["minbase", "extract"] = "minbase",
) -> list[str]:
    """The argv that fills ``root`` with ``suite``.

    ``mirror`` empty: Debian's own, which mmdebstrap knows. ``keyrings``: one file and one
    directory at most, instead of what the host's apt trusts. ``setup``: shell commands that
    are run with the directory as $1 before packages are looked up; ``customize``: at the end.
    ``variant``: a whole system, or only the files of the packages and of what they depend on.
    """
    argv = ["mmdebstrap", f"--variant={variant}", "--mode=root", "--format=directory"]
    argv.append(f"--include={','.join(packages)}")
    options = {
        "APT::Install-Recommends": "false",
        "Acquire::Languages": "none",
        "Acquire::Retries": "2",
        "Acquire::http::Timeout": "20",
        "Acquire::https::Timeout": "20",
    }
    if suite == "sid":
        # Its index is valid for a week: a mirror that is not updated, as snapshots are, was chosen.
        options["Acquire::Check-Valid-Until"] = "false"
    argv += [f'--aptopt={name} "{value}"' for name, value in options.items()]
    argv += ["--dpkgopt=force-confold", "--dpkgopt=force-unsafe-io"]
    argv += [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in _EXCLUDED]
    argv += [f"--keyring={keyring}" for keyring in keyrings]
    argv += [f"--setup-hook={hook}" for hook in setup]
    argv += [f"--customize-hook={hook}" for hook in customize]
    argv += [suite, str(root)]
    if mirror:
        argv.append(mirror)
    return argv


def occupy(directory: str) -> list[str]:
    """Setup hooks that put a file into ``directory`` of the root file system; empty: none.

    Without it, maintainer scripts initialise an empty data directory, and start a server for that
    in the host's network namespace.
    """
    if not directory:
        return []
    inside = shlex.quote(directory)
    return [f'mkdir -p "$1"{inside} && : >"$1"{inside}/.lab']


def bootstrap(argv: Sequence[str], log: Path, progress: Progress, own: Sequence[str] = ()) -> None:
    """Run mmdebstrap; raises HostUnfit or RecipeFailed if a repository fails, else CommandFailed.

    ``own``: the URLs of the recipe's own repository.
    """
    env = {**inherited(), **_ENVIRONMENT}
    began = log.stat().st_size if log.exists() else 0
    with log.open("ab") as sink, phases(log, began, progress):
        try:
            run([*isolated(network=True), *argv], timeout=TIMEOUT, log=sink, env=env)
            return
        except CommandFailed as error:
            failed = error
    with log.open("rb") as source:
        source.seek(began)
        raise explain(failed, source.read().decode(errors="replace"), own)


def explain(
    error: CommandFailed, output: str, own: Sequence[str] = ()
) -> HostUnfit | CommandFailed:
    """The error for the user when ``error`` came with ``output``.

    RecipeFailed if all URLs that failed are below ``own``, the URLs of the recipe's own
    repository: Debian's mirror did answer then.
    HostUnfit as well if mmdebstrap timed out or was killed: the packages of another recipe would
    take as long.
    """
    lines = [line for line in output.splitlines() if line.strip()]
    if full_disk(output):
        # The caller knows the figures.
        return CommandFailed(error.argv, error.status, stderr="\n".join(lines[-10:]))
    untrusted = [line for line in lines if _UNTRUSTED.search(line)]
    unreachable = [line for line in lines if _NETWORK.search(line)]
    telling = untrusted or unreachable
    gone = any(re.search(r"\b404\b", line) for line in telling)
    if _only(own, untrusted + unreachable):
        return RecipeFailed(
            f"{own[0]} is not signed by the key that its recipe trusts"
            if untrusted
            else f"{own[0]} lacks a file that it lists"
            if gone
            else f"cannot reach {own[0]}",
            hint="its key may have been replaced: use a newer version of this program"
            if untrusted
            else "try again in a few minutes; behind a proxy, set http_proxy",
            details=telling[-5:],
        )
    if untrusted:
        return HostUnfit(
            "a package repository is not signed by a key that is trusted here",
            hint="update debian-archive-keyring, or ask the owner of the recipe's repository",
            details=telling[-5:],
        )
    if telling:
        return HostUnfit(
            "the Debian mirror lacks a file that it lists"
            if gone
            else "cannot reach a Debian mirror",
            hint="it is being updated: try again in a few minutes"
            if gone
            else "check the network; behind a proxy, set http_proxy",
            details=telling[-5:],
        )
    if error.status < 0:
        return HostUnfit(
            f"installing the packages did not end by itself: {error.details[-1]}"
            if error.details
            else f"installing the packages was ended by signal {-error.status}",
            hint="the network or this host is too slow, or has too little memory: try again",
            details=lines[-5:],
        )
    return CommandFailed(error.argv, error.status, stderr="\n".join(lines[-10:]))


def _only(own: Sequence[str], telling: Sequence[str]) -> bool:
    """Whether these lines name URLs, and none that is not below one of ``own``."""
    urls = [url for line in telling for url in _URL.findall(line)]
    return bool(urls) and all(
        any(url == base or url.startswith(f"{base}/") for base in own) for url in urls
    )


def full_disk(output: str) -> list[str]:
    """The lines of ``output`` that report a full disk."""
    return [line for line in output.splitlines() if _NO_SPACE.search(line)]


@contextmanager
def phases(log: Path, start: int, progress: Progress) -> Iterator[None]:
    """Tell ``progress`` of each phase that mmdebstrap announces in ``log``."""
    over = threading.Event()

    def tell(line: bytes) -> None:
        phase = _PHASE.match(line.decode(errors="replace"))
        if phase and not _ASIDE.search(phase[1]):
            progress.note("bootstrap", phase[1])

    def follow() -> None:
        with log.open("rb") as source:
            source.seek(start)
            rest = b""
            last = False
            while not last:
                last = over.wait(0.2)
                *lines, rest = (rest + source.read()).split(b"\n")
                for line in lines:
                    tell(line)

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()

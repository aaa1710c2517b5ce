"""What becomes of a lab whose command, or test, failed: ``--on-failure``."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from lab.cli import flags
from lab.errors import HostUnfit, InvalidSpec
from lab.paths import new_file, writing
from lab.units import format_duration, format_size
from lab.values import dataclass

if TYPE_CHECKING:
    from lab.cli.backend.session import Session

HELP = (
    "If it fails: write a bundle (`bundle`), one with the lab in it, RAM included (`capture`), each"
    " also `=DIRECTORY`; or keep the lab (`keep`, for 30m, or `keep=TIME`)."
)
"""Of the flag, for a command; it fails if its exit code is not 0."""
METAVAR = "bundle|capture|keep"

_KEPT = 1800.0
"""Seconds of the lease of a lab that is kept, unless it is given."""
_HINT = "give bundle, bundle=DIRECTORY, capture, capture=DIRECTORY, keep, or keep=TIME, as keep=2h"


@dataclass(frozen=True)
class OnFailure:
    """What was asked for. ``directory``: of the file; ``ttl``: seconds that the lab is kept."""

    what: Literal["bundle", "capture", "keep"]
    directory: Path = Path()
    ttl: float = _KEPT


def parse(flag: str, text: str, *, url: str = "") -> OnFailure:
    """The value of a flag; raises InvalidSpec, also where its directory is not there.

    ``url``: of the service whose labs they are, which writes no bundles with a lab in them.
    """
    what, given, value = text.partition("=")
    if what not in ("bundle", "capture", "keep") or (given and not value):
        raise InvalidSpec(f"{flag}: {text!r} is not one of bundle, capture, keep", hint=_HINT)
    if what == "keep":
        return OnFailure("keep", ttl=flags.duration(flag, value) if value else _KEPT)
    if what == "capture" and url:
        raise InvalidSpec(
            f"{flag}: bundles with a lab in them are written by the host of the lab",
            hint="`bundle` writes one without it",
        )
    directory = Path(value or ".").absolute()
    if not directory.is_dir():
        raise InvalidSpec(f"{flag}: there is no directory {value}", hint="create it first")
    return OnFailure(cast("Literal['bundle', 'capture']", what), directory)


def apply(
    session: Session, lab: str, wanted: OnFailure, why: str, say: Callable[[str], object]
) -> bool:
    """Do what is wanted with a lab that is about to be removed; whether it is kept.

    ``say`` prints what was done. Raises as the verbs do: then the lab is removed as usual.
    """
    if wanted.what == "keep":
        from lab.requests.labs import ChangeLab

        session.run(ChangeLab(lab=lab, ttl=wanted.ttl))
        say(
            f"kept the lab {lab} for {format_duration(wanted.ttl)}: `lab env {lab}`,"
            f" `lab down {lab}`"
        )
        return True
    path = path_of(lab, wanted.directory)
    write(session, lab, path, with_lab=wanted.what == "capture", why=why, say=say)
    return False


def path_of(lab: str, directory: Path) -> Path:
    """Where the bundle of a lab is written, unless the user says where."""
    return directory / f"{lab}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.tar.zst"


def write(
    session: Session,
    lab: str,
    path: Path,
    *,
    with_lab: bool,
    why: str = "",
    say: Callable[[str], object],
) -> None:
    """Write a bundle to a file, and say so; raises HostUnfit if the lab itself is not in it.

    A device or a pipe is written to; a file that is there is replaced once the new one is complete.
    """
    real = Path(os.path.realpath(path))
    if real.exists() and not real.is_file():
        with writing(path):
            device = real.open("wb")
        with device:
            lacking = session.bundle(lab, device, with_lab=with_lab, why=why)
        say(f"{path}: written")
    else:
        lacking = _new(session, lab, real, with_lab=with_lab, why=why)
        say(f"{path}: {format_size(path.stat().st_size)}")
    if lacking:
        raise HostUnfit(
            f"{path} was written without the lab: {lacking}",
            hint="what is known of the lab is in it",
        )


def _new(session: Session, lab: str, path: Path, *, with_lab: bool, why: str) -> str:
    draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
    file = new_file(draft)
    try:
        with file:
            lacking = session.bundle(lab, file, with_lab=with_lab, why=why)
        with writing(path):
            draft.replace(path)
    except BaseException:
        with suppress(OSError):
            draft.unlink()
        raise
    return lacking

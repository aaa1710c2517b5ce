"""``python -m lab.imagebuild RECIPE OUT``: build an image here, without the rest of the program.

That is how a builder does it (``builder.sh``): the standard library is all it needs.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from lab.config.profile import Layout
from lab.errors import CommandFailed, LabError, RecipeFailed
from lab.imagebuild.build import build
from lab.imagebuild.recipe import load
from lab.progress import Event, Progress

FAILURE = "failure.json"
"""Beside the image's files if there is none: the error, as ``as_data`` has it."""


def main(words: Sequence[str] | None = None) -> int:
    """Build what the command line says; the exit status. ``OUT/failure.json`` has the error."""
    parser = argparse.ArgumentParser(prog="images", description=__doc__)
    parser.add_argument("recipe", metavar="RECIPE")
    parser.add_argument("out", metavar="OUT", type=Path, help="an empty directory")
    parser.add_argument("--layout", choices=get_args(Layout), default="single")
    parser.add_argument("--mirror", default="", metavar="URL")
    options = parser.parse_args(words)
    out: Path = options.out
    try:
        build(
            load(options.recipe),
            out,
            layout=options.layout,
            progress=Progress(_tell),
            log=out / "build.log",
            mirror=options.mirror,
        )
    except LabError as error:
        (out / FAILURE).write_text(json.dumps(as_data(error)), encoding="utf-8")
        return error.exit_code
    return 0


def as_data(error: LabError) -> dict[str, object]:
    """An error as data: ``code``, ``what``, ``hint``, ``details``.

    ``recipe``: whether the recipe may be the cause, so that another may still be built.
    """
    return {
        "code": error.exit_code,
        "what": error.what,
        "hint": error.hint,
        "details": list(error.details),
        "recipe": isinstance(error, (CommandFailed, RecipeFailed)),
    }


def _tell(event: Event) -> None:
    if event.state in {"begin", "note"}:
        print(f"images: {event.text}", flush=True)  # noqa: T201  its output is a log


if __name__ == "__main__":
    sys.exit(main())

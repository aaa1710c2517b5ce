"""The distribution that this is installed as: its version, its extras, and how to install these.

The distribution's name differs from ours: `lab` is another project's on the package index. So an
install is named by where ours came from, never by a name alone.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from lab.errors import HostUnfit

NAME = "mysql-lab"
TARGETS = {
    "client": "venv-client",
    "datasets": "venv",
    "host": "venv",
    "plot": "venv",
    "serve": "venv-serve",
    "trace": "venv-serve",
}
"""The extras, and the target of a checkout's Makefile whose ``.venv`` has it."""


def version() -> str:
    """Our version, as the metadata of the installed distribution has it."""
    from importlib import metadata

    try:
        return metadata.version(NAME)
    except metadata.PackageNotFoundError:
        return "unknown (not installed)"


@contextmanager
def extra(name: str, purpose: str) -> Iterator[None]:
    """For imports of what the extra ``name`` installs; raises HostUnfit if they fail.

    ``purpose``: what needs it, as the subject of a sentence.
    """
    try:
        yield
    except ImportError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "lab"):
            raise
        what = f"{purpose} requires the Python package {package}, which"
        if isinstance(error, ModuleNotFoundError):
            raise HostUnfit(f"{what} is not installed", hint=install(name)) from error
        raise HostUnfit(
            f"{what} cannot be loaded: {error}",
            hint="`make setup` in a checkout installs the libraries of the system",
        ) from error


def install(name: str) -> str:
    """The hint how to install the extra ``name`` into this environment."""
    from urllib.parse import unquote, urlsplit

    origin = _origin()
    url = str(origin.get("url", ""))
    path = Path(unquote(urlsplit(url).path)) if url.startswith("file:") else None
    if path and Path(sys.prefix) == path / ".venv":
        return f"run `make -C {shlex.quote(str(path))} {TARGETS[name]}`"
    if path and origin.get("dir_info", {}).get("editable"):
        what = ["--editable", f"{path}[{name}]"]
    elif path:
        what = [f"{NAME}[{name}] @ {url}"]
    else:
        return f"install the extra {name} of {NAME}, see docs/client.md"
    return f"run `{shlex.join([sys.executable, '-m', 'pip', 'install', *what])}`"


def _origin() -> dict[str, Any]:
    """What the installer wrote down about where it got us (PEP 610); empty if nothing."""
    import json
    from importlib import metadata

    with suppress(metadata.PackageNotFoundError, ValueError, RecursionError):
        found = json.loads(metadata.distribution(NAME).read_text("direct_url.json") or "{}")
        return found if isinstance(found, dict) else {}
    return {}

"""What a dataset of a service is made from: dumps of this machine are sent to it."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import BinaryIO

from msgspec.structs import replace

from lab.client import Client
from lab.datasets import source as sources
from lab.datasets.source import DumpFile, StandardInput
from lab.errors import InvalidSpec
from lab.progress import Event, Listener
from lab.request import check
from lab.requests.datasets import CreateDataset
from lab.texts import decoded
from lab.units import format_size


def sent(client: Client, asked: CreateDataset, listener: Listener) -> CreateDataset:
    """The request as a service takes it: its files are texts, its dump is sent before.

    Raises InvalidSpec for what cannot be sent, and what ``Client`` raises.
    """
    texts = "\n".join(text(Path(file)) for file in asked.files)  # each from a line of its own
    made = check(replace(asked, sql=texts, files=()))
    return replace(made, source=_source(client, asked.source, listener))


def _source(client: Client, given: str, listener: Listener) -> str:
    """The source that the request to the service names; a dump is sent first.

    Raises InvalidSpec for what cannot be sent, and what ``Client`` raises.
    """
    found = sources.parse(given)
    if isinstance(found, StandardInput):
        return _sent(client, sys.stdin.buffer, "stdin.sql", listener)
    if isinstance(found, DumpFile):
        name = _name(found)
        with found.path.open("rb") as file:
            return _sent(client, file, name, listener)
    if given.startswith(("lab:", "generate:")) or "://" in given:
        return given
    raise InvalidSpec(
        f"{given} cannot be sent to a service: only dumps in one file can",
        hint="run `lab dataset create` on the host of the labs",
    )


def _name(dump: DumpFile) -> str:
    """What a dump is called in messages of the service."""
    kind = f".sql.{dump.packing}" if dump.packing else ".sql"
    name = dump.path.name
    for end in (*sources.PACKINGS, "sql"):
        name = name.removesuffix(f".{end}")
    stem = re.sub(r"[^A-Za-z0-9._-]", "-", name).strip("._-")
    return f"{stem[:80] or 'dump'}{kind}"


def _sent(client: Client, file: BinaryIO, name: str, listener: Listener) -> str:
    listener(Event("upload", "begin", f"sending {name}"))
    done = client.datasets.upload(file, name)
    listener(Event("upload", "end", f"sent {format_size(done.size)}"))
    return f"{sources.UPLOAD}{done.id}"


def text(path: Path) -> str:
    """The text of a file that goes into a request; raises InvalidSpec."""
    try:
        return decoded(path.read_bytes())
    except OSError as error:
        raise InvalidSpec(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InvalidSpec(f"{path} is not UTF-8, which a service needs") from None

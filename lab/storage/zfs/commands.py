"""Runs ``zfs``, and translates its errors."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from lab import run
from lab.errors import CommandFailed, LabError
from lab.run import Completed, inherited
from lab.storage.zfs import listing
from lab.storage.zfs.calls import RunningCall
from lab.storage.zfs.faults import Fault, fault_of, host_error, no_pool
from lab.storage.zfs.listing import COLUMNS, SOURCES, Dataset

TIMEOUT = 300.0
"""Time limit of one command in seconds: on busy disks a commit may take many."""
_STALL = 300.0
_CHUNK = 1 << 20


class Runner(Protocol):
    """``lab.run.run``, or its double in tests."""

    def __call__(
        self, argv: Sequence[str], *, timeout: float, env: Mapping[str, str], keep: Sequence[int]
    ) -> Completed:
        """Raises CommandFailed, HostUnfit."""


class Commands:
    """``zfs`` for the datasets below ``root``, with messages in English (LC_ALL).

    All raise CommandFailed, and HostUnfit for faults of the host. ``work``: the call that a
    change belongs to.
    """

    def __init__(self, root: str, runner: Runner = run.run) -> None:
        self._root = root
        self._run = runner

    def zfs(self, *args: str, work: RunningCall | None = None) -> str:
        """Run ``zfs args`` and return its output."""
        with self._host_errors():
            return self._run(
                ["zfs", *args], timeout=TIMEOUT, env=_environment(), keep=_kept(work)
            ).stdout

    def output(self, *args: str) -> Generator[bytes, None, None]:
        """The output of ``zfs args`` in pieces of at most 1 MiB; to be closed, which kills it."""
        with self._host_errors():
            argv = ["zfs", *args]
            yield from run.output(argv, stall=_STALL, chunk=_CHUNK, env=_environment())

    def feed(self, source: Iterable[bytes], *args: str, work: RunningCall) -> None:
        """Run ``zfs args`` with the pieces of ``source`` as its input."""
        argv = ["zfs", *args]
        with self._host_errors():
            run.feed(argv, source, stall=_STALL, env=_environment(), keep=_kept(work))

    def datasets(self, *args: str) -> list[Dataset]:
        """The datasets that ``zfs get args`` finds; empty if the one named last is absent.

        Raises HostUnfit if the parent dataset does not exist: then nothing is known of the rest.
        """
        found = self._listed(*args)
        if found is None and (args[-1] == self._root or self._listed(self._root) is None):
            raise no_pool(self._root)
        return found or []

    def find(self, name: str) -> Dataset | None:
        """The dataset ``name``, also one that is not below ``root``; None if it is absent."""
        found = self._listed(name)
        return found[0] if found else None

    def _listed(self, *args: str) -> list[Dataset] | None:
        columns = ["-Hp", "-o", COLUMNS, "-s", SOURCES]
        try:
            return listing.parse(self.zfs("get", *columns, *args[:-1], "all", args[-1]))
        except CommandFailed as error:
            if fault_of(error) is Fault.ABSENT:
                return None
            raise

    @contextlib.contextmanager
    def _host_errors(self) -> Iterator[None]:
        try:
            yield
        except CommandFailed as error:
            wrong = host_error(error, self._root)
            if wrong is None:
                raise
            raise wrong from error


@contextlib.contextmanager
def telling(errors: Mapping[Fault, LabError]) -> Iterator[None]:
    """Raise the error for a fault in this operation."""
    try:
        yield
    except CommandFailed as error:
        known = errors.get(fault_of(error))
        if known is None:
            raise
        raise known from error


def _environment() -> dict[str, str]:
    return {**inherited(), "LC_ALL": "C"}


def _kept(work: RunningCall | None) -> list[int]:
    return [work.handle] if work else []

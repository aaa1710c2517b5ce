"""Making datasets whose folder another process tidies away at that moment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from lab.errors import CommandFailed, HostUnfit
from lab.run import Completed
from lab.storage.zfs.calls import RunningCall
from lab.storage.zfs.commands import Commands
from lab.storage.zfs.names import Layout
from lab.storage.zfs.pool import Pool

HIDDEN, TARGET = "t/lab/works/0badcafe.0", "t/lab/labs/k/n1-os"
ABSENT = f"cannot rename '{HIDDEN}': dataset does not exist\n"
WORK = RunningCall("0badcafe", 0)


class Zfs:
    """A ``zfs`` whose renames fail as ``failures`` say; ``there``: the hidden dataset exists.

    ``verb``: what fails instead.
    """

    def __init__(
        self, failures: Sequence[str], *, there: bool = True, verb: str = "rename"
    ) -> None:
        self.failures, self.there, self.verb = list(failures), there, verb
        self.done: list[str] = []

    def __call__(
        self, argv: Sequence[str], *, timeout: float, env: Mapping[str, str], keep: Sequence[int]
    ) -> Completed:
        del timeout, env, keep
        verb, name = argv[1], argv[-1]
        if verb == self.verb and self.failures:
            raise CommandFailed(argv, 1, stderr=self.failures.pop(0))
        if verb == "get" and name == HIDDEN and not self.there:
            raise CommandFailed(argv, 1, stderr=f"cannot open '{name}': dataset does not exist\n")
        if verb != "get":
            self.done.append(f"{verb} {name}")
        return Completed(f"{name}\ttype\tvolume\t-\n" if verb == "get" else "", "")


@pytest.mark.parametrize(
    "error", [ABSENT, f"cannot rename to '{TARGET}': no such parent 't/lab/labs/k'\n"]
)
def test_a_folder_that_was_tidied_away_is_made_again(error: str) -> None:
    """The first: it was there when ``zfs`` looked, and not when the kernel did."""
    zfs = Zfs([error])
    Pool(Layout("t/lab"), "home", Commands("t/lab", zfs)).make(WORK, "rename", HIDDEN, TARGET)
    assert zfs.done == ["create t/lab/labs/k", f"rename {TARGET}"]


@pytest.mark.parametrize(
    ("error", "there"), [(ABSENT, False), (f"cannot rename '{HIDDEN}': dataset is busy\n", True)]
)
def test_another_failure_is_not_retried(error: str, *, there: bool) -> None:
    """Protects errors: a dataset that is lost, or busy, has nothing to do with its folder."""
    zfs = Zfs([error], there=there)
    with pytest.raises(CommandFailed):
        Pool(Layout("t/lab"), "home", Commands("t/lab", zfs)).make(WORK, "rename", HIDDEN, TARGET)
    assert zfs.done == []


@pytest.mark.parametrize("why", ["dataset does not exist", "no such parent 't/lab/labs/k'"])
def test_what_is_above_a_folder_is_made_again(why: str) -> None:
    """Protects a clone while its folder, and that above it, are tidied away."""
    zfs = Zfs([f"cannot create 't/lab/labs/k': {why}\n"], verb="create")
    Pool(Layout("t/lab"), "home", Commands("t/lab", zfs)).folder(WORK, "t/lab/labs/k")
    assert zfs.done == ["create t/lab/.work", "create t/lab/labs", "create t/lab/labs/k"]


def test_a_pool_that_is_gone_is_not_waited_for() -> None:
    zfs = Zfs(["cannot create 't/lab/labs': dataset does not exist\n"] * 50, verb="create")
    with pytest.raises(HostUnfit):
        Pool(Layout("t/lab"), "home", Commands("t/lab", zfs)).folder(WORK, "t/lab/labs")
    assert len(zfs.failures) == 49

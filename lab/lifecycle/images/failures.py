"""Engines that could not be built, or whose cluster did not form: recorded for a day.

Unless an engine is required, the next one of the blueprint is used during that time (order.py).

Only what may be the engine's own fault is recorded. Of an image's build that is CommandFailed (a
package that cannot be installed, a server that does not initialise) and RecipeFailed (the
recipe's own repository, its key). Of its first template it is NotReady while the nodes form their
cluster, and that or CommandFailed while their servers are prepared for the capture; NotReady only
if the nodes had the time that the settings give them. All other failures are the host's, and the
next engine would fail as well: no space, memory or permission, a missing tool, Debian's mirror out
of reach, storage or a hypervisor that fails, an interrupt.

If nobody answers at the recipe's own repository, and no other was asked before, it may be this
host's network: for some minutes the next engine is used, as if the repository had been out of reach
before the build (lab/imagebuild/reachable.py).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

from lab.errors import HostUnfit, LabError, OutOfReach
from lab.imagebuild.key import image_key
from lab.imagebuild.reachable import unreachable
from lab.imagebuild.recipe import Recipe
from lab.lifecycle.core.context import Context
from lab.paths import Home
from lab.remembered import forget, recall, remember
from lab.values import dataclass

LASTS = 86_400.0
"""Seconds for which a failed engine is not retried automatically."""

UNBUILT = "could not be built"
"""How an engine failed whose image was not made; that is no matter where the image is there."""


@dataclass(frozen=True)
class Failure:
    """How an engine failed."""

    recipe: str
    content: str
    """The key of the recipe's content at that time: a changed recipe is retried."""
    failed: str
    """``UNBUILT``, or "could not form a cluster"."""
    step: str
    """The innermost step, in which it failed."""
    what: str
    log: str
    at: float = 0.0

    def __str__(self) -> str:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(self.at))
        log = f" (log: {self.log})" if self.log else ""
        return f"{self.recipe} {self.failed} on {when}{log}"

    @property
    def remedy(self) -> str:
        """The command that retries."""
        return f'"lab image build {self.recipe}" tries again'


@contextmanager
def recorded(
    ctx: Context, recipe: Recipe, failed: str, log: Path, *kinds: type[LabError]
) -> Iterator[None]:
    """If the block fails with one of ``kinds``, that is recorded, in the file ``log`` as well.

    With OutOfReach, only that the recipe's repository does not answer.
    """
    try:
        yield
    except OutOfReach:
        unreachable(recipe, answers(ctx.home))
        raise
    except kinds as error:
        now = time.strftime("%Y-%m-%d %H:%M:%S")
        step = ctx.progress.failed or ctx.progress.under_way
        with suppress(OSError), log.open("a", encoding="utf-8") as file:
            file.write(f"\n{now} {recipe.name} {failed}, step {step}: {error}\n")
            file.writelines(f"  {line}\n" for line in error.details)
        found = Failure(
            recipe.name,
            _content(recipe),
            failed,
            step,
            str(error),
            str(log) if log.exists() else "",
        )
        with suppress(HostUnfit):  # a full disk: the failure itself is what counts
            remember(_memory(ctx.home), recipe.name, asdict(found))
        raise


def answers(home: Home) -> Path:
    """The file in which lab/imagebuild/reachable.py keeps which repositories answered."""
    return home.root / "reachable.json"


def withdraw(ctx: Context, recipe: str) -> None:
    """Remove the recorded failure of an engine: it works, or may be retried."""
    with suppress(HostUnfit):
        forget(_memory(ctx.home), recipe)


def recent(home: Home) -> dict[str, Failure]:
    """The failures of the last day, by recipe."""
    found, now = {}, time.time()
    for recipe, (at, value) in recall(_memory(home)).items():
        with suppress(TypeError):  # of another version
            if 0 <= now - at < LASTS:
                found[recipe] = Failure(**{**value, "at": at})
    return found


def failure_of(ctx: Context, recipe: Recipe) -> Failure | None:
    """The failure of a recipe as it is now, if it failed in the last day."""
    found = recent(ctx.home).get(recipe.name)
    return found if found is not None and found.content == _content(recipe) else None


def _content(recipe: Recipe) -> str:
    return image_key(recipe, volumes={})


def _memory(home: Home) -> Path:
    return home.root / "failures.json"

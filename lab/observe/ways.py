"""The ways in which nodes are asked: SQL through ports, pages, guest agents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from lab.hypervisor import Hypervisor
from lab.observe.account import Account
from lab.values import dataclass


@dataclass(frozen=True)
class Rows:
    """The result of a statement: no columns where it returns no rows."""

    columns: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]
    affected: int


@dataclass(frozen=True)
class NodeResults:
    """The results of statements on one node; ``error``: what ended them, with its exit code."""

    node: str
    results: tuple[Rows, ...]
    error: str = ""
    code: int = 0


class SqlAll(Protocol):
    """Runs statements on one connection; see ``sql.ask_all``."""

    def __call__(
        self,
        account: Account,
        port: int,
        statements: Sequence[str],
        *,
        timeout: float,
        whole: bool = False,
    ) -> list[Rows]:
        """Rows of each; raises NotReady or CommandFailed."""


class SqlText(Protocol):
    """Runs what a user wrote: any number of statements; see ``sql.ask_text``."""

    def __call__(
        self, account: Account, port: int, text: str, *, timeout: float, database: str = ""
    ) -> Iterator[Rows]:
        """Each result; raises NotReady or CommandFailed."""


class Page(Protocol):
    """The HTTP status of a page at a port; see ``page.status``."""

    def __call__(self, host: str, port: int, *, timeout: float) -> str:
        """The status; raises NotReady."""


@dataclass(frozen=True)
class Ways:
    """What a round of questions is asked through.

    ``kept``: connections to servers that outlive the round; None: each round makes its own. Proxies
    are never asked on these: which server answers is decided when a connection is made.
    """

    sql_all: SqlAll
    page: Page
    hypervisor: Hypervisor
    kept: SqlAll | None = None

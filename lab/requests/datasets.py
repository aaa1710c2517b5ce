"""Requests about datasets."""

from __future__ import annotations

from lab.datasets.live import Selection
from lab.requests.request import Request


class CreateDataset(Request, frozen=True, kw_only=True):
    """``create-dataset``: the first version of a dataset."""

    LATER = ("engine", "force", "settings", "my_cnf")
    LARGE = (
        "mask",
        "sql",
        "warm",
        "settings",
        "my_cnf",
        "tables",
        "where",
        "schema_only",
        "defaults_file",
    )

    name: str
    source: str
    """Its text, as of ``--from``."""
    blueprint: str = "galera"
    """What labs of it will be."""
    keep: int = 0
    """Versions that are kept, 0 for all."""
    mask: str = ""
    """Masking rules, applied to all of it before anything is captured."""
    sql: str = ""
    """Further SQL, executed after the load."""
    tables: tuple[str, ...] = ()
    """As ``where``, ``schema_only`` and ``defaults_file``: see ``selection``."""
    where: tuple[str, ...] = ()
    schema_only: tuple[str, ...] = ()
    defaults_file: str = ""
    warm: str = ""
    """Queries whose data labs have in memory; empty: small tables."""
    upload: str = ""
    """The dump of a source ``upload:``, below the home's uploads."""
    lab_created_at: float | None = None
    """Of a source ``lab:``, when that lab was created, in epoch seconds: another may have its name
    when the job runs."""
    engine: str = ""
    """A series of MariaDB, such as mariadb:10.11; empty: the default one."""
    shared: bool = False
    """For all projects."""
    force: bool = False
    """Also of a source that leaves no table."""
    settings: tuple[str, ...] = ()
    """Options of the servers that load and mask, NAME=VALUE."""
    my_cnf: str = ""
    """An option file of these servers, as text."""

    @property
    def selection(self) -> Selection:
        """What of a live server is loaded; its password is in the environment or a file."""
        return Selection(self.tables, self.where, self.schema_only, self.defaults_file)


class RefreshDataset(Request, frozen=True, kw_only=True):
    """``refresh-dataset``: the subject of the job; ``keep``: versions, None: as it was created.

    ``force``: also if the source has much less than the latest version.
    """

    LATER = ("force",)

    keep: int | None = None
    force: bool = False


class DeleteDataset(Request, frozen=True, kw_only=True):
    """``delete-dataset``: the subject of the job; ``defer``: with the last lab."""

    defer: bool = False

"""Requests about datasets."""

from __future__ import annotations

from lab.requests.request import Request


class CreateDataset(Request, frozen=True, kw_only=True):
    """``create-dataset``; the fields are those of ``dataset.create``.

    ``upload``: the dump of a source ``upload:``, below the home's uploads. ``lab_created_at``: of a
    source ``lab:``, when that lab was created, in epoch seconds: another may have its name when the
    job runs. ``shared``: for all projects.
    """

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
    blueprint: str = "galera"
    keep: int = 0
    mask: str = ""
    sql: str = ""
    tables: tuple[str, ...] = ()
    where: tuple[str, ...] = ()
    schema_only: tuple[str, ...] = ()
    defaults_file: str = ""
    warm: str = ""
    upload: str = ""
    lab_created_at: float | None = None
    engine: str = ""
    shared: bool = False
    force: bool = False
    settings: tuple[str, ...] = ()
    my_cnf: str = ""


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

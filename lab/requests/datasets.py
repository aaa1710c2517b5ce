"""Requests about datasets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from lab.names import ENGINE, LAB_NAME, WORD
from lab.request import EMPTY, HOST_ONLY, FieldMark, Request

if TYPE_CHECKING:
    from lab.datasets.selection import Selection

_Name = Annotated[str, Meta(max_length=4096)]


class CreateDataset(Request, frozen=True, kw_only=True):
    """A dataset to load. Paths, servers and `shared` are for administrators."""

    LATER = ("engine", "force", "settings", "my_cnf", "files")
    LARGE = (
        "mask",
        "sql",
        "files",
        "warm",
        "settings",
        "my_cnf",
        "tables",
        "where",
        "schema_only",
        "defaults_file",
    )

    name: Annotated[str, Meta(pattern=LAB_NAME, examples=["crm"])]
    source: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=4096,
            description="`generate:...`, `lab:NAME[@LABEL]`, `upload:ID`; for administrators also"
            " an absolute path on the host, or `mysql://user@host/database`.",
            examples=["generate:sysbench?tables=2&rows=100"],
        ),
    ]
    blueprint: Annotated[
        str,
        EMPTY,
        Meta(pattern=WORD, description="What labs of it will be; default: what the engine runs."),
    ] = ""
    keep: Annotated[
        int, Meta(ge=0, le=1000, description="How many versions a refresh keeps; 0: all.")
    ] = 0
    mask: Annotated[
        str, Meta(max_length=1 << 18, description="Masking rules, as in the file of `--mask`.")
    ] = ""
    sql: Annotated[
        str, Meta(max_length=1 << 19, description="SQL that is executed after the source.")
    ] = ""
    files: Annotated[tuple[str, ...], HOST_ONLY] = ()
    """The paths of further files of SQL, executed before ``sql``."""
    tables: Annotated[
        tuple[_Name, ...],
        Meta(max_length=200, description="Of a server: only these tables."),
    ] = ()
    where: Annotated[
        tuple[_Name, ...],
        Meta(max_length=200, description="Of a server: `DB.TABLE:CONDITION`."),
    ] = ()
    schema_only: Annotated[
        tuple[_Name, ...],
        Meta(max_length=200, description="Of a server: tables without rows."),
    ] = ()
    defaults_file: Annotated[
        str, Meta(max_length=4096, description="Of a server: a file of the host with `[client]`.")
    ] = ""
    warm: Annotated[
        str, Meta(max_length=1 << 16, description="Queries whose data labs have in memory.")
    ] = ""
    """Empty: small tables."""
    upload: Annotated[str, HOST_ONLY] = ""
    """The dump of a source ``upload:``, below the home's uploads."""
    lab_created_at: Annotated[float | None, HOST_ONLY] = None
    """Of a source ``lab:``, when that lab was created, in epoch seconds: another may have its name
    when the job runs."""
    engine: Annotated[
        str,
        EMPTY,
        Meta(
            pattern=ENGINE,
            description="What it is loaded by; default: the family that the source is of.",
            examples=["mysql"],
        ),
    ] = ""
    shared: Annotated[bool, Meta(description="All projects may use it.")] = False
    force: Annotated[bool, Meta(description="Also of a source that leaves no table.")] = False
    settings: Annotated[
        tuple[Annotated[str, Meta(max_length=1024)], ...],
        Meta(
            max_length=100,
            description="Options of the servers that load and mask, `NAME=VALUE`.",
            examples=[["innodb_ft_min_token_size=2"]],
        ),
    ] = ()
    my_cnf: Annotated[
        str, Meta(max_length=1 << 16, description="The same, as the text of an option file.")
    ] = ""

    @property
    def selection(self) -> Selection:
        """What of a live server is loaded; its password is in the environment or a file."""
        from lab.datasets.selection import Selection

        return Selection(self.tables, self.where, self.schema_only, self.defaults_file)


class RefreshDataset(Request, frozen=True, kw_only=True):
    """The next version of a dataset."""

    LATER = ("force", "engine")

    name: Annotated[str, FieldMark("about", "dataset")] = ""
    force: Annotated[
        bool, Meta(description="Also if the source has much less than the latest version.")
    ] = False
    engine: Annotated[
        str,
        EMPTY,
        Meta(
            pattern=ENGINE,
            description="What it is loaded by; default: as the latest version.",
        ),
    ] = ""
    keep: Annotated[int | None, HOST_ONLY] = None
    """Versions; None: as it was created."""


class DeleteDataset(Request, frozen=True, kw_only=True):
    """The removal of a dataset, or of a version."""

    which: Annotated[str, FieldMark("about", "dataset")] = ""
    defer: Annotated[
        bool, Meta(description="What labs use is removed with the last of these labs.")
    ] = False

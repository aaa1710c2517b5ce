"""The models of datasets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import BaseModel, Field

from lab.api.http.models import ENGINE, NAME, WORD, Asked
from lab.api.http.units import Time
from lab.views import datasets as views
from lab.views.datasets import DatasetView

_Names = Annotated[list[Annotated[str, Field(max_length=4096)]], Field(max_length=200)]


class DatasetRequest(Asked):
    """A dataset to load. Paths, servers and `shared` are for administrators."""

    name: Annotated[str, Field(pattern=NAME, examples=["crm"])]
    source: Annotated[
        str,
        Field(
            min_length=1,
            max_length=4096,
            description="`generate:...`, `lab:NAME[@LABEL]`, `upload:ID`; for administrators also"
            " an absolute path on the host, or `mysql://user@host/database`.",
            examples=["generate:sysbench?tables=2&rows=100"],
        ),
    ]
    blueprint: Annotated[
        str, Field(pattern=WORD, description="What labs of it will be; its engine is MariaDB.")
    ] = "galera"
    keep: Annotated[
        int, Field(ge=0, le=1000, description="How many versions a refresh keeps; 0: all.")
    ] = 0
    mask: Annotated[
        str, Field(max_length=1 << 18, description="Masking rules, as in the file of `--mask`.")
    ] = ""
    sql: Annotated[
        str, Field(max_length=1 << 19, description="SQL that is executed after the source.")
    ] = ""
    tables: Annotated[
        _Names, Field(default_factory=list, description="Of a server: only these tables.")
    ]
    where: Annotated[
        _Names, Field(default_factory=list, description="Of a server: `DB.TABLE:CONDITION`.")
    ]
    schema_only: Annotated[
        _Names, Field(default_factory=list, description="Of a server: tables without rows.")
    ]
    defaults_file: Annotated[
        str, Field(max_length=4096, description="Of a server: a file of the host with `[client]`.")
    ] = ""
    warm: Annotated[
        str, Field(max_length=1 << 16, description="Queries whose data labs have in memory.")
    ] = ""
    engine: Annotated[
        str | None,
        Field(
            pattern=ENGINE,
            description="A series of MariaDB; default: mariadb.",
            examples=["mariadb:10.11"],
        ),
    ] = None
    settings: Annotated[
        list[Annotated[str, Field(max_length=1024)]],
        Field(
            max_length=100,
            default_factory=list,
            description="Options of the servers that load and mask, `NAME=VALUE`.",
            examples=[["innodb_ft_min_token_size=2"]],
        ),
    ]
    my_cnf: Annotated[
        str, Field(max_length=1 << 16, description="The same, as the text of an option file.")
    ] = ""
    force: Annotated[bool, Field(description="Also of a source that leaves no table.")] = False
    shared: Annotated[bool, Field(description="All projects may use it.")] = False


class DatasetTable(BaseModel):
    """A table of a dataset, as estimated by the server."""

    database: str
    name: str
    engine: str
    rows: int
    size: Annotated[int, Field(description="In bytes.")]


class DatasetVersion(BaseModel):
    """A version of a dataset."""

    name: Annotated[str, Field(examples=["shop"])]
    version: int
    state: Annotated[str, Field(description="building, ready, or removing: no new lab gets it.")]
    image: Annotated[str, Field(description="The key of its image.")]
    engine: str
    source: Annotated[str, Field(description="Without passwords.", examples=["lab:shop"])]
    size: Annotated[int, Field(description="In bytes.")]
    loaded: Annotated[int, Field(description="Bytes of SQL.")]
    tables: list[DatasetTable]
    created_at: Time
    seconds: Annotated[float, Field(description="Duration of its creation, in seconds.")]
    masked: bool
    used_by: Annotated[list[str], Field(description="Labs that the caller sees.")]
    project: Annotated[str, Field(description="Empty: for all projects.")]
    blueprint: str
    keep: Annotated[int, Field(description="How many versions a refresh keeps; 0: all.")]
    columns: Annotated[
        list[str],
        Field(
            description="Empty in the list of all datasets.",
            examples=[["shop.customers.mail varchar"]],
        ),
    ]
    options: Annotated[list[str], Field(description="Of the servers that loaded and masked it.")]
    accounts: Annotated[list[str], Field(description="Those that came with it.")]
    definers: Annotated[
        list[str],
        Field(description="Of views, routines, triggers and events, that are no account."),
    ]

    @staticmethod
    def of(view: DatasetView, used_by: list[str]) -> DatasetVersion:
        """``view`` as the API returns it, with the users that the caller may see."""
        found = {**vars(view), "used_by": used_by, "columns": list(view.columns)}
        found |= {key: list(found[key]) for key in ("options", "accounts", "definers")}
        found["tables"] = [_table(one) for one in view.tables]
        return DatasetVersion(**found)


def _table(one: Mapping[str, str | int]) -> DatasetTable:
    return DatasetTable.model_validate(dict(one))


class LastRefresh(BaseModel):
    """The latest refresh of a dataset, whoever requested it."""

    job: str
    state: str
    at: Time
    error: Annotated[str, Field(description="Why it failed, or empty.")]


class Dataset(BaseModel):
    """A dataset: its versions, the oldest first."""

    name: Annotated[str, Field(examples=["shop"])]
    project: Annotated[str, Field(description="Empty: for all projects.")]
    versions: list[DatasetVersion]
    refresh: Annotated[float | None, Field(description="The interval of its schedule, in seconds.")]
    next_refresh_at: Time | None
    last_refresh: LastRefresh | None


class PersonalColumn(BaseModel):
    """A column that looks personal and that no masking rule covers."""

    column: Annotated[str, Field(examples=["shop.customers.mail"])]
    reason: str
    rule: Annotated[str, Field(description="The masking rule that fits.")]

    @staticmethod
    def of(view: views.PersonalColumn) -> PersonalColumn:
        """``view`` as the API returns it."""
        return PersonalColumn(**vars(view))

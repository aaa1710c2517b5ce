"""The request that makes a dataset."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from lab.api.http.models import ENGINE, NAME, WORD, Asked

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

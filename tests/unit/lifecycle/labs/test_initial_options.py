"""Options that a server has from its initialisation are refused before anything boots."""

from __future__ import annotations

import pytest

from lab.blueprints import with_options
from lab.errors import InvalidSpec
from lab.lifecycle.images.initial import check_initial
from lab.options import OptionFile, Options

ENGINE, MYSQL = "mariadb", "mysql"


def check(engine: str, options: Options) -> None:
    check_initial(with_options("single", options, 1), [engine], ["server"])


@pytest.mark.parametrize(
    "options",
    [
        Options(set=("lower_case_table_names=1",)),
        Options(set=("loose-lower-case-table-names=2",)),
        Options(set=("innodb_page_size=32k",)),
        Options(my_cnf=(OptionFile("[mysqld]\n Lower_Case_Table_Names = 1 # as on Windows\n"),)),
    ],
)
def test_what_mysql_cannot_have(options: Options) -> None:
    """Protects from a boot of a minute whose error advises to change what cannot be had."""
    with pytest.raises(InvalidSpec, match="what its data directory was initialised with") as error:
        check(MYSQL, options)
    assert "leave it out" in (error.value.hint or "")


@pytest.mark.parametrize(
    ("engine", "options"),
    [
        (ENGINE, Options(set=("lower_case_table_names=1",))),
        (MYSQL, Options(set=("lower_case_table_names=0", "max_connections=5"))),
        (MYSQL, Options(my_cnf=(OptionFile("# lower_case_table_names=1\n"),))),
        (MYSQL, Options(my_cnf=(OptionFile("lower_case_table_names=1\n", "replica"),))),
        (ENGINE, Options(set=("innodb_page_size=16K",))),
    ],
)
def test_what_servers_can_have(engine: str, options: Options) -> None:
    check(engine, options)


def test_mariadb_has_one_page_size() -> None:
    with pytest.raises(InvalidSpec, match="which is 16384 or 16k in lab's images"):
        check(ENGINE, Options(set=("innodb_page_size=4k",)))

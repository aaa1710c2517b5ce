"""Recipes of Percona's servers as a whole, built against stand-ins for Percona's packages.

Debian's packages are the real ones. What that proves is in apt_standin.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.imagebuild import repository
from lab.imagebuild.recipe import Recipe, load
from tests.support.standin_builds import (
    NEEDED,
    Built,
    built_of,
    installed,
    look,
    outside_network,
    served,
    short_directory,
)

pytestmark = [pytest.mark.rare, NEEDED]

RECIPE = load("percona-xtradb-cluster")
SERVER = load("percona-server-8.0")


@pytest.fixture(scope="module", params=[RECIPE, SERVER], ids=lambda recipe: recipe.name)
def described(request: pytest.FixtureRequest) -> Recipe:
    """A recipe of Debian 13, and one of Debian 12 whose files are links."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def top(described: Recipe) -> Iterator[Path]:
    with short_directory(described.engine) as path:
        yield path


@pytest.fixture(scope="module")
def recipe(described: Recipe, top: Path) -> Iterator[Recipe]:
    with served(described, top) as here:
        yield here


@pytest.fixture(scope="module")
def built(recipe: Recipe, top: Path) -> Built:
    return built_of(recipe, top)


def test_it_is_built_whole(built: Built, recipe: Recipe) -> None:
    version = {"trixie": "8.4.10-10", "bookworm": "8.0.45-36"}[recipe.suite]
    assert (built.made.engine, built.made.engine_version) == (recipe.engine, version)
    assert set(built.made.disks) == {"os", "data", "log"}
    assert {"qpress", "percona-telemetry-agent", *recipe.packages} <= set(built.made.packages)


def test_no_server_ran_in_the_hosts_network(built: Built) -> None:
    """One start, the recipe's, in a network namespace of its own."""
    [start] = built.starts
    namespace, arguments = start.split(" ", 1)
    assert namespace != outside_network()
    assert "--no-defaults" in arguments
    assert "--skip-networking" in arguments


def test_the_packages_start_one_in_an_empty_directory(recipe: Recipe, top: Path) -> None:
    """The stand-in does what the real package does, unless the directory is occupied."""
    found = Built(recipe)
    look(installed(recipe, top, [recipe.version_package]), found)
    [start] = found.starts
    assert start.split(" ")[0] == outside_network()
    assert "--no-defaults" not in start


def test_statements_came_after_the_cluster_was_ready(built: Built) -> None:
    """Refused ones would have ended the build; these are all that there are to be."""
    kinds = [line.split()[0] for line in built.statements]
    assert kinds == ["INSTALL", "CREATE", "GRANT", "ALTER"]


def test_the_data_are_ready_to_be_cloned(built: Built, recipe: Recipe) -> None:
    """Cleanly closed, owned by the server's account, and without an identity."""
    state = built.files.get("var/lib/mysql/grastate.dat", "")
    assert ("safe_to_bootstrap: 1" in state) == (recipe.engine == RECIPE.engine)
    assert "var/lib/mysql/ibdata1" in built.files
    assert "var/lib/mysql/#innodb_redo" in built.files
    gone = {"auto.cnf", "galera.cache", "gvwstate.dat", ".lab"}
    assert not {name for name in gone if f"var/lib/mysql/{name}" in built.files}
    assert set(built.owners.values()) == {RECIPE.user}


def test_the_unit_starts_in_the_guests_own_tree(built: Built) -> None:
    """With what the guest masks, by the guest's own systemd; the packaged one is not used."""
    assert built.files["etc/systemd/system/remote-fs.target"] == "-> /dev/null"
    assert built.verified.startswith("0"), built.verified
    assert RECIPE.service not in built.verified
    assert "Requires=" not in built.files["etc/systemd/system/mysql.service"]
    wants = "etc/systemd/system/multi-user.target.wants/mysql.service"
    assert built.files[wants] == "-> ../mysql.service"


def test_telemetry_never_starts(built: Built) -> None:
    unit = "etc/systemd/system/percona-telemetry-agent.service"
    assert built.files[unit] == "-> /dev/null"


def test_only_our_options_apply(built: Built, recipe: Recipe) -> None:
    options = [name for name in built.files if name.startswith("etc/mysql/mysql.conf.d/")]
    assert options == [], "the node's own comes with its seed"
    main = "mysql.cnf" if recipe.engine == RECIPE.engine else "my.cnf"
    assert "!includedir /etc/mysql/mysql.conf.d/" in built.files[f"etc/mysql/{main}"]


def test_the_source_names_the_key_inside(built: Built) -> None:
    [source] = {
        text for name, text in built.files.items() if name.endswith("lab-recipe.list")
    }  # fmt: skip
    assert all(f"signed-by={repository.KEYRING}" in line for line in source.splitlines())
    assert repository.KEYRING.lstrip("/") in built.files

"""Engines are lines of data: what each name means for each blueprint, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.blueprints import KNOWN, blueprint
from lab.config import enginefile
from lab.errors import InvalidSpec
from lab.imagebuild.recipe import load, recipes


@pytest.mark.parametrize(
    ("plan", "engine", "recipe"),
    [
        ("galera", "mariadb", "mariadb"),
        ("galera", "mariadb:11.8", "mariadb"),
        ("galera", "mariadb:10.11", "mariadb-10.11"),
        ("single", "mariadb:10.11", "mariadb-10.11"),
        ("pxc", "mariadb:10.11", "mariadb-10.11"),
        ("pxc", "percona", "percona-xtradb-cluster"),
        ("pxc", "percona:8.4", "percona-xtradb-cluster"),
        ("pxc", "percona:8.0", "percona-xtradb-cluster-8.0"),
        ("single", "percona", "percona-server"),
        ("replication", "percona:8.0", "percona-server-8.0"),
        ("group", "percona:8.4", "percona-server"),
        ("group", "mysql", "mysql"),
        ("replication", "mysql:9.7", "mysql"),
        ("group", "mysql:8.4", "mysql-8.4"),
        ("single", "mysql:26.10", "mysql-26.10"),
        ("galera", "mariadb:11.4", "mariadb-11.4"),
        # as requests have always been able to
        ("pxc", "percona-xtradb-cluster", "percona-xtradb-cluster"),
    ],
)
def test_what_an_engine_means(plan: str, engine: str, recipe: str) -> None:
    assert enginefile.recipe(engine, blueprint(plan).engines, plan) == recipe


def test_versions_by_the_calendar_follow_the_others() -> None:
    """Protects from a sort as texts, and from 26.10 before 26.7."""
    versions = ["26.10.0", "9.7.1", "26.7.0", "8.4.3", "8.0.36", "26.10.1"]
    assert sorted(versions, key=enginefile.numbers) == [
        "8.0.36", "8.4.3", "9.7.1", "26.7.0", "26.10.0", "26.10.1",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("plan", "engine", "said", "hint"),
    [
        ("galera", "mariadb:10.1", "no series '10.1' of mariadb", "mariadb:11.8, mariadb:11.4"),
        ("galera", "mariadb:", "no series '' of mariadb", "mariadb:11.8"),
        ("group", "percona:5.7", "no series '5.7' of percona for group", "percona:8.4"),
        ("galera", "marriadb", "cannot run on the engine 'marriadb'", "did you mean 'mariadb'?"),
        ("galera", "percona", "cannot run on the engine 'percona'", "engines: mariadb"),
        ("group", "mariadb:10.11", "cannot run on the engine", "engines: mysql, mysql:9.7"),
        ("pxc", "percona-server", "cannot run on the engine", "did you mean 'percona"),
        ("single", "percona-xtradb-cluster", "cannot run on the engine", "engines: mariadb"),
    ],
)
def test_what_is_refused(plan: str, engine: str, said: str, hint: str) -> None:
    """Protects from a message that does not say what there is."""
    with pytest.raises(InvalidSpec) as refused:
        enginefile.recipe(engine, blueprint(plan).engines, plan)
    assert said in str(refused.value)
    assert hint in refused.value.hint


def test_all_recipes_are_of_a_series_and_all_series_have_a_recipe() -> None:
    """Protects from a line without its directory, and a directory that nobody can request."""
    named = [name for family in enginefile.families() for _, name in family.series]
    engines = {name for name in recipes() if load(name).service in ("mariadb.service",
                                                                    "mysql.service")}  # fmt: skip
    assert len(named) == len(set(named))
    assert set(named) == engines
    families = {family.name for family in enginefile.families()}
    for name in KNOWN:
        assert set(blueprint(name).engines) <= families
    for family in enginefile.families():
        assert not family.runs or family.runs in families


def test_every_name_that_is_offered_is_taken() -> None:
    """Protects Tab and the hints."""
    assert enginefile.engines() == (
        "mariadb", "mariadb:11.8", "mariadb:11.4", "mariadb:10.11", "mariadb:10.6",
        "mysql", "mysql:9.7", "mysql:26.10", "mysql:8.4", "mysql:8.0",
        "percona", "percona:8.4", "percona:8.0",
    )  # fmt: skip
    for name in KNOWN:
        plan = blueprint(name)
        valid = enginefile.known(plan.engines)
        assert set(valid) <= set(enginefile.engines())
        for engine in valid:
            recipe = enginefile.recipe(engine, plan.engines, name)
            assert recipe in enginefile.recipes_of(plan.engines)


@pytest.mark.parametrize(
    ("text", "recipe"),
    [
        ("mariadb", "mariadb"),
        ("mariadb:10.11", "mariadb-10.11"),
        ("mysql", "mysql"),
        ("percona-server-8.0", "percona-server-8.0"),
        ("unknown", "unknown"),
    ],
)
def test_the_image_that_is_built(text: str, recipe: str) -> None:
    assert enginefile.image_recipe(text) == recipe


def test_an_engine_of_several_images_names_none() -> None:
    with pytest.raises(InvalidSpec, match=r"percona:8\.4 has 2 recipes") as refused:
        enginefile.image_recipe("percona:8.4")
    assert refused.value.hint == "name one: percona-xtradb-cluster, percona-server"
    with pytest.raises(InvalidSpec, match="no series '9'"):
        enginefile.image_recipe("mariadb:9")


def test_a_further_series_is_a_line(tmp_path: Path) -> None:
    """Protects the promise of images/engines.toml: no code names a series."""
    text = enginefile.FILE.read_text()
    file = tmp_path / "engines.toml"
    added = '"10.6" = "mariadb-10.6"\n"12.3" = "mariadb-12.3"\n'
    file.write_text(text.replace('"10.6" = "mariadb-10.6"\n', added))
    [mariadb] = [one for one in enginefile.families(file) if one.name == "mariadb"]
    assert mariadb.series[-1] == ("12.3", "mariadb-12.3")
    assert mariadb.suits(blueprint("galera").engines)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('title = "MySQL"\n', "", "[mysql.mysql]: title is missing"),
        ('title = "MySQL"', "titles = 1", "'titles'"),
        ('"9.7" = "mysql"', '"nine" = "mysql"', "a table of recipes by series"),
        ('"9.7" = "mysql"', '"9.7" = "../mysql"', "a table of recipes by series"),
        ('"9.7" = "mysql"', '"9.7" = "mysql-9.7"', "the recipe of the first series of mysql"),
        ("[mysql.mysql]\n", "[mysql]\nx = 1\n[mysql.mysql]\n", "no table"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, old: str, new: str, said: str) -> None:
    file = tmp_path / "engines.toml"
    text = enginefile.FILE.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    with pytest.raises(InvalidSpec) as refused:
        enginefile.families(file)
    assert said in str(refused.value)
    assert str(file) in str(refused.value)


def test_the_engine_of_each_recipe_is_of_its_family() -> None:
    """Protects records and images: they have the engine of the recipe, not the family's name."""
    for family in enginefile.families():
        for _, name in family.series:
            assert enginefile.family_of(load(name).engine) is family
        assert enginefile.family_of(family.name) is family


def test_accounts_of_a_family_authenticate_as_ever() -> None:
    """Protects labs of earlier versions: no record says how their accounts authenticate.

    A family is added here. Before the value of one may change, records have to keep it, with a
    migration that writes the former one for the labs that are there.
    """
    assert {family.name: family.authentication for family in enginefile.families()} == {
        "mariadb": "mysql_native_password",
        "mysql": "caching_sha2_password",
        "percona-xtradb-cluster": "mysql_native_password",
        "percona-server": "caching_sha2_password",
    }


def test_an_engine_that_is_not_there_is_as_mysql_with_older_passwords() -> None:
    """Protects views of labs that another version of lab made."""
    found = enginefile.family_of("another")
    assert (found.name, found.title, found.series) == ("another", "another", ())
    assert (found.dialect, found.authentication) == ("mysql", "mysql_native_password")
    assert not found.loads_datasets

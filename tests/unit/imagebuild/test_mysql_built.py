"""Recipes of MySQL from Oracle's repository as a whole, built against stand-ins for its packages.

Debian's packages are the real ones. What that proves is in apt_standin.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.errors import LabError
from lab.imagebuild import repository
from lab.imagebuild.build import provision
from lab.imagebuild.manifest import upstream
from lab.imagebuild.recipe import Recipe, load
from lab.run import run
from tests import ROOT
from tests.support.apt_standin import OF_ORACLE, PLUGINS, SHUT
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

RECIPES = [load(name) for name in ("mysql-8.0", "mysql-8.4", "mysql-26.10")]
CONTROL = load("mysql-26.10")
DATA = "var/lib/mysql"
LEFT = ("auto.cnf", "binlog.index", "ib_buffer_pool", "private_key.pem", "ca-key.pem", ".lab")
"""What a server leaves in its data directory that clones must not share."""


@pytest.fixture(scope="module", params=RECIPES, ids=lambda recipe: recipe.name)
def described(request: pytest.FixtureRequest) -> Recipe:
    """A recipe of Debian 12, and two of Debian 13."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def top(described: Recipe) -> Iterator[Path]:
    with short_directory(described.name) as path:
        yield path


@pytest.fixture(scope="module")
def recipe(described: Recipe, top: Path) -> Iterator[Recipe]:
    with served(described, top) as here:
        yield here


@pytest.fixture(scope="module")
def built(recipe: Recipe, top: Path) -> Built:
    return built_of(recipe, top)


def test_it_is_built_whole(built: Built, recipe: Recipe) -> None:
    """With Oracle's own mysql-common, and without the package that starts a server."""
    assert recipe.repository is not None
    version = OF_ORACLE[recipe.repository.component]
    assert (built.made.engine, built.made.engine_version) == ("mysql", upstream(version))
    assert set(built.made.disks) == {"os", "data", "log"}
    core = {"mysql-common", "mysql-community-client-core", "mysql-community-client-plugins"}
    assert {*core, *recipe.packages} <= set(built.made.packages)
    assert {built.made.packages[name] for name in core} == {version}
    assert not {"mysql-community-server", "mysql-client"} & set(built.made.packages)


def test_no_server_ran_in_the_hosts_network(built: Built) -> None:
    """One start, the recipe's, in a network namespace of its own."""
    [start] = built.starts
    namespace, arguments = start.split(" ", 1)
    assert namespace != outside_network()
    assert "--no-defaults" in arguments
    assert "--skip-networking" in arguments


def test_these_are_all_statements(built: Built) -> None:
    assert [" ".join(line.split()[:3]) for line in built.statements] == [
        "CREATE USER lab@'%'", "INSTALL PLUGIN auth_socket", "ALTER USER root@localhost",
        "GRANT ALL PRIVILEGES",
    ]  # fmt: skip


def test_the_data_are_ready_to_be_cloned(built: Built) -> None:
    """Cleanly closed, owned by the account that is lab's own, and without an identity."""
    assert built.files[f"{DATA}/ibdata1"] == SHUT
    assert f"{DATA}/#innodb_redo" in built.files
    assert not {name for name in LEFT if f"{DATA}/{name}" in built.files}
    assert built.owners == {DATA: "mysql", f"{DATA}/ibdata1": "mysql"}


def test_the_unit_starts_in_the_guests_own_tree(built: Built, recipe: Recipe) -> None:
    """With what the guest masks, by the guest's own systemd; no package has a unit."""
    assert built.verified.startswith("0"), built.verified
    assert recipe.service not in built.verified
    wants = "etc/systemd/system/multi-user.target.wants/mysql.service"
    assert built.files[wants] == "-> ../mysql.service"


def test_only_our_options_apply(built: Built) -> None:
    """Wherever the packages' alternatives lead: MariaDB's, which sysbench brings, are there."""
    assert built.options() == "!includedir /etc/mysql/mysql.conf.d/\n"
    options = [name for name in built.files if name.startswith("etc/mysql/mysql.conf.d/")]
    assert options == [], "the node's own comes with its seed"


def test_the_source_names_the_key_inside(built: Built) -> None:
    [source] = {text for name, text in built.files.items() if name.endswith("lab-recipe.list")}
    assert all(f"signed-by={repository.KEYRING}" in line for line in source.splitlines())
    assert repository.KEYRING.lstrip("/") in built.files


def test_libraries_that_labs_load_are_in_the_core_package() -> None:
    texts = [(ROOT / f"lab/blueprints/{name}.py").read_text() for name in ("dialects", "group")]
    loaded = set(re.findall(r"plugin_load_add = (\w+)\.so", "".join(texts)))
    assert {"group_replication", "semisync_source"} <= loaded <= set(PLUGINS)


@pytest.fixture(scope="module")
def control() -> Iterator[tuple[Recipe, Path]]:
    """A recipe, and a root file system with the whole server's package, not provisioned."""
    with short_directory("control") as top, served(CONTROL, top) as here:
        packages = ["mysql-community-server", "systemd", "openssl"]
        yield here, installed(here, top, packages)


def test_the_whole_package_starts_one(control: tuple[Recipe, Path]) -> None:
    """Protects the recipes' choice of packages: this one starts a server on the host's network.

    Its question for root's password is not answered, so root logs in by the socket.
    """
    recipe, root = control
    found = Built(recipe)
    look(root, found)
    [start] = found.starts
    assert start.split(" ")[0] == outside_network()
    assert "--skip-networking" not in start
    assert [line.split()[0] for line in found.statements] == ["INSTALL", "ALTER"]
    assert {f"{DATA}/auto.cnf", f"{DATA}/private_key.pem"} <= set(found.files)


def test_what_provisioning_leaves_out_is_seen(control: tuple[Recipe, Path], tmp_path: Path) -> None:
    """The stand-ins show what the script forgets: without these lines it fails, or leaves more.

    As after the recipe's own packages, there is no account and no directory.
    """
    recipe, root = control
    run(["rm", "-rf", root / DATA, root / "var/lib/mysql-files", root / "run/mysqld"], timeout=60)
    run(["chroot", root, "userdel", "mysql"], timeout=60)
    whole = (recipe.directory / "provision").read_text()
    copy, log = tmp_path / "copy", tmp_path / "provision.log"
    copy.mkdir()

    def provisioned(without: str = "", instead: str = "") -> set[str]:
        assert without in whole
        (copy / "provision").write_text(whole.replace(without, instead))
        log.unlink(missing_ok=True)
        provision(copy, root, log)
        found = Built(recipe)
        look(root, found)
        assert found.owners == {DATA: "mysql", f"{DATA}/ibdata1": "mysql"}
        return {name for name in LEFT if f"{DATA}/{name}" in found.files}

    def refused(without: str, said: str, instead: str = "") -> None:
        with pytest.raises(LabError):
            provisioned(without, instead)
        assert said in log.read_text(errors="replace")

    refused(
        "printf 'u mysql - \"MySQL Server\" /var/lib/mysql\\n' | systemd-sysusers -\n", "invalid"
    )
    refused("install -d -o mysql -g mysql -m 750 /var/lib/mysql\n", "No such file")
    refused(" --secure-file-priv=NULL", "Failed to access directory for --secure-file-priv")
    refused("--loose-caching-sha2-password-auto-generate-rsa-keys=OFF", "there are keys")
    refused("--loose-sha256", "unknown variable", "--sha256")
    refused("INSTALL PLUGIN auth_socket SONAME 'auth_socket.so';", "ERROR 1524")
    user = "caching_sha2_password BY RANDOM PASSWORD ACCOUNT LOCK"
    refused(f'    sql "$user {user}"\n', "ERROR 1410")
    refused("$by mysql_tzinfo_to_sql /usr/share/zoneinfo 2>/dev/null |", "0 time zones were loaded")
    assert provisioned() == set()
    refused("find /var/lib/mysql -mindepth 1 -delete\n", "has files in it")
    assert provisioned(" --skip-log-bin") == {"binlog.index"}
    assert provisioned("--loose-auto-generate-certs=OFF") == {"ca-key.pem"}
    assert provisioned("rm -f /var/lib/mysql/auto.cnf") == {"auto.cnf"}
    assert provisioned("--innodb-buffer-pool-dump-at-shutdown=OFF") == {"ib_buffer_pool"}

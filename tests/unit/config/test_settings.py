"""Protects: the order of precedence, and that every mistake names its place and its key."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lab.config import servefile
from lab.config.settings import Settings, config_files, load
from lab.errors import InvalidSpec
from lab.options import OptionFile
from lab.units import GIB, MIB


def config(tmp_path: Path, text: str, name: str = "config.toml") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def load_text(tmp_path: Path, text: str) -> Settings:
    return load(env={}, files=[config(tmp_path, text)])


def test_flag_beats_environment_beats_file_beats_default(tmp_path: Path) -> None:
    files = [
        config(tmp_path, 'hypervisor = "fake"\nowner = "mine"', "mine.toml"),
        config(tmp_path, 'owner = "all"\nspace_floor = "3G"\nmemory_floor = 5', "all.toml"),
    ]
    env = {"LAB_MEMORY_FLOOR": "1G", "LAB_OWNER": "ci"}
    settings = load({"owner": "flag", "storage": None}, env=env, files=files)
    assert settings.owner == "flag"
    assert settings.memory_floor == GIB
    assert settings.hypervisor == "fake"
    assert settings.space_floor == 3 * GIB
    assert settings.storage == "qcow2"
    assert settings.sources == {
        "owner": "--owner",
        "memory_floor": "LAB_MEMORY_FLOOR",
        "hypervisor": str(files[0]),
        "space_floor": str(files[1]),
    }


def test_defaults_need_no_file(tmp_path: Path) -> None:
    settings = load(env={}, files=[tmp_path / "absent.toml"])
    assert settings.port_range == (23306, 28999)
    assert settings.default_ttl is None
    assert settings.owner


def test_every_key_from_a_file(tmp_path: Path) -> None:
    settings = load_text(
        tmp_path,
        f"""
        home = "{tmp_path}"
        hypervisor = "fake"
        libvirt_uri = "test:///default"
        storage = "fake"
        accelerator = "tcg"
        default_ttl = "2h"
        port_range = [30000, 30010]
        ready_timeout = 90
        memory_floor = "256M"
        space_floor = 1024
        owner = "me"
        publish = "0.0.0.0"
        publish_name = "Labs.Example"
        """,
    )
    assert (settings.publish, settings.published_as) == ("0.0.0.0", "labs.example")  # noqa: S104
    assert settings.home.root == tmp_path
    assert settings.default_ttl == 7200.0
    assert settings.port_range == (30000, 30010)
    assert settings.ready_timeout == 90.0
    assert (settings.memory_floor, settings.space_floor) == (256 * MIB, 1024)


def test_the_environment_says_the_same_in_text(tmp_path: Path) -> None:
    env = {
        "LAB_HOME": str(tmp_path),
        "LAB_PORT_RANGE": "30000-30010",
        "LAB_READY_TIMEOUT": "5m",
        "LAB_DEFAULT_TTL": "none",
        "LAB_STORAGE": "",
        "LAB_SOMETHING_ELSE": "not ours",
    }
    settings = load(env=env, files=[config(tmp_path, 'default_ttl = "1h"')])
    assert settings.home.root == tmp_path
    assert settings.port_range == (30000, 30010)
    assert settings.ready_timeout == 300.0
    assert settings.default_ttl is None
    assert settings.storage == "qcow2"


@pytest.mark.parametrize(
    ("text", "says", "hint"),
    [
        ('ownr = "x"', "unknown key 'ownr'", "did you mean 'owner'"),
        ("zzz = 1", "unknown key 'zzz'", "known keys: home"),
        ("owner = 3", "owner is 3, expected a name", ""),
        ("ready_timeout = true", "ready_timeout is True, expected seconds", ""),
        ("ready_timeout = 0", "ready_timeout is 0", ""),
        ('memory_floor = "lots"', "memory_floor: 'lots' is not a size", "768M"),
        ("memory_floor = -1", "memory_floor is -1", ""),
        ('hypervisor = "libvrt"', "hypervisor: 'libvrt' is unknown", "did you mean 'libvirt'"),
        (
            'hypervisor = "zzz"',
            "hypervisor: 'zzz' is unknown",
            "one of auto, libvirt",
        ),
        ("port_range = [1, 2, 3]", "port_range is [1, 2, 3]", ""),
        ('port_range = "9-8"', "port_range: 9-8 is not a range", "23306"),
        ('publish = "::1"', "publish: '::1' is not an IPv4 address", "publish_name"),
        ('publish = "labs.example"', "'labs.example' is not an IPv4 address", "publish_name"),
        (
            'publish = "0.0.0.0"',
            "publish is 0.0.0.0, but publish_name is not set",
            "LAB_PUBLISH_NAME",
        ),
        ('publish_name = "10.0.0.300"', "'10.0.0.300' is not an IPv4 address", "10.0.0.5"),
        ('publish_name = "a b"', "publish_name: 'a b' is not a host name", "labs.example"),
        ('default_ttl = "soon"', "default_ttl: 'soon' is not a duration", "2h"),
        ("owner = ", "is not valid TOML", ""),
    ],
)
def test_a_mistake_names_file_and_key(tmp_path: Path, text: str, says: str, hint: str) -> None:
    with pytest.raises(InvalidSpec) as caught:
        load_text(tmp_path, text)
    assert str(tmp_path / "config.toml") in caught.value.what
    assert says in caught.value.what
    assert hint in caught.value.hint


def test_a_mistake_names_the_variable_or_the_flag() -> None:
    with pytest.raises(InvalidSpec, match=r"LAB_PORT_RANGE: port_range is 'x'"):
        load(env={"LAB_PORT_RANGE": "x"}, files=[])
    with pytest.raises(InvalidSpec, match=r"--ready-timeout: ready_timeout: 'x'"):
        load({"ready_timeout": "x"}, env={}, files=[])


def test_a_pool_means_zfs_unless_something_else_is_said(tmp_path: Path) -> None:
    """Protects: one word in the config is enough to use ZVols."""
    settings = load_text(tmp_path, 'pool = "tank/lab"')
    assert (settings.storage, settings.pool) == ("zfs", "tank/lab")
    assert "pool, from " in settings.sources["storage"]
    assert load(env={"LAB_POOL": "tank/a/b"}, files=[]).storage == "zfs"
    settings = load_text(tmp_path, 'pool = "tank/lab"\nstorage = "qcow2"')
    assert (settings.storage, settings.pool) == ("qcow2", "tank/lab")
    assert load({"storage": "qcow2"}, env={"LAB_POOL": "tank/lab"}, files=[]).storage == "qcow2"
    with pytest.raises(InvalidSpec, match=r"config.toml: storage is zfs, but no pool") as caught:
        load_text(tmp_path, 'storage = "zfs"')
    assert "LAB_POOL" in caught.value.hint


@pytest.mark.parametrize(
    "name",
    ["tank", "/tank/lab", "tank/lab/", "tank//lab", "tank/..", "tank/.", "1tank/lab", "tank/a b",
     "tank/l@b", "tank/l#b", "tank/l%b", "tank/läb", "tank/" + "x" * 100, "tank/a:b", "-/a"],
)  # fmt: skip
def test_a_pool_that_no_dataset_can_be(tmp_path: Path, name: str) -> None:
    """Protects: names are refused as ZFS would, before anything is done."""
    with pytest.raises(InvalidSpec, match="pool"):
        load_text(tmp_path, f'pool = "{name}"')


def test_config_files_follow_xdg() -> None:
    own, system = config_files({"XDG_CONFIG_HOME": "/c"})
    assert own == Path("/c/lab/config.toml")
    assert system == Path("/etc/lab/config.toml")


def test_settings_import_nothing_heavy() -> None:
    """Every command pays for this import."""
    modules = "sys, lab.config.settings, lab.config.labfile, lab.locks.named, lab.state.records"
    code = f"import {modules}; print(*sys.modules)"
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"sqlalchemy", "alembic", "msgspec", "tomllib", "difflib", "hashlib"} & set(out)


@pytest.mark.parametrize("key", ["queue", "failed_auth"])
def test_a_service_that_lets_nobody_in_is_refused(key: str) -> None:
    """Protects operators from a limit of nothing, which refuses everything."""
    with pytest.raises(InvalidSpec, match=f"{key}.*1 at least"):
        servefile.parse({key: 0})
    assert servefile.parse({key: 1})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[serve.datasets.shop]\nrefresh = "24h"\nkep = 3', r"shop.*unknown key 'kep'"),
        ("[serve.datasets.shop]\nkeep = 3", r"refresh is missing"),
        ('[serve.datasets.shop]\nrefresh = "5s"', r"shorter than a minute"),
        ('[serve.datasets.Shop]\nrefresh = "24h"', r"'Shop' is not a valid name"),
        ("[serve]\ndatasets = 3", r"datasets is 3, expected tables"),
    ],
)
def test_schedules_of_datasets_are_checked(tmp_path: Path, text: str, said: str) -> None:
    """Protects from a schedule that looks right and refreshes nothing."""
    file = tmp_path / "config.toml"
    file.write_text(text)
    with pytest.raises(InvalidSpec, match=said):
        load(env={}, files=[file])


POOL = """
    [[serve.pool]]
    name = "shop"
    blueprint = "replication"
    set = ["max_connections=50"]
"""


def test_files_of_pools_are_beside_the_config_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects all commands, which read settings: only the service needs files of its pools."""
    there = tmp_path / "all.cnf"
    settings = load_text(
        tmp_path,
        f"""{POOL}
        init = "sql/schema.sql"
        my_cnf = ["{there}", "replica=replica.cnf"]
        """,
    )
    (tmp_path / "sql").mkdir()
    (tmp_path / "sql/schema.sql").write_text("SELECT 1;\n")
    there.write_text("[mysqld]\n")
    (tmp_path / "replica.cnf").write_text("[mysqld]\nsync_binlog=0\n")
    monkeypatch.chdir(tmp_path / "sql")
    (pool,) = settings.warm_pools()
    assert pool.spec.chosen.init == "SELECT 1;\n"
    assert pool.spec.chosen.set == ("max_connections=50",)
    assert pool.spec.chosen.my_cnf == (
        OptionFile("[mysqld]\n"),
        OptionFile("[mysqld]\nsync_binlog=0\n", "replica"),
    )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('init = "absent.sql"', "init: {}/absent.sql cannot be read: No such file"),
        ('init = "nul.sql"', "init: .*256 KiB"),
        ('my_cnf = "replica=absent.cnf"', "my_cnf: {}/absent.cnf cannot be read: No such file"),
    ],
)
def test_a_file_of_a_pool_that_the_service_cannot_use(
    tmp_path: Path, line: str, message: str
) -> None:
    """Protects operators with several pools: the message names the file and the pool."""
    (tmp_path / "nul.sql").write_text("\0")
    settings = load_text(tmp_path, f"{POOL}{line}")
    place = rf"{tmp_path}/config.toml: \[\[serve.pool\]\]: shop: "
    with pytest.raises(InvalidSpec, match=place + message.format(tmp_path)):
        settings.warm_pools()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("init = 3", "init is 3, expected a file of SQL"),
        ('init = ""', "init is '', expected a file of SQL"),
        ("my_cnf = [3]", r"my_cnf is \[3\], expected files"),
        ('my_cnf = "Replica=a.cnf"', "my_cnf: 'Replica' is not a role"),
        (f"my_cnf = {['a.cnf'] * 17}", "my_cnf: 17 option files"),
    ],
)
def test_what_is_wrong_with_a_pool_without_its_files(
    tmp_path: Path, line: str, message: str
) -> None:
    with pytest.raises(InvalidSpec, match=rf"\[\[serve.pool\]\]: {message}"):
        load_text(tmp_path, f"{POOL}{line}")


@pytest.mark.parametrize("key", ["asleep_after", "dataset_time"])
def test_times_that_may_be_zero(key: str) -> None:
    """Protects the documented way to have no limit, or no sleep."""
    for zero in (0, "0"):
        assert getattr(servefile.parse({key: zero}), key) == 0
    assert getattr(servefile.parse({key: "10m"}), key) == 600
    for wrong in (False, "", -1):
        with pytest.raises(InvalidSpec):
            servefile.parse({key: wrong})

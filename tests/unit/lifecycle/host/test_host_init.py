"""Protects `lab host init`: only an empty or own dataset is used, all that is missing is shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from lab.config import settings
from lab.config.settings import Settings
from lab.errors import CommandFailed, Conflict, HostUnfit, InvalidSpec
from lab.lifecycle.host.host_init import init
from lab.run import Completed
from lab.storage.zfs.allow import PERMISSIONS, User
from lab.storage.zfs.commands import Commands
from lab.views.host import HostView

ROOT = User("root", ())
ALICE = User("alice", ("alice", "disk"))


def parsed(args: list[str]) -> dict[str, str]:
    pairs = [arg.partition("=") for arg in args if arg != "-o"]
    return {key: value for key, _, value in pairs}


class FakeZfs:
    """As much of ``zfs`` as init needs: datasets with the properties set on them."""

    def __init__(self, *, root: bool = True) -> None:
        self.sets: dict[str, dict[str, str]] = {"tank": {}}
        self.allow = ""
        self.root = root
        self.mounted = "no\n/tank/lab\n"

    def __call__(
        self, argv: Sequence[str], *, timeout: float, env: Mapping[str, str], keep: Sequence[int]
    ) -> Completed:
        del timeout, keep
        assert env["LC_ALL"] == "C"
        verb, *args = argv[1:]
        name = args[-1] if args else ""
        if verb == "version":
            return Completed("zfs-2.3.9-0+deb13u1\nzfs-kmod-2.3.9\n", "")
        if verb == "get" and "mounted,mountpoint" in args:
            return Completed(self.mounted, "")
        if verb == "get":
            return Completed(self.listing(name, deep="-d" in args), "")
        if verb == "allow":
            return Completed(self.allow, "")
        if not self.root and not self.allow:
            raise CommandFailed(argv, 1, stderr=f"cannot {verb} '{name}': permission denied")
        assert verb == ("set" if name in self.sets else "create")
        self.sets.setdefault(name, {}).update(parsed(args[:-1]))
        return Completed("", "")

    def listing(self, name: str, *, deep: bool) -> str:
        names = [one for one in self.sets if one == name or (deep and one.startswith(f"{name}/"))]
        if not names:
            raise CommandFailed(["zfs"], 1, stderr=f"cannot open '{name}': dataset does not exist")
        lines = []
        for one in names:
            facts = {"type": "filesystem", "available": "3000", "used": "1000"}
            lines += [f"{one}\t{key}\t{value}\t-\n" for key, value in facts.items()]
            lines += [f"{one}\t{key}\t{value}\tlocal\n" for key, value in self.sets[one].items()]
        return "".join(lines)


class Site:
    def __init__(self, folder: Path) -> None:
        self.zfs = FakeZfs()
        self.config = folder / "config" / "lab" / "config.toml"
        self.home = str(folder / "home")

    def settings(self) -> Settings:
        return settings.load({"home": self.home}, env={}, files=[self.config])

    def init(self, user: User = ROOT, pool: str = "tank/lab") -> HostView:
        commands = Commands(pool, self.zfs)
        return init(self.settings(), pool, config=self.config, commands=commands, user=user)

    @property
    def tag(self) -> str:
        return self.zfs.sets["tank/lab"].get("lab:home", "")


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_a_new_dataset(site: Site) -> None:
    view = site.init()
    made = site.zfs.sets["tank/lab"]
    assert (made["mountpoint"], made["canmount"], made["volmode"]) == ("none", "off", "dev")
    assert site.tag == site.settings().home.id
    assert (view.version, view.free, view.total) == ("2.3.9-0+deb13u1", 3000, 4000)
    assert (view.missing, view.config) == ((), str(site.config))
    assert view.done[0].startswith("zfs create -o mountpoint=none ")
    assert (site.settings().storage, site.settings().pool) == ("zfs", "tank/lab")


def test_it_can_be_repeated(site: Site) -> None:
    site.init()
    before, text = dict(site.zfs.sets["tank/lab"]), site.config.read_text()
    view = site.init()
    assert (view.done, view.missing, view.config) == ((), (), "")
    assert (site.zfs.sets["tank/lab"], site.config.read_text()) == (before, text)


def test_what_is_in_the_config_stays(site: Site) -> None:
    """Protects the file that people write: comments, order, tables."""
    site.config.parent.mkdir(parents=True)
    text = '# mine\nowner = "me"  # ok\npool="tank/old"\n\n[profiles.fast]\nbase = "durable"\n'
    site.config.write_text(text)
    site.zfs.sets["tank/old"] = {}
    with pytest.raises(HostUnfit):  # whether there are volumes in the old one is not known here
        site.init()
    settings.remember(site.config, "pool", "tank/lab")
    assert site.config.read_text() == text.replace('pool="tank/old"', 'pool = "tank/lab"')
    site.config.write_text("[profiles.fast]\nbase = 'durable'")
    settings.remember(site.config, "pool", "tank/lab")
    assert site.config.read_text().startswith('pool = "tank/lab"\n[profiles.fast]\n')
    site.config.write_text('owner = "me"')
    settings.remember(site.config, "pool", "tank/lab")
    assert site.config.read_text() == 'owner = "me"\npool = "tank/lab"\n'
    site.config.write_text("pool = '''\ntank/old'''\n")
    with pytest.raises(InvalidSpec):
        settings.remember(site.config, "pool", "tank/lab")
    assert site.config.read_text() == "pool = '''\ntank/old'''\n"
    assert [path.name for path in site.config.parent.iterdir()] == ["config.toml"]


def test_an_empty_dataset_is_taken(site: Site) -> None:
    site.zfs.sets["tank/lab"] = {"compression": "zstd"}
    view = site.init()
    assert view.done[0].startswith("zfs set mountpoint=none canmount=off volmode=dev ")
    assert site.zfs.sets["tank/lab"]["compression"] == "zstd"
    assert site.tag


@pytest.mark.parametrize("used", ["child", "files", "home"])
def test_a_used_dataset_is_left_alone(site: Site, tmp_path: Path, used: str) -> None:
    """Protects what others keep there."""
    site.zfs.sets["tank/lab"] = {"lab:home": "another"} if used == "home" else {}
    if used == "child":
        site.zfs.sets["tank/lab/vm"] = {}
    if used == "files":
        (tmp_path / "data").mkdir()
        (tmp_path / "data" / "file").touch()
        site.zfs.mounted = f"yes\n{tmp_path / 'data'}\n"
    before = {name: dict(values) for name, values in site.zfs.sets.items()}
    with pytest.raises(Conflict, match=r"another home|something else"):
        site.init()
    assert site.zfs.sets == before
    assert not site.config.exists()


def test_who_may_not_is_told_what_root_must_run(site: Site) -> None:
    site.zfs.root = False
    view = site.init(ALICE)
    assert view.done == ()
    create, allow = view.missing
    assert create.startswith("zfs create -o mountpoint=none ")
    assert create.endswith(" tank/lab")
    assert allow == f"zfs allow -u alice {','.join(sorted(PERMISSIONS))} tank/lab"
    assert not site.config.exists()
    # root does that
    site.zfs.sets["tank/lab"] = parsed(create.split()[2:-1])
    site.zfs.allow = (
        "---- Permissions on tank/lab ----\nLocal+Descendent permissions:\n"
        f"\tuser alice {','.join(PERMISSIONS)}\n"
    )
    view = site.init(ALICE)
    assert (view.missing, view.config) == ((), str(site.config))
    assert site.tag == site.settings().home.id


def test_no_pool(site: Site) -> None:
    with pytest.raises(HostUnfit, match="there is no pool sink") as caught:
        site.init(pool="sink/lab")
    assert "zpool import sink" in caught.value.hint
    with pytest.raises(HostUnfit, match="there is no dataset tank/a"):
        site.init(pool="tank/a/lab")
    with pytest.raises(InvalidSpec, match="whole pool"):
        site.init(pool="tank")


def test_a_storage_that_was_chosen_wins(site: Site) -> None:
    site.config.parent.mkdir(parents=True)
    site.config.write_text('storage = "qcow2"\n')
    with pytest.raises(InvalidSpec, match="storage is qcow2") as caught:
        site.init()
    assert "remove" in caught.value.hint
    assert "tank/lab" not in site.zfs.sets


def test_volumes_that_would_be_lost_from_sight(site: Site) -> None:
    """Protects labs on files: they would be neither seen nor removed any more."""
    from lab.lifecycle.core.context import open_storage
    from lab.names import Owner, VolumeName

    volume = VolumeName(Owner("lab", "a"), "n1", "os")
    site.settings().home.create()
    open_storage(site.settings(), None).create(volume, 1 << 20, {})
    with pytest.raises(Conflict, match="keeps 1 volumes in") as caught:
        site.init()
    assert "LAB_HOME" in caught.value.hint
    assert "tank/lab" not in site.zfs.sets

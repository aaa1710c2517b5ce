"""The fake's guests are nodes of a cluster: enough of one to try the whole lifecycle on."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from lab.blueprints import Engine, Member, Release, with_options
from lab.blueprints.galera import GALERA
from lab.config.profile import EngineProfile
from lab.errors import CommandFailed, HostUnfit, NotReady
from lab.fake.hypervisor import FakeHypervisor
from lab.fake.inside import READ_LOCK
from lab.fake.storage import FakeStorage
from lab.guest import identity, network, seed
from lab.guest.authority import TlsKey
from lab.hypervisor import Capabilities, DirectBoot, GuestShape, GuestSpec, MemoryImage, memory_of
from lab.lifecycle.images.ready import Image, Images
from lab.lifecycle.nodes.nodes import Wiring, guest_spec, plan, seed_disk
from lab.names import Owner, VolumeName
from lab.options import NONE
from lab.sizes import NodeSize
from lab.units import MIB

HOME = "0badcafe"
ENGINE = Engine("mariadb", "11.8", "[mariadbd]\n", "/etc/mysql/lab.cnf", "mysql", 100, 101)
SIZE = NodeSize(memory=384 * MIB)
TEMPLATE = Owner("template", "key")


@dataclass
class World:
    root: Path
    storage: FakeStorage
    hypervisor: FakeHypervisor

    def guests(self, owner: Owner, first_port: int = 0, nodes: int = 3) -> list[GuestSpec]:
        """Guests of ``owner`` with their disks: new ones for the template, else its clones."""
        ports = list(range(first_port, first_port + 2 * nodes)) if first_port else []
        found = []
        image = Image("i", "r", DirectBoot(self.root / "kernel", self.root / "initrd", ""), ENGINE)
        plans = with_options("galera", NONE, nodes).plan(SIZE)
        planned = plan(owner, plans, Images(image), ports)
        for node in planned:
            volume = VolumeName(owner, node.name, "os")
            seed_file = self.root / f"{node.name}.seed"
            ram = self.root / f"{node.name}.ram"
            if owner == TEMPLATE:
                disk = self.storage.create(volume, MIB, {})
                seed_file.write_bytes(seed_disk(node, planned, GALERA, ENGINE, EngineProfile(), 1))
                with ram.open("xb") as file:
                    file.truncate(SIZE.memory)
            else:
                origin = VolumeName(TEMPLATE, node.name, "os")
                disk = self.storage.clone(self.storage.snapshots(origin)[0], volume, {})
            wiring = Wiring(HOME, 7000 + first_port, seed_file, self.root / "console.log", ram)
            found.append(guest_spec(node, [disk], image, wiring))
        return found

    def template(self) -> list[MemoryImage]:
        """Form a template, capture it, end it; the RAM of its nodes."""
        guests = self.guests(TEMPLATE)
        for guest in guests:
            self.hypervisor.start(guest)
        names = [guest.name for guest in guests]
        memory_of(self.hypervisor).pause(names)
        images = []
        for number, name in enumerate(names, 1):
            ram, state = self.root / f"n{number}.ram", self.root / f"n{number}.state"
            images.append(memory_of(self.hypervisor).save_memory(name, ram, state))
        volumes = [VolumeName(TEMPLATE, f"n{number}", "os") for number in (1, 2, 3)]
        self.storage.snapshot(volumes, "formed")
        for name in names:
            self.hypervisor.stop(name, force=True)
        return images

    def clone(self, name: str, port: int, images: list[MemoryImage]) -> list[GuestSpec]:
        """A lab with that name, restored, running, and its own from ``port`` on."""
        guests = self.guests(Owner("lab", name), port)
        for guest, image in zip(guests, images, strict=True):
            memory_of(self.hypervisor).restore(guest, image)
        memory_of(self.hypervisor).resume([guest.name for guest in guests])
        for index, guest in enumerate(guests, 1):
            self.personalise(guest, index, f"password-of-{name}")
        return guests

    def personalise(self, guest: GuestSpec, index: int, password: str) -> None:
        members = [Member(f"n{n}", n, network.inner_address(n)) for n in (1, 2, 3)]
        message = identity.message(
            identity.make_node_identity(TlsKey(b"key", b"certificate")),
            now=time.time(),
            engine=(100, 101),
            tls_directory="/etc/mysql/tls",
            authorized="ssh-ed25519 AAAA",
            statements=GALERA.personalise_statements(
                members[index - 1], members, ENGINE, "lab", password
            ),
        )
        self.hypervisor.channel(guest.name).personalise(message, timeout=1.0)

    def ready(self, port: int, name: str) -> list[str]:
        """What a node lacks, asked through its port as a user would."""
        result = self.hypervisor.servers.sql(
            port, "lab", f"password-of-{name}", GALERA.question("member", {}, Release())
        )
        found = {str(row[0]): str(row[1]) for row in result.rows}
        wanted = GALERA.requirements("member", 3)
        return [one.what for one in wanted if one.found(found) != one.value]


@pytest.fixture
def world(tmp_path: Path) -> World:
    for name in ("kernel", "initrd"):
        (tmp_path / name).touch()
    hypervisor = FakeHypervisor(tmp_path / "guests", HOME)
    return World(tmp_path, FakeStorage(tmp_path / "volumes", HOME), hypervisor)


def test_two_labs_of_one_template_answer_and_share_no_secret(world: World) -> None:
    images = world.template()
    first, second = world.clone("a", 3000, images), world.clone("b", 4000, images)
    for start, name in ((3000, "a"), (4000, "b")):
        assert all(world.ready(port, name) == [] for port in range(start, start + 3))
    with pytest.raises(NotReady, match="no SQL") as refused:
        world.ready(3000, "b")
    assert "Access denied" in refused.value.details[0]
    inside = [world.hypervisor.servers.inside(guest.name) for guest in (*first, *second)]
    key = "/etc/ssh/ssh_host_ed25519_key"
    assert len({node.file(key) for node in inside}) == 6
    assert len({node.entropy for node in inside}) == 6
    assert all(node.modes[key] == "600" and node.clock > 0 for node in inside)


def test_data_are_in_all_nodes_and_in_snapshots_of_their_disks(world: World) -> None:
    guests = world.clone("a", 3000, world.template())

    def sql(port: int, statement: str) -> tuple[tuple[object, ...], ...]:
        return world.hypervisor.servers.sql(port, "lab", "password-of-a", statement).rows

    sql(3000, "CREATE DATABASE shop")
    sql(3001, "CREATE TABLE shop.orders (id INT PRIMARY KEY, what VARCHAR(20))")
    sql(3002, "INSERT INTO shop.orders VALUES (1, 'tea'), (2, 'milk')")
    assert sql(3000, "SELECT what FROM shop.orders ORDER BY id") == (("tea",), ("milk",))
    names = [VolumeName(Owner("lab", "a"), f"n{number}", "os") for number in (1, 2, 3)]
    world.storage.snapshot(names, "before")
    sql(3000, "DELETE FROM shop.orders")
    assert sql(3002, "SELECT COUNT(*) FROM shop.orders") == ((0,),)
    for guest, name in zip(guests, names, strict=True):
        world.hypervisor.stop(guest.name, force=True)
        world.storage.rollback(name, "before")
        world.hypervisor.start(guest)
    assert sql(3001, "SELECT COUNT(*) FROM shop.orders") == ((2,),)
    with pytest.raises(CommandFailed, match="1064"):
        sql(3000, "SELEKT 1")


def test_a_node_that_was_away_catches_up(world: World) -> None:
    guests = world.clone("a", 3000, world.template())
    world.hypervisor.stop(guests[2].name, force=True)
    assert world.ready(3000, "a") == ["wsrep_cluster_size is 3"]
    world.hypervisor.servers.sql(3000, "lab", "password-of-a", "CREATE TABLE t (a INT)")
    world.hypervisor.start(guests[2])
    assert world.ready(3002, "a") == []
    assert world.hypervisor.servers.sql(3002, "lab", "password-of-a", "SELECT * FROM t").rows == ()


def test_a_minority_is_no_cluster(world: World) -> None:
    guests = world.clone("a", 3000, world.template())
    memory_of(world.hypervisor).pause([guest.name for guest in guests[1:]])
    assert len(world.ready(3000, "a")) == 4
    with pytest.raises(CommandFailed) as failure:
        world.hypervisor.servers.sql(3000, "lab", "password-of-a", "SELECT 1")
    assert failure.value.status == 1047
    with pytest.raises(NotReady):
        world.hypervisor.servers.sql(3001, "lab", "password-of-a", "SELECT 1")


def test_from_inside_there_is_an_answer_before_any_password(world: World) -> None:
    guests = world.guests(TEMPLATE)
    for guest in guests:
        world.hypervisor.start(guest)
    channel = world.hypervisor.channel(guests[0].name)
    question = GALERA.question("member", {}, Release()).encode()
    text = channel.run(["/usr/lib/lab/sql"], stdin=question, timeout=1).decode()
    assert "wsrep_cluster_size\t3\n" in text
    assert channel.run(["/bin/sync"], timeout=1) == b""
    with pytest.raises(CommandFailed, match="127"):
        channel.run(["/usr/bin/anything"], timeout=1)
    with pytest.raises(CommandFailed, match="personalise"):
        channel.personalise(b"teapot\n", timeout=1)


def test_sessions_are_in_captures_of_ram_and_block_statements_until_ended(world: World) -> None:
    """Protects the lifecycle's tests: what a capture of a used lab holds is felt."""
    first = world.guests(TEMPLATE)[0]
    world.hypervisor.start(first)
    world.hypervisor.servers.alter(
        first.name, lambda inside: inside.sessions.extend(("DO 1", READ_LOCK))
    )
    memory = memory_of(world.hypervisor)
    memory.pause([first.name])
    image = memory.save_memory(first.name, world.root / "n1.ram", world.root / "n1.state")
    world.hypervisor.stop(first.name, force=True)
    memory.restore(first, image)
    memory.resume([first.name])
    channel = world.hypervisor.channel(first.name)
    statement = identity.item("sql", "DO 1").encode() + b"\n"
    with pytest.raises(CommandFailed) as blocked:
        channel.personalise(statement, timeout=1)
    assert "Lock wait timeout" in blocked.value.details[0]
    captured = identity.item("entropy", b"x") + "\n" + identity.item("reseed", "7") + "\nsessions\n"
    assert channel.personalise(captured.encode() + statement, timeout=1) == 2
    inside = world.hypervisor.servers.inside(first.name)
    assert (inside.sessions, inside.seeds) == ([], inside.entropy)
    assert inside.entropy
    assert channel.clock(timeout=1) < 60
    world.hypervisor.servers.alter(first.name, lambda inside: inside.sessions.append("DO 1"))
    world.hypervisor.stop(first.name, force=True)
    world.hypervisor.start(first)
    assert world.hypervisor.servers.inside(first.name).sessions == []
    assert world.hypervisor.servers.inside(first.name).entropy == inside.entropy


def test_ram_needs_the_disk_of_the_same_moment(world: World) -> None:
    """Protects data: a real guest would resume with caches that do not match its disk."""
    images = world.template()
    guests = world.guests(Owner("lab", "a"), 3000)
    swapped = world.storage.get(VolumeName(Owner("lab", "a"), "n1", "os")).path
    swapped.write_bytes(b'lab-fake-guest 1\n{"statements": ["CREATE TABLE t (a INT)"]}\n')
    with pytest.raises(HostUnfit) as failure:
        memory_of(world.hypervisor).restore(guests[0], images[0])
    assert "same moment" in failure.value.details[0]


def test_another_version_does_not_restore(world: World) -> None:
    images = world.template()
    newer = FakeHypervisor(world.root / "guests", HOME, version="2")
    shape = GuestShape(SIZE.memory, 1, 2, "direct")
    assert newer.fingerprint(shape) != world.hypervisor.fingerprint(shape)
    with pytest.raises(HostUnfit, match="could not be restored"):
        memory_of(newer).restore(world.guests(Owner("lab", "a"), 3000)[0], images[0])


def test_a_guest_that_still_boots_is_silent(world: World) -> None:
    slow = FakeHypervisor(world.root / "guests", HOME, boot_seconds=1e6)
    guest = world.guests(TEMPLATE)[0]
    slow.start(guest)
    assert guest.name in slow.guests()
    assert not slow.channel(guest.name).ping(1.0)


def test_capabilities_are_what_the_test_wants(tmp_path: Path) -> None:
    cold = Capabilities("fake", "bhyve", why_cold="the test wants it cold")
    assert FakeHypervisor(tmp_path, capabilities=cold).capabilities() == cold
    assert FakeHypervisor(tmp_path, capabilities=cold).memory is None
    assert FakeHypervisor(tmp_path).memory is not None


def test_the_seed_tells_how_many_nodes_there_are(world: World) -> None:
    """Protects the majority: three nodes are three even while one of them was never started."""
    guests = world.guests(TEMPLATE)
    world.hypervisor.start(guests[0])
    assert any(disk.serial == seed.SERIAL for disk in guests[0].disks)
    rows = world.hypervisor.servers.execute(
        guests[0].name, GALERA.question("member", {}, Release())
    ).rows
    assert ("wsrep_cluster_status", "non-Primary") in rows

"""The seed disk: what a guest unpacks at its first boot."""

from __future__ import annotations

import io
import tarfile

import pytest

from lab.guest.seed import SeedFile, pack, seed_id

FILES = {
    "/etc/hostname": SeedFile(b"n1\n"),
    "/var/lib/mysql/gvwstate.dat": SeedFile(b"view\n", 0o660, 100, 101),
}


def unpack(disk: bytes) -> dict[str, tuple[bytes, tarfile.TarInfo]]:
    found = {}
    with tarfile.open(fileobj=io.BytesIO(disk)) as archive:
        for info in archive:
            file = archive.extractfile(info)
            assert file
            found[info.name] = (file.read(), info)
    return found


def test_everything_is_where_the_guest_looks_for_it() -> None:
    found = unpack(pack(FILES))
    assert list(found) == [
        "lab/seed-id",
        "lab/root/etc/hostname",
        "lab/root/var/lib/mysql/gvwstate.dat",
    ]
    assert found["lab/seed-id"][0] == seed_id(FILES).encode() + b"\n"
    content, info = found["lab/root/var/lib/mysql/gvwstate.dat"]
    assert (content, info.mode, info.uid, info.gid) == (b"view\n", 0o660, 100, 101)


def test_equal_files_give_equal_bytes() -> None:
    """Protects restores: a seed that is written again must not look new to the guest."""
    assert pack(FILES) == pack(dict(reversed(FILES.items())))


@pytest.mark.parametrize(
    "other",
    [
        {"/etc/hostname": SeedFile(b"n2\n")},
        {"/etc/hostname": SeedFile(b"n1\n", 0o600)},
        {"/etc/hostname": SeedFile(b"n1\n", user=1)},
        {"/etc/hostname": SeedFile(b"n1\n", group=1)},
        {"/etc/hostnam": SeedFile(b"en1\n")},
        {"/etc/hostname": SeedFile(b"n1\n"), "/etc/empty": SeedFile(b"")},
    ],
)
def test_any_difference_gives_another_id(other: dict[str, SeedFile]) -> None:
    """Protects changes from being ignored: the guest applies only a seed with a new id."""
    assert seed_id(other) != seed_id({"/etc/hostname": SeedFile(b"n1\n")})


def test_a_disk_is_whole_sectors() -> None:
    assert len(pack(FILES)) % 512 == 0

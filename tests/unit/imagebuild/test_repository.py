"""A recipe's own repository: only the pinned key is trusted, and only for that repository.

The repository is a tiny signed one, served on loopback.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from lab.errors import HostUnfit, OutOfReach, RecipeFailed
from lab.imagebuild import bootstrap, repository
from lab.imagebuild.reachable import reachable, reachable_recently
from lab.imagebuild.recipe import Recipe, Repository, load
from lab.progress import Progress
from lab.wait import Deadline, until
from tests.support.apt_repository import FINGERPRINT, Signer, package, publish, serving

pytestmark = pytest.mark.skipif(
    not (shutil.which("gpg") and shutil.which("dpkg-deb")),
    reason="needs gpg and dpkg-deb: `make setup-tests` installs gpg",
)


@dataclass
class Served:
    """A repository on loopback with the package ``lab-probe``."""

    root: Path
    url: str
    owner: Signer
    stranger: Signer

    @property
    def described(self) -> Repository:
        return Repository(
            urls=(self.url,),
            suite="probe",
            component="main",
            key_url=f"{self.url}/key.asc",
            key_fingerprint=self.owner.fingerprint,
        )

    def sign(self, signer: Signer) -> None:
        signer.sign(self.root / "dists/probe/Release")


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    # gpg-agent's socket needs a short path.
    with tempfile.TemporaryDirectory(prefix="lab-repo-", dir="/tmp") as top:
        root = Path(top, "www")
        root.mkdir()
        owner = Signer.make(Path(top, "owner"), "owner")
        stranger = Signer.make(Path(top, "stranger"), "stranger")
        fields = {
            "Package": "lab-probe", "Version": "1.2-3", "Architecture": "all",
            "Maintainer": "x <x@example.org>",
        }  # fmt: skip
        deb = root / "probe.deb"
        publish(root, "probe", [(package(Path(top), deb, fields, {"probe": "here\n"}), deb)])
        with serving(root) as url:
            it = Served(root, url, owner, stranger)
            it.sign(owner)
            yield it
        owner.end()
        stranger.end()


@pytest.fixture
def scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="lab-key-", dir="/tmp") as path:
        yield Path(path)


def fingerprints(keyring: Path) -> list[str]:
    out = subprocess.run(
        ["gpg", "--homedir", keyring.parent, "--show-keys", "--with-colons", keyring],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    return re.findall(FINGERPRINT, out)


def test_pinned_key_is_taken(served: Served, scratch: Path) -> None:
    (served.root / "key.asc").write_bytes(served.owner.public())
    keyring = repository.pinned_key(served.described, scratch)
    assert fingerprints(keyring) == [served.owner.fingerprint]


def test_apt_may_read_the_key_whatever_the_umask(served: Served, scratch: Path) -> None:
    """apt checks signatures as a user of its own, who is not the one that made the file."""
    (served.root / "key.asc").write_bytes(served.owner.public())
    before = os.umask(0o077)
    try:
        keyring = repository.pinned_key(served.described, scratch)
    finally:
        os.umask(before)
    assert keyring.stat().st_mode & 0o777 == 0o644


def test_another_key_is_refused(served: Served, scratch: Path) -> None:
    (served.root / "key.asc").write_bytes(served.stranger.public())
    with pytest.raises(HostUnfit, match="not the key") as caught:
        repository.pinned_key(served.described, scratch)
    assert served.owner.fingerprint in caught.value.hint


def test_a_key_slipped_in_beside_is_left_out(served: Served, scratch: Path) -> None:
    (served.root / "key.asc").write_bytes(served.stranger.public() + served.owner.public())
    keyring = repository.pinned_key(served.described, scratch)
    assert fingerprints(keyring) == [served.owner.fingerprint]


@pytest.mark.parametrize("content", [b"", b"<html>404</html>"])
def test_no_key_at_all(served: Served, scratch: Path, content: bytes) -> None:
    (served.root / "key.asc").write_bytes(content)
    with pytest.raises(HostUnfit):
        repository.pinned_key(served.described, scratch)


def test_key_out_of_reach(served: Served, scratch: Path) -> None:
    gone = replace(served.described, key_url=f"{served.url}/nowhere")
    with pytest.raises(RecipeFailed, match="cannot fetch") as answered:
        repository.pinned_key(gone, scratch)
    assert not isinstance(answered.value, OutOfReach), "its owner's server did answer"
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    silent = replace(served.described, key_url=f"http://127.0.0.1:{port}/key.asc")
    with pytest.raises(OutOfReach, match="cannot fetch"):
        repository.pinned_key(silent, scratch)


def test_source_entries_trust_one_key() -> None:
    percona = load("percona-xtradb-cluster").repository
    assert percona is not None
    lines = repository.source_entries(percona, "/k.gpg").splitlines()
    assert len(lines) == len(percona.urls)
    assert all("signed-by=/k.gpg" in line and line.startswith("deb [") for line in lines)


def fetch_probe(served: Served, scratch: Path, debian: str = "") -> Path:
    """Let mmdebstrap fetch lab-probe from a root file system of that package alone.

    ``debian``: the index of the place of Debian's own packages, which is ``scratch``.
    """
    (served.root / "key.asc").write_bytes(served.owner.public())
    root = scratch / "root"
    alone = 'rm -f "$1/etc/apt/sources.list"'
    setup = [*repository.setup_hooks(served.described, scratch), *([] if debian else [alone])]
    options = bootstrap.command(root, "", ["lab-probe"], setup=setup)[1:-2]
    # Nothing but that package: it is unpacked, not installed, as there is no dpkg in it.
    options = ["--variant=extract", *(o for o in options if not o.startswith("--variant"))]
    argv = ["mmdebstrap", *options, "", str(root), f"deb [trusted=yes] file:{scratch} ./"]
    (scratch / "Packages").write_text(debian)
    bootstrap.bootstrap(argv, scratch / "log", Progress())
    return root


needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("mmdebstrap"), reason="needs root and mmdebstrap"
)


@needs_root
def test_packages_signed_by_the_owner_are_installed(served: Served, scratch: Path) -> None:
    served.sign(served.owner)
    root = fetch_probe(served, scratch)
    assert (root / "probe").read_text() == "here\n"


@needs_root
def test_its_packages_come_before_newer_ones_of_debian(served: Served, scratch: Path) -> None:
    """MariaDB 11.4 from its owner's repository, where Debian has 11.8."""
    fields = {
        "Package": "lab-probe", "Version": "9.9-1", "Architecture": "all",
        "Maintainer": "x <x@example.org>",
    }  # fmt: skip
    deb = scratch / "newer.deb"
    entry = package(scratch, deb, fields, {"probe": "newer\n"})
    content = deb.read_bytes()
    place = f"Filename: ./newer.deb\nSize: {len(content)}\n"
    digest = f"SHA256: {hashlib.sha256(content).hexdigest()}\n"
    served.sign(served.owner)
    root = fetch_probe(served, scratch, f"{entry.strip()}\n{place}{digest}")
    assert (root / "probe").read_text() == "here\n"


@needs_root
def test_packages_signed_by_a_stranger_are_refused(served: Served, scratch: Path) -> None:
    served.sign(served.stranger)
    with pytest.raises(HostUnfit, match="not signed"):
        fetch_probe(served, scratch)


def test_reachable(served: Served) -> None:
    recipe = replace(load("percona-xtradb-cluster"), repository=served.described)
    assert reachable(recipe)
    assert not reachable(replace(recipe, repository=replace(served.described, suite="other")))
    assert reachable(load("mariadb"))


def test_reachable_is_bounded() -> None:
    """A repository that accepts and says nothing costs the timeout, no more."""
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        recipe = load("percona-xtradb-cluster")
        assert recipe.repository is not None
        recipe = replace(recipe, repository=replace(recipe.repository, urls=(url,)))
        began = time.monotonic()
        assert not reachable(recipe, timeout=0.3)
        assert time.monotonic() - began < 2


def percona(served: Served, suite: str = "probe") -> Recipe:
    """Percona's recipe, with a repository that is there, unless ``suite`` is another."""
    return replace(
        load("percona-xtradb-cluster"), repository=replace(served.described, suite=suite)
    )


def remember(memory: Path, served: Served, *, answer: bool, ago: float = 0.0) -> None:
    memory.write_text(json.dumps({served.url: [time.time() - ago, answer]}))


def test_answers_are_remembered(served: Served, tmp_path: Path) -> None:
    """The second `lab up` does not wait for a repository that is out of reach."""
    memory = tmp_path / "reachable.json"
    remember(memory, served, answer=True)
    assert reachable_recently(percona(served, suite="other"), memory, timeout=0.0)
    remember(memory, served, answer=False, ago=200)
    assert not reachable_recently(percona(served), memory)
    assert reachable_recently(load("mariadb"), memory)


def test_an_answer_that_cannot_be_remembered_is_an_answer(served: Served, tmp_path: Path) -> None:
    """On a full disk `lab up --dry-run` and the pools would else fail over a cache."""
    memory = tmp_path / "none" / "reachable.json"
    assert reachable_recently(percona(served), memory)
    assert not reachable_recently(percona(served, suite="other"), memory)


def test_a_remembered_answer_needs_no_http(tmp_path: Path) -> None:
    """A warm `lab up` has no 20 ms for modules that it does not use."""
    code = (
        "import json, sys, time, pathlib;"
        "from lab.imagebuild.recipe import load;"
        "from lab.imagebuild.reachable import reachable_recently;"
        "recipe = load('percona-xtradb-cluster'); memory = pathlib.Path(sys.argv[1]);"
        "memory.write_text(json.dumps({recipe.repository.urls[0]: [time.time(), False]}));"
        "assert not reachable_recently(recipe, memory);"
        "assert 'http.client' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path / "memory.json"], check=True)


def test_an_old_no_is_asked_about_aside(served: Served, tmp_path: Path) -> None:
    """Nobody waits for it, and the next `lab up` has the new answer."""
    memory = tmp_path / "reachable.json"
    remember(memory, served, answer=False, ago=1000)
    assert not reachable_recently(percona(served), memory)
    assert until(lambda: _known(memory, served), Deadline.after(10))
    assert reachable_recently(percona(served, suite="other"), memory)


def test_an_old_no_that_still_holds_is_asked_about_once(served: Served, tmp_path: Path) -> None:
    memory = tmp_path / "reachable.json"
    remember(memory, served, answer=False, ago=1000)
    assert not reachable_recently(percona(served, suite="other"), memory)
    assert time.time() - json.loads(memory.read_text())[served.url][0] < 100
    assert not _known(memory, served)


def test_an_old_yes_is_asked_about_first(served: Served, tmp_path: Path) -> None:
    """An image would be built on it."""
    memory = tmp_path / "reachable.json"
    remember(memory, served, answer=True, ago=4000)
    assert not reachable_recently(percona(served, suite="other"), memory)


def _known(memory: Path, served: Served) -> bool:
    answer: bool = json.loads(memory.read_text())[served.url][1]
    return answer


@pytest.mark.parametrize("content", ["", "[]", '{"x": 1}', "\0"])
def test_a_spoilt_memory_is_forgotten(served: Served, tmp_path: Path, content: str) -> None:
    memory = tmp_path / "reachable.json"
    memory.write_text(content)
    assert reachable_recently(percona(served), memory)
    assert _known(memory, served)

"""A small signed APT repository on loopback, for tests: its key, its packages, its server."""

from __future__ import annotations

import hashlib
import http.server
import re
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

# In gpg --with-colons; a user id has a hash of the same form.
FINGERPRINT = r"(?m)^f\w\w:+([0-9A-F]{40}):"


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves files and says nothing."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@dataclass
class Signer:
    """A GnuPG home with one key."""

    home: Path
    fingerprint: str

    @staticmethod
    def make(home: Path, name: str) -> Signer:
        home.mkdir(mode=0o700)
        signer = Signer(home, "")
        signer.gpg(
            "--passphrase", "", "--quick-generate-key", f"{name} <{name}@example.org>", "ed25519"
        )
        listing = signer.gpg("--list-keys", "--with-colons").decode()
        signer.fingerprint = re.findall(FINGERPRINT, listing)[0]
        return signer

    def gpg(self, *argv: str | Path, stdin: bytes = b"") -> bytes:
        command = ["gpg", "--homedir", self.home, "--batch", "--quiet", *argv]
        return subprocess.run(command, input=stdin, check=True, capture_output=True).stdout

    def public(self) -> bytes:
        return self.gpg("--armor", "--export")

    def sign(self, release: Path) -> None:
        inline = release.with_name("InRelease")
        inline.unlink(missing_ok=True)
        self.gpg("--clearsign", "--output", inline, release)

    def end(self) -> None:
        """End the agent that GnuPG started."""
        subprocess.run(["gpgconf", "--homedir", self.home, "--kill", "all"], check=False)


@contextmanager
def serving(root: Path) -> Iterator[str]:
    """The URL at which the files below ``root`` are served in the block."""
    handler = partial(Quiet, directory=str(root))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def package(scratch: Path, deb: Path, fields: Mapping[str, str], files: Mapping[str, str]) -> str:
    """Build the package ``deb``; its entry in an index, without place and digest.

    ``files``: contents by path; those that begin with ``#!`` are executable. Maintainer scripts
    are in ``DEBIAN/``.
    """
    tree = scratch / deb.stem
    control = "".join(f"{name}: {value}\n" for name, value in fields.items())
    for name, content in {**files, "DEBIAN/control": f"{control}Description: x\n"}.items():
        path = tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        path.chmod(0o755 if content.startswith("#!") else 0o644)
    for directory in (tree, *(path for path in tree.rglob("*") if path.is_dir())):
        directory.chmod(0o755)
    subprocess.run(
        ["dpkg-deb", "--root-owner-group", "--build", tree, deb], check=True, capture_output=True
    )
    return control


def publish(
    root: Path, suite: str, entries: Sequence[tuple[str, Path]], component: str = "main"
) -> Path:
    """Write the index of ``suite`` for the packages (entry, file) below ``root``; its Release."""
    text = ""
    for control, deb in entries:
        data = deb.read_bytes()
        digest = hashlib.sha256(data).hexdigest()
        place = f"Filename: {deb.relative_to(root)}\nSize: {len(data)}\nSHA256: {digest}\n"
        text += f"{control}{place}Description: x\n\n"
    packages = root / f"dists/{suite}/{component}/binary-amd64/Packages"
    packages.parent.mkdir(parents=True)
    packages.write_text(text)
    index = packages.read_bytes()
    release = root / f"dists/{suite}/Release"
    release.write_text(
        f"Suite: {suite}\nCodename: {suite}\nArchitectures: amd64\n"
        f"Components: {component}\n"
        f"Date: {time.strftime('%a, %d %b %Y %H:%M:%S UTC', time.gmtime())}\nSHA256:\n"
        f" {hashlib.sha256(index).hexdigest()} {len(index)} {component}/binary-amd64/Packages\n"
    )
    return release

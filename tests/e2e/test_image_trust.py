"""A host that has none of Debian's keys fetches a suite, and checks who signed it."""

from __future__ import annotations

import os
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.errors import CommandFailed, HostUnfit
from lab.imagebuild import bootstrap, isolate
from lab.imagebuild.recipe import load
from lab.imagebuild.trust import keyrings
from lab.run import run

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(not shutil.which("mmdebstrap"), reason="needs mmdebstrap"),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to hide the host's keys"),
]

KEYS_OF_THE_HOST = ("/usr/share/keyrings", "/etc/apt/trusted.gpg.d")


@pytest.fixture
def scratch() -> Iterator[Path]:
    # Not pytest's directory: apt's own user must be able to enter it, as it can a build's.
    with tempfile.TemporaryDirectory(prefix="lab-trust-") as path:
        Path(path).chmod(0o711)
        yield Path(path)


def fetch(scratch: Path, trusted: list[Path]) -> None:
    """Have mmdebstrap look the suite up, and install nothing, where no key can be seen."""
    suite = load("mariadb").suite
    argv = bootstrap.command(scratch / f"root-{len(trusted)}", suite, ["none"], keyrings=trusted)
    argv = [word for word in argv if not word.startswith("--include")]
    argv[argv.index("--variant=minbase")] = "--variant=custom"
    (scratch / "nothing").mkdir(exist_ok=True)
    hide = "".join(
        f"mount --bind {shlex.quote(str(scratch / 'nothing'))} {directory} && "
        for directory in KEYS_OF_THE_HOST
    )
    hidden = [*isolate.isolated(network=True), "sh", "-c", f'{hide} exec "$@"', "sh", *argv]
    try:
        run(hidden, timeout=300)
    except CommandFailed as error:
        raise bootstrap.explain(error, error.stderr) from None


def test_the_keys_that_come_along_are_enough(scratch: Path) -> None:
    try:
        fetch(scratch, keyrings(scratch, host=scratch / "none"))
    except HostUnfit as error:
        if "mirror" in error.what:
            pytest.skip(f"no Debian mirror: {error}")
        raise
    with pytest.raises(HostUnfit) as caught:
        fetch(scratch, [])
    if "mirror" not in caught.value.what:
        assert "not signed" in caught.value.what

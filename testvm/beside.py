"""A command beside another, such as the tests of one release beside those of the next one."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Sequence
from typing import BinaryIO

from lab.errors import CommandFailed, LabError
from lab.run import run


class Beside:
    """``argv`` in the background; after ``timeout`` seconds it is ended.

    It is also ended (SIGTERM) when we end, however we do: by the kernel.
    """

    def __init__(self, argv: Sequence[str], *, timeout: float) -> None:
        self._argv = ["setpriv", "--pdeathsig", "TERM", *argv]
        self._timeout = timeout
        self._status = 1  # also if it could not be started
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  closed in ``end``
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def ended(self) -> bool:
        """Whether it has ended, so that ``end`` does not wait."""
        return not self._thread.is_alive()

    def end(self, out: BinaryIO) -> int:
        """Wait for it and write to ``out`` what it printed; its exit status."""
        self._thread.join()
        with self._said:
            self._said.seek(0)
            shutil.copyfileobj(self._said, out)
        out.flush()
        return self._status

    def _run(self) -> None:
        try:
            run(self._argv, timeout=self._timeout, log=self._said)
            self._status = 0
        except CommandFailed as error:
            self._status = error.status if error.status > 0 else 1
        except (LabError, OSError) as error:
            self._said.write(f"{error}\n".encode())

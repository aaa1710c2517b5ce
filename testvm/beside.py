"""The tests of one release while those of another run: a guest keeps about one core busy."""

from __future__ import annotations

import shutil
import sys
import tempfile
import threading
from collections.abc import Sequence
from typing import BinaryIO

from lab.errors import CommandFailed
from lab.run import run


class Beside:
    """``python -m testvm WORDS`` in the background.

    It ends when we do, however we do: the kernel tells it, and it then ends its guest.
    """

    def __init__(self, words: Sequence[str], *, timeout: float) -> None:
        self._argv = ["setpriv", "--pdeathsig", "TERM", sys.executable, "-m", "testvm", *words]
        self._timeout = timeout
        self._status = 0
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  closed in ``end``
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

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
        except CommandFailed as error:
            self._status = error.status if error.status > 0 else 1

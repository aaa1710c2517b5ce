"""What a test suite does: ``lab.reset()`` in one process, with tests between.

``python -m bench.in_tests LAB COUNT SECONDS`` prints how long each reset took, as JSON: until each
node had answered as ready, which is looked at once more afterwards. ``SECONDS``: between two
resets; 0: as soon as the next standby is ready.
"""

from __future__ import annotations

import json
import sys
import time

from lab.cli.app import App
from lab.cli.backend.local import Lifecycle
from lab.pytest_plugin import TestLab
from lab.views.labs import LabView
from lab.wait import Deadline, attempts

_PATIENCE = 120.0


def main(name: str, count: int, pause: float) -> None:
    """Reset the lab ``count`` times, after resets that are not counted."""
    lab = TestLab(_view(name))
    for _ in range(2):  # the first takes the snapshot, the second has no standby
        lab.reset()
    seconds = []
    for _ in range(count):
        _between(name, pause)
        began = time.perf_counter()
        lab.reset()
        seconds.append(time.perf_counter() - began)
        if _view(name).state != "ready":
            raise SystemExit(f"{name} is not ready")
    print(json.dumps(seconds))  # noqa: T201


def _between(name: str, pause: float) -> None:
    if pause:
        time.sleep(pause)
        return
    for _ in attempts(Deadline.after(_PATIENCE), most=0.2):
        if _view(name).standby:
            return
    raise SystemExit(f"there is no standby of {name} after {_PATIENCE:g} s")


def _view(name: str) -> LabView:
    with App(Lifecycle(), quiet=True).open() as session:
        return session.lab(name)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))

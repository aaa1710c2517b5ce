"""Processes of their own for tests, each in milliseconds.

They are forked from a process that has imported the slow part once, and that shares nothing with
the tests. A start from nothing (``spawn``) costs an emulated machine seconds.
"""

from __future__ import annotations

import multiprocessing as mp

FORKED = mp.get_context("forkserver")
# Only what every way to start Python finds: this happens before the path of the tests is set.
FORKED.set_forkserver_preload(["concurrent.futures.process", "pytest", "lab.storage.zfs.driver"])

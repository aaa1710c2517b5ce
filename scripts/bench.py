#!/usr/bin/env python3
"""What `make bench` runs: the package ``bench`` of this checkout."""

import runpy
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
runpy.run_module("bench", run_name="__main__", alter_sys=True)

"""A newer version of this program, as far as hosts of a fleet notice: a copy with a few changes.

It has what a later version may have: another version number, a column more in the fleet's tables, a
field more in requests for labs, in views and in facts, and a state of labs that this one does not
know.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from lab.fleet.schema import REVISION
from tests import ROOT

Program = Sequence[str]
NEWER = "99.1"
NEXT = f"{int(REVISION) + 1:04}"
"""The revision of its tables."""
MIGRATION = f'''"""A column more."""

import sqlalchemy as sa
from alembic import op

revision = "{NEXT}"
down_revision = "{REVISION}"


def upgrade() -> None:
    for table in ("hosts", "labs", "placements"):
        op.add_column(table, sa.Column("further", sa.String(), nullable=True), schema="lab")
'''
CHANGES = {
    "lab/distribution.py": ("return metadata.version(NAME)", f'return "{NEWER}"'),
    "lab/fleet/schema.py": (f'REVISION = "{REVISION}"', f'REVISION = "{NEXT}"'),
    "lab/fleet/hosts.py": (
        "    formed: int = 0\n",
        '    formed: int = 0\n    processor: str = "epyc"\n',
    ),
    "lab/requests/labs.py": (
        '"host", "on_host_lost", "asleep_after")\n',
        '"host", "on_host_lost", "asleep_after", "encrypted")\n    encrypted: bool = False\n',
    ),
    "lab/views/labs.py": (
        "    asleep_at: Public[Time | None] = None\n",
        '    processor: Public[str] = "epyc"\n    asleep_at: Public[Time | None] = None\n',
    ),
    "lab/observe/states.py": (
        '    "ready", "degraded", "not-primary",',
        '    "hibernating", "ready", "degraded", "not-primary",',
    ),
}
"""What each file of the newer version has in place of something."""


def newer_version(root: Path) -> Program:
    """How the newer version is called, which lies in ``root`` from now on."""
    left_out = shutil.ignore_patterns("__pycache__", "api", "recipes")
    shutil.copytree(ROOT / "lab", root / "lab", ignore=left_out)
    for name, link in (("api", "api"), ("images", "recipes")):
        shutil.copytree(ROOT / name, root / "lab" / link, ignore=left_out, symlinks=True)
    for name, (before, after) in CHANGES.items():
        path = root / name
        text = path.read_text()
        assert text.count(before) == 1, name
        path.write_text(text.replace(before, after))
    (root / f"lab/fleet/migrations/versions/{NEXT}_next.py").write_text(MIGRATION)
    program = root / "program.py"
    program.write_text("import runpy\n\nrunpy.run_module('lab', run_name='__main__')\n")
    return sys.executable, str(program)

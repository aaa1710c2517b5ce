#!/usr/bin/env python3
"""Run the sessions that pages show, and write what they printed into the pages.

In an empty home of its own, so that the first lab is a first use; on a calm machine, as its
times are read by everybody: `scripts/transcript.py`, or `scripts/transcript.py docs/captures.md`.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", ROOT / "docs" / "captures.md", ROOT / "docs" / "datasets.md")
SECTION = re.compile(r"(?<=^## What it looks like\n).*?(?=^## )", re.M | re.S)
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
FILES = {"sql": "shop.sql", "text": "rules.toml"}
"""Blocks of these languages in a section are files that its session has."""
COMMAND = re.compile(r"^\$ (.*)$", re.M)


def session(block: str, env: dict[str, str], cwd: str) -> str:
    """The commands of a block, each with what it prints now."""
    shown = []
    for command in COMMAND.findall(block):
        print(f"$ {command}", file=sys.stderr)  # noqa: T201
        ran = subprocess.run(
            ["bash", "-c", command], env=env, cwd=cwd, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
        shown.append(f"$ {command}\n{ran.stdout}")
    return "\n".join(shown)


def main() -> None:
    """Replace the blocks of the pages' sections."""
    with tempfile.TemporaryDirectory(prefix="lab-readme-") as scratch:
        home = Path(scratch, "home")
        Path(scratch).chmod(0o711)  # QEMU's user must be able to pass
        path = f"{ROOT / '.venv/bin'}:{os.environ['PATH']}"
        env = {**os.environ, "LAB_HOME": str(home), "PATH": path}
        env.pop("LAB_HYPERVISOR", None)
        try:
            for page in [Path(word).resolve() for word in sys.argv[1:]] or PAGES:
                text = page.read_text()
                before = SECTION.findall(text)[0]
                for language, name in FILES.items():
                    for content in re.findall(rf"^```{language}\n(.*?)^```$", before, re.M | re.S):
                        Path(scratch, name).write_text(content)
                section = BLOCK.sub(
                    lambda block: (
                        block[0] if block[1] else f"```\n{session(block[2], env, scratch)}```"
                    ),
                    before,
                )
                page.write_text(SECTION.sub(lambda _, new=section: new, text))  # type: ignore[misc]
        finally:
            subprocess.run(["lab", "down", "--all", "--yes"], env=env, check=False)


if __name__ == "__main__":
    main()
